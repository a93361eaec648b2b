"""Public sizes of the private weighting protocol: the common multiple Λ, and what fits a key.

Weights are w_su = n_su / N_u for counts capped at `cap`, so that N_u = Σ_s n_su is at most cap · S
and divides Λ.
"""

# S silos, U users, D values of a release, m of them to a plaintext, C' = 2^b - 1

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from raydpzv.errors import SpecError

SHIFT_BITS = 128
"""Bits by which a blinding a_u is longer than what it hides: what is seen is within 2^-128 of
uniform.
"""

TAIL = 12
"""Deviations of the noise that a slot has room for: further out it is with probability below
2^-100.
"""


@dataclass(frozen=True)
class Weighting:
    """The sizes of one run.

    cap: of a user's records in a silo; key_bits: |n|; value_bits: b, of what one pair adds to a
    value; values: D;
    multiplier: σ; run: identifies this run.
    """

    silos: int
    users: int
    cap: int
    key_bits: int
    value_bits: int
    values: int
    multiplier: float
    run: bytes = b""

    @property
    def limit(self) -> int:
        """Largest norm of a pair's integer vector, C' = 2^b - 1."""
        return (1 << self.value_bits) - 1

    @property
    def sensitivity(self) -> float:
        """By how much a user moves the noised sum, C' + √D: the noise of all silos has deviation σ
        times this.

        √D is what the rest modulo Λ may add (the opened value is Λ times the noised sum plus the
        dither).
        """
        return self.limit + math.sqrt(self.values)

    @cached_property
    def multiple(self) -> int:
        """Λ = lcm(1, ..., cap · S), which every N_u divides."""
        return math.lcm(*range(1, self.cap * self.silos + 1))

    @property
    def shift_limit(self) -> int:
        """Blindings a_u are below this: 2^(|Λ| + 128)."""
        return 1 << self.multiple.bit_length() + SHIFT_BITS

    @cached_property
    def packing(self) -> Packing:
        """How values lie in plaintexts. Raises SpecError for a cap that does not fit the key."""
        self._check()
        slot = self._slot(self.multiple)
        return Packing(slot, (self.key_bits - 2) // slot)

    def share(self, silo: int) -> range:
        """Return the users whose weights this silo converts at the set-up."""
        return range(silo, self.users, self.silos)

    def decoded(self, opened: Sequence[int], silos: int) -> npt.NDArray[np.float64]:
        """Return the noised weighted sum in units of C', float64 [D], of what was opened among so
        many silos.

        The dithers' mean is taken off; integers are divided exactly and rounded once.
        """
        dithers = silos * (self.multiple - 1)
        return np.array([(2 * value - dithers) / (2 * self.multiple) for value in opened])

    def _sum_bits(self) -> int:
        """Bits of the largest sum in units of Λ: of U users, the noise, and the dithers."""
        noise = TAIL * self.multiplier * self.sensitivity
        return math.ceil(math.log2(self.limit * self.users + noise + self.silos))

    def _slot(self, multiple: int) -> int:
        return multiple.bit_length() + 1 + self._sum_bits()

    def _fits(self, multiple: int) -> bool:
        blinded = multiple.bit_length() + SHIFT_BITS + 1
        return self._slot(multiple) <= self.key_bits - 2 and blinded < self.key_bits

    def _check(self) -> None:
        if self.silos < 2:
            raise SpecError(
                f"weights are private among at least 2 silos, and there is {self.silos}: use more "
                "silos, or "
                'method.aggregation = "plain"'
            )
        if self._fits(self.multiple):
            return
        length = self.multiple.bit_length()
        advice = f"the largest that fits is {self.largest_cap()}"
        if not self.largest_cap():
            advice = "no cap fits; use a longer key, or fewer silos or bits of a value"
        raise SpecError(
            f"method.count_cap = {self.cap} does not fit a key of {self.key_bits} bits: with "
            f"{self.silos} silos Λ = lcm(1..{self.cap * self.silos}) has {length} bits, a slot "
            f"{length} + 1 + {self._sum_bits()} = {self._slot(self.multiple)} of "
            f"{self.key_bits - 2}, a blinded weight {length} + {SHIFT_BITS + 1} of "
            f"{self.key_bits - 1}; {advice}"
        )

    def largest_cap(self) -> int:
        """Return the largest cap that fits, whatever `cap` is; 0 if none does."""
        cap, multiple = 0, 1
        while True:
            multiple = math.lcm(multiple, *range(cap * self.silos + 1, (cap + 1) * self.silos + 1))
            if not self._fits(multiple):
                return cap
            cap += 1


def check_masked_range(users: int, silos: int, value_bits: int, multiplier: float) -> None:
    """Raise SpecError where a sum of integers may leave the signed 64 bits in which masks cancel.

    U users add at most C' = 2^b - 1 in each of S silos, whose noise together has deviation σ S C'.
    """
    limit = (1 << value_bits) - 1
    largest = users * limit * silos + math.ceil(TAIL * multiplier * silos * limit)
    if largest >= 1 << 63:
        raise SpecError(
            f"masked sums are taken in 64 bits, but {users} users × {limit} (method.value_bits = "
            f"{value_bits}) × {silos} silos + {TAIL} × {multiplier:g} × {silos} × {limit} of noise "
            f"= {largest:.3g} is not below 2^63 = {1 << 63:.3g}: use fewer value_bits"
        )


@dataclass(frozen=True)
class Packing:
    """Several signed values in one plaintext, Σ_j x_j 2^(w j): m slots (`per_plaintext`) of w bits
    (`slot`).

    A value lies below 2^(w-1) in size.
    """

    slot: int
    per_plaintext: int

    def slices(self, values: int) -> list[slice]:
        """Return which values each plaintext holds."""
        starts = range(0, values, self.per_plaintext)
        return [slice(start, min(start + self.per_plaintext, values)) for start in starts]

    def packed(self, values: Sequence[int]) -> list[int]:
        """Return the plaintexts, signed integers."""
        return [
            sum(value << self.slot * j for j, value in enumerate(values[some]))
            for some in self.slices(len(values))
        ]

    def unpacked(self, plaintexts: Sequence[int], values: int) -> list[int]:
        """Return the D values, from the lowest slot up by signed remainders."""
        found, half = [], 1 << self.slot - 1
        for plaintext, some in zip(plaintexts, self.slices(values), strict=True):
            for _ in range(some.start, some.stop):
                value = ((plaintext + half) & (2 * half - 1)) - half
                found.append(value)
                plaintext = (plaintext - value) >> self.slot
        return found
