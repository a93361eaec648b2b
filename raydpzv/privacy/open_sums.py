"""How many releases the attempts at a round come to, whose silos may fail and send again."""

from __future__ import annotations

import copy

from raydpzv.privacy.release import RoundAttempt


class OpenSums:
    """How many releases rounds come to: one for each attempt whose sum is open, or may yet be.

    Attempts before a round's newest have been given up: they count once every upload of theirs has come. hidden: sums
    are masked; else each silo's own is seen, and a second one of a silo in an attempt is a release more.
    """

    def __init__(self, *, hidden: bool) -> None:
        self._hidden = hidden
        self._releases = self._repeated = 0
        self._begin(0)

    def more(self, silo: int, attempt: RoundAttempt) -> bool:
        """Return whether an upload, if it is sent, makes for one release more."""
        return copy.deepcopy(self).add(silo, attempt)

    def add(self, silo: int, attempt: RoundAttempt) -> bool:
        """Count an upload that is sent; return whether it makes for one release more."""
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
