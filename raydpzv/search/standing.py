"""Trials that stand after so many updates, to be held against one another, and go on from their checkpoints."""

from __future__ import annotations

import math
from pathlib import Path

from raydpzv.compare.run_comparison import finished
from raydpzv.config.scenario import AnyScenario, VerticalScenario
from raydpzv.experiment.prepare import unrecorded
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_plan import Trial


def why_not_standing(spec: AnyScenario, scheduler: str) -> str:
    """Return why a scheduler's trials of a scenario cannot stand and go on, or nothing."""
    if spec.clock.kind == "wall":
        return (
            f"clock.kind: --scheduler {scheduler} goes on from checkpoints after so many updates, and real time does "
            'not stand still there; use "virtual"'
        )
    if isinstance(spec, VerticalScenario) and (what := unrecorded(spec)):
        return (
            f"--scheduler {scheduler}: goes on from checkpoints, and these runs have none, since {what} comes from the "
            "operating system and is not kept; use asha"
        )
    return ""


def stands_after(trial: Trial, path: Path, until: int | None) -> bool:
    """Tell whether a run has come to where it stands after so many updates (None: to its end), or is over before."""
    if finished(trial.planned(), path):
        return True
    if until is None or not RunFolder.begun(path):
        return False
    checkpoint = RunFolder(path).checkpoint()
    return checkpoint is not None and checkpoint.round >= until and _evaluated(path, until)


def _evaluated(path: Path, updates: int) -> bool:
    return updates in RunFolder(path).rows()["evaluation"]["round"].to_pylist()


def metric_at(path: Path, metric: str, updates: int) -> float:
    """Return a metric of a run at its first evaluation after so many updates.

    NaN where it was not measured, or where the loss is no number then: such a run has diverged, whatever it predicts.
    """
    part = "validation" if metric.startswith("validation_") else "test"
    name = metric.removeprefix("validation_")
    kind = {"accuracy": "evaluation", "loss": "evaluation", "roc_auc": "auc", "pr_auc": "auc"}.get(name, name)
    rows = RunFolder(path).rows()

    def found(kind: str, name: str) -> float:
        at = (r[name] for r in rows[kind].to_pylist() if r["round"] == updates and r["part"] == part)
        return next(at, math.nan)

    return found(kind, name) if math.isfinite(found("evaluation", "loss")) else math.nan


def figure(value: float | None) -> str:
    """Return a metric in words."""
    return "no result" if value is None else f"{value:.4g}"
