"""Falsification of a finished run's ε: what its record lets an adversary see, beside what was proved."""
