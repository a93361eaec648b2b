"""Arithmetic on integers of thousands of bits: the four functions that gmpy2 computes.

What they return are gmpy2's integers, which act as Python's and are many times faster where they
are this long.
"""

from __future__ import annotations

import secrets

from raydpzv.errors import missing

try:
    import gmpy2
except ImportError:
    raise missing("gmpy2", "secure") from None

_MILLER_RABIN = 40  # rounds; a composite number passes them with probability below 4^-40


def powmod(base: int, exponent: int, modulus: int) -> int:
    """Return base^exponent mod modulus; exponent at least 0."""
    return gmpy2.powmod(base, exponent, modulus)


def product(a: int, b: int, modulus: int) -> int:
    """Return a b mod modulus."""
    return gmpy2.mpz(a) * b % modulus


def inverse(a: int, modulus: int) -> int:
    """Return 1 / a mod modulus. ZeroDivisionError: there is none."""
    return gmpy2.invert(a, modulus)


def prime(bits: int) -> int:
    """Return a prime of so many bits from the operating system's randomness, its two highest bits
    set.

    So a product of two has exactly twice the bits, and neither is so close to a power of two that
    the other follows.
    """
    while True:
        found = gmpy2.mpz(secrets.randbits(bits) | 3 << (bits - 2) | 1)
        if gmpy2.is_prime(found, _MILLER_RABIN):
            return found
