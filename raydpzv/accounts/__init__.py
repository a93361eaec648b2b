"""Accounts of privacy that a run keeps of what it releases, and the setting that they make of it at its end."""
