"""Who takes part in a round: the set is fixed before masks and noise shares are made, and a failure begins another.

An attempt without one of its silos opens nothing, since its masks stay in the sum. It is charged when all of its
uploads have come after all, beside the attempt that took its place.
"""

from __future__ import annotations

import copy
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


class OpenSums:
    """How many releases rounds come to: one for each attempt whose sum is open, or may yet be.

    Attempts before a round's newest have been given up: they count once every upload of theirs has come. hidden: sums
    are masked; else each silo's own is seen, and a second one of a silo in an attempt is a release more.
    """

    def __init__(self, *, hidden: bool) -> None:
        self._hidden = hidden
        self._releases = self._repeated = 0
        self._begin(0)

    def more(self, silo: int, attempt: Attempt) -> bool:
        """Tell whether an upload, if it is sent, makes for one release more."""
        return copy.deepcopy(self).add(silo, attempt)

    def add(self, silo: int, attempt: Attempt) -> bool:
        """Count an upload that is sent; tell whether it makes for one release more."""
        if attempt.round != self._round:
            self._begin(attempt.round)
        came = self._came.setdefault(attempt.number, set())
        if silo in came:
            self._repeated += not self._hidden
            came.clear()  # it has new keys, with which all begin the attempt anew
        came.add(silo)
        if len(came) == len(attempt.silos):
            self._open.add(attempt.number)
        before = self._releases
        self._releases = max(before, len(self._open | {max(self._came)}) + self._repeated)
        return self._releases > before

    def _begin(self, round: int) -> None:
        self._round = round
        self._came: dict[int, set[int]] = {}
        self._open: set[int] = set()
        self._releases = self._repeated = 0
