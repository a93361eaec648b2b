"""Asynchronous successive halving that promotes (Li et al. 2020, algorithm 2), for a number of trials known beforehand.

A trial pauses at each rung. Whenever a worker is free, the highest rung promotes its best paused trial, if that is
among the best 1 / FACTOR of all that reached the rung. If no rung has one, a new trial starts. So nothing waits for a
slower trial, and a trial that arrived first is compared with those that arrive later.

The paper's trials never run out; here they do, and a budget replaces its time limit. At any moment the updates made or
started are at most SHARE of what all started trials would make in full. The updates of one whole trial are reserved, so
that early trials cannot spend what the last may need. Once all have started and no rung promotes, the best paused
trials resume as long as the share suffices to their end, those of higher rungs first. One trial always finishes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from raydpzv.search.trial_ranking import ranked

FACTOR = 2
"""One in so many trials is promoted at a rung; the next rung is so many times as far."""
SHARE = Fraction(1, 2)
"""Part of the updates of all trials in full that may be made."""


@dataclass(frozen=True)
class TrialLeg:
    """A trial's updates from where it paused (0: its start) to a rung or its end (None).

    value: its metric there, NaN at its start.
    """

    trial: int
    since: int
    until: int | None
    value: float = math.nan


class Bracket:
    """The rungs at which trials of a search are paused, and which resumes next.

    rungs: after how many updates trials pause, ascending; budget: updates of a whole trial; higher: is more of the
    metric better?
    """

    def __init__(self, rungs: Sequence[int], budget: int, trials: Iterable[int], *, higher: bool) -> None:
        self._rungs, self._targets, self._higher = tuple(rungs), (*rungs, budget), higher
        self._waiting = list(trials)
        self._sent = dict[int, int]()
        self._came: list[dict[int, float]] = [{} for _ in rungs]
        self._paused, self._on_the_way = set[int](), set[int]()

    @property
    def paused(self) -> list[tuple[int, int, float]]:
        """Return the paused trials: each with the updates it has made, and its metric there."""
        return [(n, self._rungs[self._sent[n]], self._came[self._sent[n]][n]) for n in sorted(self._paused)]

    def send(self, trial: int, rung: int) -> TrialLeg:
        """Let a trial go to the rung of this number, from 0 on; that after the last one is its end."""
        if trial in self._waiting:
            self._waiting.remove(trial)
        self._paused.discard(trial)
        self._on_the_way.add(trial)
        self._sent[trial] = rung
        since, value = (self._rungs[rung - 1], self._came[rung - 1][trial]) if rung else (0, math.nan)
        return TrialLeg(trial, since, self._rungs[rung] if rung < len(self._rungs) else None, value)

    def arrived(self, trial: int, value: float, *, over: bool = False) -> None:
        """Record that a trial has reached its target; value: its metric there, NaN where there is none.

        over: it does not resume, whatever its rank.
        """
        self._on_the_way.discard(trial)
        rung = self._sent[trial]
        if rung < len(self._rungs):
            self._came[rung][trial] = value
            if not over:
                self._paused.add(trial)

    def lost(self, trial: int) -> None:
        """Take in that a trial has broken off on its way: nobody waits for it."""
        self._on_the_way.discard(trial)

    def next(self) -> TrialLeg | None:
        """Send a trial on, or a new one; None where there is none to send before another arrives, if ever."""
        found = self._promotable()
        if found is None and self._waiting:
            return self.send(self._waiting[0], 0)
        found = found or self._best_left() or self._last_resort()
        return None if found is None else self.send(*found)

    def _promotable(self) -> tuple[int, int] | None:
        for rung in reversed(range(len(self._rungs))):
            order = ranked(self._came[rung], higher=self._higher)
            best = self._standing_at(rung, order[: len(order) // FACTOR])
            if best is not None and self._affords(rung, rung + 1, kept=self._targets[-1] - self._targets[0]):
                return best, rung + 1
        return None

    def _best_left(self) -> tuple[int, int] | None:
        """Return the best of the highest rung to which nobody is on the way any more, if it may go to its end."""
        for rung in reversed(range(len(self._rungs))):
            best = self._standing_at(rung, ranked(self._came[rung], higher=self._higher))
            awaited = any(self._sent[n] <= rung for n in self._on_the_way)
            if best is not None and not awaited and self._affords(rung, len(self._rungs)):
                return best, rung + 1
        return None

    def _standing_at(self, rung: int, order: Sequence[int]) -> int | None:
        """Return the first of these that is paused at a rung with a metric."""
        here = (n for n in order if n in self._paused and self._sent[n] == rung)
        return next((n for n in here if not math.isnan(self._came[rung][n])), None)

    def _affords(self, rung: int, target: int, kept: int = 0) -> bool:
        """Return whether the share suffices for a trial's way from a rung to another; kept: updates to be left then."""
        made = sum(self._targets[level] for level in self._sent.values())
        more = self._targets[target] - self._targets[rung]
        return made + more + kept <= SHARE * self._targets[-1] * len(self._sent)

    def _last_resort(self) -> tuple[int, int] | None:
        """Return the best of the highest rung where nobody has come, or goes, to the end."""
        if self._on_the_way or len(self._rungs) in self._sent.values():
            return None
        for rung in reversed(range(len(self._rungs))):
            order = ranked(self._came[rung], higher=self._higher)
            if here := [n for n in order if n in self._paused and self._sent[n] == rung]:
                return here[0], rung + 1
        return None
