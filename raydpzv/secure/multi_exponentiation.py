"""Products of powers with small signed exponents in slots, after Straus, with sliding digits
(Möller 2001).

∏_u h_u^(Σ_j x_uj 2^(wj)) for u over U bases and j over slots of w bits. Digits are 0 or odd, at
most one in every `width` bits not 0, so that a product is needed for few of them; the squarings
between are shared by all bases and slots. Buckets per digit, as Pippenger has them, take up to
twice the products: exponents are short, and the tables serve all ciphertexts of a release.
"""

# U bases, m slots, b bits of an exponent

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raydpzv.secure.arithmetic import inverse, product

Integers = npt.NDArray[np.int64]

_WIDEST = 6
"""Bits of the widest digit: tables then hold 32 powers of a base."""


@dataclass(frozen=True)
class Bases:
    """Units modulo `modulus`, and their inverses for negative digits."""

    modulus: int
    values: Sequence[int]
    inverses: Sequence[int]

    @staticmethod
    def of(values: Sequence[int], modulus: int) -> Bases:
        """Return the units with their inverses."""
        return Bases(modulus, values, [inverse(value, modulus) for value in values])

    def __getitem__(self, some: slice) -> Bases:
        return Bases(self.modulus, self.values[some], self.inverses[some])


class OddPowers:
    """The odd powers of bases, as many as are worth making for so many values each.

    bits: of the largest exponent; values: exponents of each base in all products that are wanted.
    """

    def __init__(self, bases: Bases, bits: int, values: int) -> None:
        self._modulus = bases.modulus
        self._width = min(
            range(2, _WIDEST + 1), key=lambda width: (1 << width - 1) + values * bits / (width + 1)
        )
        both = zip(bases.values, bases.inverses, strict=True)
        self._powers = [(self._odd(value), self._odd(inverted)) for value, inverted in both]

    def product(self, exponents: Integers, slot: int) -> int:
        """Return ∏_u h_u^(Σ_j x_uj 2^(slot j)); exponents: x, int64 [U, m], each below 2^62 in
        size.
        """
        digits = _sliding_digits(exponents, self._width)
        bit, u, j = np.nonzero(digits)
        places = slot * j + bit
        order = np.argsort(places)[::-1]
        total, above = 1, 0
        for place, base, digit in zip(
            *(part[order].tolist() for part in (places, u, digits[bit, u, j])), strict=True
        ):
            total = self._squared(total, above - place)
            total = product(total, self._powers[base][digit < 0][abs(digit) >> 1], self._modulus)
            above = place
        return self._squared(total, above)

    def _squared(self, base: int, times: int) -> int:
        for _ in range(times):
            base = product(base, base, self._modulus)
        return base

    def _odd(self, base: int) -> list[int]:
        """1st, 3rd, 5th, ... power, as many as there are digits of one sign."""
        square, powers = product(base, base, self._modulus), [base]
        while len(powers) < 1 << self._width - 2:
            powers.append(product(powers[-1], square, self._modulus))
        return powers


def _sliding_digits(exponents: Integers, width: int) -> npt.NDArray[np.int8]:
    """Digits below 2^(width-1) in size, each 0 or odd and followed by width - 1 zeros: int8 [b + 1,
    U, m].
    """
    half, digits, rest = 1 << width - 1, [], exponents
    while rest.any():
        digit = np.where(rest & 1, ((rest + half) & (2 * half - 1)) - half, 0)
        digits.append(digit.astype(np.int8))
        rest = (rest - digit) >> 1
    return np.array(digits, np.int8).reshape(len(digits), *exponents.shape)
