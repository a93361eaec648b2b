"""Asynchronous successive halving that promotes (Li et al. 2020, algorithm 2), for a number of
trials known beforehand.

A trial pauses at each rung. Whenever a worker is free, the highest rung promotes its best paused
trial, if that is among the best 1 / FACTOR of all that reached the rung. If no rung has one, a new
trial starts. So nothing waits for a slower trial, and a trial that arrived first is compared with
those that arrive later.

The paper's trials never run out; here they do, and a budget replaces its time limit. At any moment
the updates made or started are at most SHARE of what all started trials would make in full. The
updates of one whole trial are reserved, so that early trials cannot spend what the last may need.
Once all have started and no rung promotes, the best paused trials resume as long as the share
suffices to their end, those of higher rungs first. One trial always finishes.

A paused trial has its checkpoint, and resumes to the bits that it has without a pause. Every
promotion is written before the trial resumes. The paused trials follow from that and from the runs'
own folders, so that a search that was killed resumes with the promotions it made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from raydpzv.compare.run_comparison import finished
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import DataError, SpecError
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_folder import (
    Decision,
    add_decisions,
    decisions,
    figure,
    is_paused_at,
    metric_at,
    ranked,
    run_path,
    without_checkpoint,
)
from raydpzv.search.search_plan import SearchPlan, Trial, check_pause

FACTOR = 2
"""One in so many trials is promoted at a rung; the next rung is so many times as far."""
SHARE = Fraction(1, 2)
"""Part of the updates of all trials in full that may be made."""
FIRST = 8
"""The first rung is after this part of the budget, where none is given."""
LAST = 2
"""No rung but the first is after more than this part of the budget: near its end stopping saves
little.
"""
_OTHERS = ("seconds", "bytes", "epsilon")
"""Budgets beside that of updates."""


def why_not_promoting(trials: Sequence[Trial], *, actors: bool) -> str:
    """Return why trials cannot pause and resume one by one, or nothing; actors: has each its
    own?
    """
    if actors:
        return "--actors: actors of a trial's own cannot stand still"
    for trial in trials:
        if why := without_checkpoint(trial.spec):
            return f"{trial} leaves no checkpoint to continue from: {why}"
        if name := _other_budget(trial.spec):
            return f"{name}: {trial} may end before it has made its updates"
    return ""


def _other_budget(spec: AnyScenario) -> str:
    """Return the name of a budget that may end a run before its updates are made, or nothing."""
    return next((f"budget.{name}" for name in _OTHERS if getattr(spec.budget, name)), "")


def first_rung(trials: Sequence[Trial], grace: int | None) -> int:
    """Return after how many updates trials first pause: those given, or an eighth of the budget, at
    an evaluation.

    Raises SpecError for trials that are not held against one another there.
    """
    started = [trial for trial in trials if not trial.skipped]
    budgets = {trial.spec.budget.updates for trial in started}
    budget = max((b for b in budgets if b is not None), default=0)
    if len(budgets) > 1 or not budget or any(_other_budget(trial.spec) for trial in started):
        raise SpecError(
            "--scheduler asha: wanted one budget.updates for all trials and no other budget, since "
            "all make the same updates before they are held against one another; set it, and leave "
            "out the others"
        )
    every = math.lcm(*(trial.spec.evaluate.every for trial in started))
    found = max(1, round(budget / FIRST / every)) * every if grace is None else grace
    return check_pause("--grace", grace, found, every, budget)


def rungs(plan: SearchPlan) -> list[int]:
    """Return after how many updates trials pause."""
    return rungs_from(plan.grace, plan.budget)


def rungs_from(first: int, budget: int) -> list[int]:
    """Return after how many updates trials pause: each rung FACTOR times as far, up to budget /
    LAST.

    The first is one in any case.
    """
    found = [first]
    while found[-1] * FACTOR <= budget // LAST:
        found.append(found[-1] * FACTOR)
    return found


def rule(plan: SearchPlan) -> str:
    """Return in a line what a search of this plan does."""
    stand = ", ".join(f"{rung:,}" for rung in rungs(plan))
    return (
        f"asha promotes: trials pause at {stand} updates, the best {100 / FACTOR:.0f} % of those "
        f"that are there continue, then the best left, and at most {100 * float(SHARE):.0f} % of "
        "the updates of all trials in full are made"
    )


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

    rungs: after how many updates trials pause, ascending; budget: updates of a whole trial; higher:
    is more of the metric better?
    """

    def __init__(
        self, rungs: Sequence[int], budget: int, trials: Iterable[int], *, higher: bool
    ) -> None:
        self._rungs, self._targets, self._higher = tuple(rungs), (*rungs, budget), higher
        self._waiting = list(trials)
        self._sent = dict[int, int]()
        self._came: list[dict[int, float]] = [{} for _ in rungs]
        self._paused, self._on_the_way = set[int](), set[int]()

    @property
    def paused(self) -> list[tuple[int, int, float]]:
        """Return the paused trials: each with the updates it has made, and its metric there."""
        return [
            (n, self._rungs[self._sent[n]], self._came[self._sent[n]][n])
            for n in sorted(self._paused)
        ]

    def send(self, trial: int, rung: int) -> TrialLeg:
        """Let a trial go to the rung of this number, from 0 on; that after the last one is its
        end.
        """
        if trial in self._waiting:
            self._waiting.remove(trial)
        self._paused.discard(trial)
        self._on_the_way.add(trial)
        self._sent[trial] = rung
        since, value = (
            (self._rungs[rung - 1], self._came[rung - 1][trial]) if rung else (0, math.nan)
        )
        return TrialLeg(trial, since, self._rungs[rung] if rung < len(self._rungs) else None, value)

    def arrived(self, trial: int, value: float, *, over: bool = False) -> None:
        """Record that a trial has reached its target; value: its metric there, NaN where there is
        none.

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
        """Send a trial on, or a new one; None where there is none to send before another arrives,
        if ever.
        """
        found = self._promotable()
        if found is None and self._waiting:
            return self.send(self._waiting[0], 0)
        found = found or self._best_left() or self._last_resort()
        return None if found is None else self.send(*found)

    def _promotable(self) -> tuple[int, int] | None:
        for rung in reversed(range(len(self._rungs))):
            order = ranked(self._came[rung], higher=self._higher)
            best = self._standing_at(rung, order[: len(order) // FACTOR])
            if best is not None and self._affords(
                rung, rung + 1, kept=self._targets[-1] - self._targets[0]
            ):
                return best, rung + 1
        return None

    def _best_left(self) -> tuple[int, int] | None:
        """Return the best of the highest rung to which nobody is on the way any more, if it may go
        to its end.
        """
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
        """Return whether the share suffices for a trial's way from a rung to another; kept: updates
        to be left then.
        """
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


class Promotion:
    """Chooses the trial that resumes next. Raises DataError if the record is not of this search."""

    def __init__(self, folder: Path, plan: SearchPlan) -> None:
        self._folder, self._plan, self._rungs = folder, plan, rungs(plan)
        self._trials = {trial.number: trial for trial in plan.started()}
        self._bracket = Bracket(self._rungs, plan.budget, self._trials, higher=plan.higher)
        self._begun = list[TrialLeg]()
        self._recall()

    def _recall(self) -> None:
        """Read the promotions on record, and where runs are; trials that were under way resume
        first.
        """
        known: dict[int, list[Decision]] = {number: [] for number in self._trials}
        for told in decisions(self._folder):
            due = self._rungs[len(known.get(told.trial, ())) :][:1]
            stands = known.get(told.trial) and known[told.trial][-1].stop
            if told.trial not in known or [told.updates] != list(due) or stands:
                raise DataError(
                    f"{self._folder}: a decision on record (trial {told.trial}, {told.updates} "
                    "updates) is none of this search; start a new one"
                )
            known[told.trial].append(told)
        for number, made in known.items():
            if not made and not RunFolder.begun(run_path(self._folder, self._trials[number])):
                continue
            leg = self._bracket.send(number, 0)
            for told in made:
                self._bracket.arrived(
                    number, math.nan if told.value is None else told.value, over=told.stop
                )
                if not told.stop:
                    leg = self._bracket.send(number, self._rungs.index(told.updates) + 1)
            if not (made and made[-1].stop) and not self._arrived(leg):
                self._begun.append(leg)

    def trial(self, leg: TrialLeg) -> Trial:
        """Return the trial of a leg."""
        return self._trials[leg.trial]

    def next_leg(self) -> TrialLeg | None:
        """Return the trial that resumes next, and record it; None while none can before another one
        arrives.
        """
        if self._begun:
            return self._begun.pop(0)
        leg = self._bracket.next()
        if leg and leg.since:
            value = None if math.isnan(leg.value) else leg.value
            add_decisions(self._folder, [Decision(leg.trial, leg.since, value, stop=False)])
        return leg

    def ended(self, leg: TrialLeg) -> None:
        """Record that a leg is over: its trial has reached its target, or has failed."""
        if not self._arrived(leg):
            self._bracket.lost(leg.trial)

    def _arrived(self, leg: TrialLeg) -> bool:
        trial = self._trials[leg.trial]
        path = run_path(self._folder, trial)
        if not is_paused_at(trial, path, leg.until):
            return False
        over = finished(trial.planned(), path)
        value = (
            math.nan if over or leg.until is None else metric_at(path, self._plan.metric, leg.until)
        )
        self._bracket.arrived(leg.trial, value, over=over)
        return True

    def close(self) -> None:
        """Write down that the trials that are still paused stay there: there is nobody left to
        send.
        """
        stay = [
            Decision(number, updates, None if math.isnan(value) else value, stop=True)
            for number, updates, value in self._bracket.paused
        ]
        if stay:
            add_decisions(self._folder, stay)


def said(leg: TrialLeg) -> str:
    """Return a line on a trial that is promoted from a rung."""
    end = "the end" if leg.until is None else f"{leg.until:,} updates"
    return f"trial {leg.trial} ({figure(leg.value)} after {leg.since:,} updates) continues to {end}"
