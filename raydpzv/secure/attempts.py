"""Attempts at a round: the set of silos is fixed before masks and noise shares are made. A failure
starts another.

An attempt without one of its silos opens nothing, since its masks stay in the sum. It is charged
when all of its uploads have come after all, beside the attempt that took its place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    """One try at a round by a fixed set of silos, ascending; round and number address its masks."""

    round: int
    number: int
    silos: tuple[int, ...]

    def again(self, failed: Collection[int], least: int) -> Attempt:
        """Return the attempt that follows when some of its silos have failed: without them.

        If fewer than `least` are left, the same are asked once more.
        """
        left = tuple(silo for silo in self.silos if silo not in failed)
        return Attempt(self.round, self.number + 1, left if len(left) >= least else self.silos)
