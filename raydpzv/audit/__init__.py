"""Falsification of a finished run's ε: what its record lets an adversary see, beside what was
proved.
"""

from raydpzv.lazy_import import make_callable

make_callable(__name__, "raydpzv.audit.audit_run:audit")
