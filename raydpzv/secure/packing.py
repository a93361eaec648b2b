"""Several signed values in one plaintext: Σ_j x_j 2^(w j), slots of w bits."""

# D values, m to a plaintext

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Packing:
    """Slots of `slot` bits (w), `per_plaintext` (m) of them; a value lies below 2^(w-1) in size."""

    slot: int
    per_plaintext: int

    def plaintexts(self, values: int) -> int:
        """Return how many plaintexts hold so many values, ⌈D / m⌉."""
        return -(-values // self.per_plaintext)

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
