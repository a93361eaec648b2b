"""Trials that stand after so many updates, to be held against one another, and go on from their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from raydpzv.compare.run_comparison import finished
from raydpzv.config.scenario import AnyScenario, VerticalScenario
from raydpzv.errors import SpecError
from raydpzv.experiment.prepare import unrecorded
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_plan import Trial

_OTHERS = ("seconds", "bytes", "epsilon")
"""Budgets beside that of updates."""


def why_not_standing(spec: AnyScenario, scheduler: str) -> str:
    """Return why a scheduler's trials of a scenario cannot stand and go on, or nothing."""
    if spec.clock.kind == "wall":
        return (
            f"clock.kind: --scheduler {scheduler} goes on from checkpoints after so many updates, and real time does "
            'not stand still there; use "virtual"'
        )
    if why := without_checkpoint(spec):
        return f"--scheduler {scheduler}: goes on from checkpoints, and these runs have none, since {why}; use asha"
    return ""


def without_checkpoint(spec: AnyScenario) -> str:
    """Return why runs of a scenario leave no checkpoint to go on from, or nothing."""
    if spec.clock.kind == "wall":
        return "real time cannot stand still"
    if isinstance(spec, VerticalScenario) and (what := unrecorded(spec)):
        return f"{what} comes from the operating system and is not kept"
    return ""


def other_budget(spec: AnyScenario) -> str:
    """Return the name of a budget that may end a run before its updates are made, or nothing."""
    return next((f"budget.{name}" for name in _OTHERS if getattr(spec.budget, name)), "")


def one_budget(trials: Sequence[Trial], scheduler: str) -> int:
    """Return the updates that each of the trials is to make. Raises SpecError unless that alone ends them."""
    budgets = {trial.spec.budget.updates for trial in trials}
    budget = max((b for b in budgets if b is not None), default=0)
    if len(budgets) > 1 or not budget or any(other_budget(trial.spec) for trial in trials):
        raise SpecError(
            f"--scheduler {scheduler}: wanted one budget.updates for all trials and no other budget, since all make "
            "the same updates before they are held against one another; set it, and leave out the others"
        )
    return budget


def at_evaluation(trials: Sequence[Trial], grace: int | None, part: int) -> int:
    """Return after how many updates trials first stand: those given, or the budget over `part`, at an evaluation.

    Raises SpecError where not all trials are evaluated then.
    """
    budget = trials[0].spec.budget.updates or 0
    every = math.lcm(*(trial.spec.evaluate.every for trial in trials))
    found = max(1, round(budget / part / every)) * every if grace is None else grace
    if found % every or not every <= found < budget:
        raise SpecError(
            f"--grace: wanted a multiple of evaluate.every ({every}) below budget.updates ({budget}), got {found}: "
            "trials are held against one another at evaluations; set another, or lower evaluate.every"
        )
    return found


def rungs_from(first: int, budget: int, factor: int, last: int) -> list[int]:
    """Return after how many updates trials stand: each rung `factor` times as far, up to budget / last.

    The first is one in any case.
    """
    found = [first]
    while found[-1] * factor <= budget // last:
        found.append(found[-1] * factor)
    return found


def ranked(values: Mapping[int, float], *, higher: bool) -> list[int]:
    """Return trials, the best first; values: metrics by trial, NaN where there is none, which is worse than all others.

    Of equal ones that of the lower number is first.
    """
    return sorted(values, key=lambda n: (math.isnan(values[n]), -values[n] if higher else values[n], n))


def stands_after(trial: Trial, path: Path, until: int | None) -> bool:
    """Tell whether a run has come to where it stands after so many updates (None: to its end), or is over before."""
    if finished(trial.planned(), path):
        return True
    if until is None or not RunFolder.begun(path):
        return False
    checkpoint = RunFolder(path).checkpoint()
    return checkpoint is not None and checkpoint.round >= until and _evaluated(path, until)


def stands_there(trial: Trial, path: Path, until: int | None) -> bool:
    """Tell whether a run stands after so many updates, and no process has anything left to write of it.

    One that stays there has a summary that says so; a kill may have come before it.
    """
    if not stands_after(trial, path, until):
        return False
    if until is None or finished(trial.planned(), path):
        return True
    folder = RunFolder(path)
    return folder.has_summary() and bool(folder.summary()["updates"] >= until)


def _evaluated(path: Path, updates: int) -> bool:
    return updates in RunFolder(path).rows()["evaluation"]["round"].to_pylist()


def metric_at(path: Path, metric: str, updates: int) -> float:
    """Return a metric of a run at its first evaluation after so many updates, NaN where it has none; see `curve`."""
    return curve(path, metric).get(updates, math.nan)


def curve(path: Path, metric: str) -> dict[int, float]:
    """Return a metric of a run by updates, each at the first evaluation after so many.

    NaN where the loss is no number: such a run has diverged, whatever it predicts.
    """
    part = "validation" if metric.startswith("validation_") else "test"
    name = metric.removeprefix("validation_")
    kind = {"accuracy": "evaluation", "loss": "evaluation", "roc_auc": "auc", "pr_auc": "auc"}.get(name, name)
    rows = RunFolder(path).rows()

    def first(kind: str, name: str) -> dict[int, float]:
        return {r["round"]: r[name] for r in reversed(rows[kind].to_pylist()) if r["part"] == part}

    losses = first("evaluation", "loss")
    return {
        updates: value if math.isfinite(losses.get(updates, math.nan)) else math.nan
        for updates, value in first(kind, name).items()
    }


def figure(value: float | None) -> str:
    """Return a metric in words."""
    return "no result" if value is None else f"{value:.4g}"
