"""Paillier's encryption with base 1 + n: sums of plaintexts modulo n are products of ciphertexts
modulo n².

Source: Paillier 1999. Enc(m) = (1 + m n) ρ^n for a uniform unit ρ. The owner of the primes draws
uniform n-th powers and decrypts modulo p² and q², with exponents of half the size (section 7
there).
"""

from __future__ import annotations

import os
import secrets

from raydpzv.secure.arithmetic import inverse, powmod, prime, product
from raydpzv.secure.residues import uniform, width_of
from raydpzv.secure.secret import Secret


class PublicKey:
    """The modulus n."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus
        self.square = modulus * modulus

    @property
    def width(self) -> int:
        """Bytes of a plaintext, |n| / 8."""
        return width_of(self.modulus)

    @property
    def ciphertext_width(self) -> int:
        """Bytes of a ciphertext, |n| / 4."""
        return 2 * self.width

    def bare(self, plain: int) -> int:
        """Return the ciphertext of a plaintext, any integer, with nothing to hide it: 1 + m n."""
        return (1 + plain % self.modulus * self.modulus) % self.square

    def zero(self) -> int:
        """Return a uniform encryption of 0: ρ^n for a uniform ρ from the operating system."""
        (root,) = uniform(self.modulus - 1, 1, os.urandom)
        return powmod(1 + root, self.modulus, self.square)

    def joined(self, *ciphertexts: int) -> int:
        """Return a ciphertext of the sum of what these encrypt."""
        total = 1
        for ciphertext in ciphertexts:
            total = product(total, ciphertext, self.square)
        return total


class PrivateKey(Secret):
    """The two primes, of the same length, and what follows from them."""

    def __init__(self, p: int, q: int) -> None:
        self.public = PublicKey(p * q)
        self._halves = _Half(p, q), _Half(q, p)
        self._weight = q * inverse(q, p)
        self._square_weight = q * q * inverse(q * q, p * p)

    def encrypt(self, plain: int) -> int:
        """Return a uniform encryption of a plaintext, any integer."""
        at_p, at_q = (half.power() for half in self._halves)
        zero = at_q + (at_p - at_q) * self._square_weight
        return product(self.public.bare(plain), zero, self.public.square)

    def decrypt(self, ciphertext: int) -> int:
        """Return the plaintext, centred: from -n/2 to n/2."""
        at_p, at_q = (half.decrypt(ciphertext) for half in self._halves)
        n = self.public.modulus
        plain = (at_q + (at_p - at_q) * self._weight) % n
        return int(plain - n if 2 * plain > n else plain)


class _Half(Secret):
    """One prime's half of the owner's work."""

    def __init__(self, p: int, other: int) -> None:
        self._p, self._square = p, p * p
        # (1 + n)^(p-1) = 1 + (p-1) n mod p², of which L(x) = (x - 1) / p is -q mod p
        self._scale = inverse(-other % p, p)

    def power(self) -> int:
        """Return a uniform n-th power modulo p²: these are the p-th powers, since q shares no
        factor with p - 1.
        """
        return powmod(1 + secrets.randbelow(int(self._p) - 1), self._p, self._square)

    def decrypt(self, ciphertext: int) -> int:
        """Return the plaintext modulo p: L(c^(p-1) mod p²) over L((1 + n)^(p-1) mod p²)."""
        power = powmod(ciphertext % self._square, self._p - 1, self._square)
        return product((power - 1) // self._p, self._scale, self._p)


def new_key(bits: int) -> PrivateKey:
    """Return a key whose modulus has so many bits, an even number, from the operating system's
    randomness.
    """
    p = q = prime(bits // 2)
    while q == p:
        q = prime(bits // 2)
    return PrivateKey(p, q)
