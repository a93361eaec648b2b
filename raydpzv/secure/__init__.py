"""Sums that nobody sees the terms of: masked sums, and sums with weights that nobody learns.

Roles take a message and return a message. gmpy2 and cryptography are imported in this room alone.
Keys, seeds, masks and the encryption's randomness come from the operating system and stay in the
object that drew them.
"""


def require_installed() -> None:
    """Raise InputError with the command that installs gmpy2 and cryptography, if one of them is
    missing.
    """
    import raydpzv.secure.agreement
    import raydpzv.secure.arithmetic  # noqa: F401
