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

from raydpzv.errors import SpecError
from raydpzv.search.search_folder import Decision, add_decisions, cut_short, decisions, run_path
from raydpzv.search.search_plan import METRICS, SearchPlan, Trial
from raydpzv.search.standing import (
    at_evaluation,
    figure,
    metric_at,
    one_budget,
    ranked,
    rungs_from,
    stands_after,
    stands_there,
    why_not_standing,
)

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
    one_budget(started, "halving")
    for trial in started:
        if why := why_not_standing(trial.spec, "halving"):
            raise SpecError(f"{trial}: {why}")
    return at_evaluation(started, grace, FIRST)


def rungs(plan: SearchPlan) -> list[int | None]:
    """Return after how many updates trials stand, the last time being their end (None)."""
    return [*rungs_from(plan.grace, plan.budget, FACTOR, LAST), None]


def going_to(folder: Path, plan: SearchPlan, rung: int | None) -> list[Trial]:
    """Return the trials that no earlier rung has stopped, those not started left out; rung None: the end."""
    cut = cut_short(folder)
    end = math.inf if rung is None else rung
    return [trial for trial in plan.started() if cut.get(trial.number, math.inf) >= end]


def to_go(folder: Path, plan: SearchPlan, rung: int | None) -> list[Trial]:
    """Return the trials that are still to come to a rung (None: to their end)."""
    gone_on = {d.trial for d in decisions(folder) if d.updates == rung and not d.stop}

    def there(trial: Trial) -> bool:
        came = stands_after if trial.number in gone_on else stands_there
        return came(trial, run_path(folder, trial), rung)

    return [trial for trial in going_to(folder, plan, rung) if not there(trial)]


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
    return ranked(values, higher=higher)[: math.ceil(len(values) / FACTOR)]


def said(made: Sequence[Decision]) -> str:
    """Return in a line which trials go on from a rung."""
    on = ", ".join(f"{d.trial} ({figure(d.value)})" for d in made if not d.stop)
    return (
        f"after {made[0].updates:,} updates {sum(not d.stop for d in made)} of {len(made)} trials go on: {on}"
    )
