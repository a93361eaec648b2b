"""Synchronous successive halving (Jamieson & Talwalkar 2016): at each rung the better half of the trials goes on.

All trials make as many updates, the first rung, then stand: each leaves a checkpoint, from which it goes on to the bits
that it would have had without. Only when all stand is it decided who goes on, so that what is decided follows from the
results alone, whatever the number of trials at a time and the order in which they come. Each next rung is twice as far,
as long as half of the budget is not passed; who stands at none of them any more spends the whole budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from raydpzv.compare.run_comparison import finished
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import SpecError
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_folder import Decision, add_decisions, cut_short, decisions, run_path
from raydpzv.search.search_plan import METRICS, SearchPlan, Trial
from raydpzv.search.standing import figure, metric_at, stands_after, why_not_standing

FACTOR = 2
"""One in so many of the trials goes on from a rung; the next one is so many times as far."""
FIRST = 5
"""The first rung is after this part of the budget, where none is given."""
LAST = 2
"""No rung but the first is after more than this part of the budget: near its end stopping saves little."""
FEWEST = 4
"""Trials below which there is nothing to halve twice."""


def first_rung(trials: Sequence[Trial], grace: int | None) -> int:
    """Return after how many updates trials first stand: those given, or a fifth of the budget, at an evaluation.

    Raises SpecError for trials that are not held against one another there, or cannot go on.
    """
    started = [trial for trial in trials if not trial.skipped]
    if len(started) < FEWEST:
        raise SpecError(
            f"--scheduler halving: wanted {FEWEST} trials or more to halve, got {len(started)}; raise --samples, or "
            "take --scheduler none"
        )
    budgets = {trial.spec.budget.updates for trial in started}
    budget = max((b for b in budgets if b is not None), default=0)
    if len(budgets) > 1 or not budget or any(_other_budget(trial.spec) for trial in started):
        raise SpecError(
            "--scheduler halving: wanted one budget.updates for all trials and no other budget, since all make the "
            "same updates before they are held against one another; set it, and leave out the others"
        )
    for trial in started:
        if why := why_not_standing(trial.spec, "halving"):
            raise SpecError(f"{trial}: {why}")
    every = math.lcm(*(trial.spec.evaluate.every for trial in started))
    found = max(1, round(budget / FIRST / every)) * every if grace is None else grace
    if found % every or not every <= found < budget:
        raise SpecError(
            f"--grace: wanted a multiple of evaluate.every ({every}) below budget.updates ({budget}), got {found}: "
            "trials are held against one another at evaluations; set another, or lower evaluate.every"
        )
    return found


def _other_budget(spec: AnyScenario) -> bool:
    return bool(spec.budget.seconds or spec.budget.bytes or spec.budget.epsilon)


def rungs(plan: SearchPlan) -> list[int | None]:
    """Return after how many updates trials stand, the last time being their end (None)."""
    found, last = [plan.grace], plan.budget // LAST
    while found[-1] * FACTOR <= last:
        found.append(found[-1] * FACTOR)
    return [*found, None]


def going_to(folder: Path, plan: SearchPlan, rung: int | None) -> list[Trial]:
    """Return the trials that no earlier rung has stopped, those not started left out; rung None: the end."""
    cut = cut_short(folder)
    end = math.inf if rung is None else rung
    return [trial for trial in plan.started() if cut.get(trial.number, math.inf) >= end]


def to_go(folder: Path, plan: SearchPlan, rung: int | None) -> list[Trial]:
    """Return the trials that are still to come to a rung (None: to their end)."""
    gone_on = {d.trial for d in decisions(folder) if d.updates == rung and not d.stop}
    return [
        trial
        for trial in going_to(folder, plan, rung)
        if not _there(trial, run_path(folder, trial), rung, gone_on=trial.number in gone_on)
    ]


def _there(trial: Trial, path: Path, rung: int | None, *, gone_on: bool) -> bool:
    """Has a trial come to a rung? One that stays there has a summary that says so; a kill may have come before it."""
    if not stands_after(trial, path, rung):
        return False
    if rung is None or gone_on or finished(trial.planned(), path):
        return True
    folder = RunFolder(path)
    return folder.has_summary() and bool(folder.summary()["updates"] >= rung)


def halve(folder: Path, plan: SearchPlan, rung: int) -> list[Decision]:
    """Decide which trials go on from a rung at which all stand, and write it down; or return what was decided before.

    The better half does, one more than it of an odd number; of equal ones those of lower numbers. A trial without a
    metric, as one that diverged, is worse than all others.
    """
    if known := [d for d in decisions(folder) if d.updates == rung]:
        return known
    values = {
        trial.number: metric_at(run_path(folder, trial), plan.metric, rung)
        for trial in going_to(folder, plan, rung)
    }
    best = better_half(values, higher=METRICS[plan.metric] == "max")
    made = [
        Decision(number, rung, None if math.isnan(value) else value, number not in best)
        for number, value in values.items()
    ]
    add_decisions(folder, made)
    return made


def better_half(values: Mapping[int, float], *, higher: bool) -> list[int]:
    """Return the trials that go on, the best first; values: metrics by trial, NaN where there is none."""
    ranked = sorted(values, key=lambda n: (math.isnan(values[n]), -values[n] if higher else values[n], n))
    return ranked[: math.ceil(len(ranked) / FACTOR)]


def said(made: Sequence[Decision]) -> str:
    """Return in a line which trials go on from a rung."""
    on = ", ".join(f"{d.trial} ({figure(d.value)})" for d in made if not d.stop)
    return (
        f"after {made[0].updates:,} updates {sum(not d.stop for d in made)} of {len(made)} trials go on: {on}"
    )
