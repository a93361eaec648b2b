"""The trials of a search that promotes (`bracket`), in its folder: which resumes next, and what is on record of it.

A trial pauses at a rung with its checkpoint, and resumes to the bits that it has without a pause. Every promotion is
written before the trial resumes. The paused trials follow from that and from the runs' own folders, so that a search
that was killed resumes with the promotions it made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from raydpzv.compare.run_comparison import finished
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import DataError, SpecError
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.bracket import FACTOR, SHARE, Bracket, TrialLeg
from raydpzv.search.search_folder import Decision, add_decisions, decisions, run_path
from raydpzv.search.search_plan import SearchPlan, Trial, check_evaluated
from raydpzv.search.trial_ranking import figure, is_paused_at, metric_at, without_checkpoint

FIRST = 8
"""The first rung is after this part of the budget, where none is given."""
LAST = 2
"""No rung but the first is after more than this part of the budget: near its end stopping saves little."""
_OTHERS = ("seconds", "bytes", "epsilon")
"""Budgets beside that of updates."""


def why_not_promoting(trials: Sequence[Trial], *, actors: bool) -> str:
    """Return why trials cannot pause and resume one by one, or nothing; actors: has each its own?"""
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
    """Return after how many updates trials first pause: those given, or an eighth of the budget, at an evaluation.

    Raises SpecError for trials that are not held against one another there.
    """
    started = [trial for trial in trials if not trial.skipped]
    budgets = {trial.spec.budget.updates for trial in started}
    budget = max((b for b in budgets if b is not None), default=0)
    if len(budgets) > 1 or not budget or any(_other_budget(trial.spec) for trial in started):
        raise SpecError(
            "--scheduler asha: wanted one budget.updates for all trials and no other budget, since all make the same "
            "updates before they are held against one another; set it, and leave out the others"
        )
    every = math.lcm(*(trial.spec.evaluate.every for trial in started))
    found = max(1, round(budget / FIRST / every)) * every if grace is None else grace
    if found % every or not every <= found < budget:
        check_evaluated(every, budget, default=grace is None)
        raise SpecError(
            f"--grace: wanted a multiple of evaluate.every ({every}) below budget.updates ({budget}), got {found}: "
            "trials are held against one another at evaluations; set another, or lower evaluate.every"
        )
    return found


def rungs(plan: SearchPlan) -> list[int]:
    """Return after how many updates trials pause."""
    return rungs_from(plan.grace, plan.budget)


def rungs_from(first: int, budget: int) -> list[int]:
    """Return after how many updates trials pause: each rung FACTOR times as far, up to budget / LAST.

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
        f"asha promotes: trials pause at {stand} updates, the best {1 / FACTOR:.0%} of those that are there "
        f"continue, then the best left, and at most {float(SHARE):.0%} of the updates of all trials in full are made"
    )


class Promotion:
    """Chooses the trial that resumes next. Raises DataError if the record is not of this search."""

    def __init__(self, folder: Path, plan: SearchPlan) -> None:
        self._folder, self._plan, self._rungs = folder, plan, rungs(plan)
        self._trials = {trial.number: trial for trial in plan.started()}
        self._bracket = Bracket(self._rungs, plan.budget, self._trials, higher=plan.higher)
        self._begun = list[TrialLeg]()
        self._recall()

    def _recall(self) -> None:
        """Read the promotions on record, and where runs are; trials that were under way resume first."""
        known: dict[int, list[Decision]] = {number: [] for number in self._trials}
        for told in decisions(self._folder):
            due = self._rungs[len(known.get(told.trial, ())) :][:1]
            stands = known.get(told.trial) and known[told.trial][-1].stop
            if told.trial not in known or [told.updates] != list(due) or stands:
                raise DataError(
                    f"{self._folder}: a decision on record (trial {told.trial}, {told.updates} updates) is none of "
                    "this search; start a new one"
                )
            known[told.trial].append(told)
        for number, made in known.items():
            if not made and not RunFolder.begun(run_path(self._folder, self._trials[number])):
                continue
            leg = self._bracket.send(number, 0)
            for told in made:
                self._bracket.arrived(number, math.nan if told.value is None else told.value, over=told.stop)
                if not told.stop:
                    leg = self._bracket.send(number, self._rungs.index(told.updates) + 1)
            if not (made and made[-1].stop) and not self._arrived(leg):
                self._begun.append(leg)

    def trial(self, leg: TrialLeg) -> Trial:
        """Return the trial of a leg."""
        return self._trials[leg.trial]

    def next_leg(self) -> TrialLeg | None:
        """Return the trial that resumes next, and record it; None while none can before another one arrives."""
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
        value = math.nan if over or leg.until is None else metric_at(path, self._plan.metric, leg.until)
        self._bracket.arrived(leg.trial, value, over=over)
        return True

    def close(self) -> None:
        """Write down that the trials that are still paused stay there: there is nobody left to send."""
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
