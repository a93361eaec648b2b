"""Trials that pause after so many updates, to be compared, and resume from their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from raydpzv.compare.run_comparison import finished
from raydpzv.config.scenario import AnyScenario
from raydpzv.experiment.prepare import unrecorded
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_plan import Trial


def without_checkpoint(spec: AnyScenario) -> str:
    """Return why runs of a scenario leave no checkpoint to resume from, or nothing."""
    if spec.clock.kind == "wall":
        return "real time cannot stand still"
    if what := unrecorded(spec):
        return f"{what} comes from the operating system and is not kept"
    return ""


def ranked(values: Mapping[int, float], *, higher: bool) -> list[int]:
    """Return trials, the best first; values: metrics by trial, NaN where there is none, which is worse than all others.

    Of equal ones that of the lower number is first.
    """
    return sorted(values, key=lambda n: (math.isnan(values[n]), -values[n] if higher else values[n], n))


def has_reached(trial: Trial, path: Path, until: int | None) -> bool:
    """Return whether a run has made so many updates (None: reached its end), or is over before."""
    if finished(trial.planned(), path):
        return True
    if until is None or not RunFolder.begun(path):
        return False
    checkpoint = RunFolder(path).checkpoint()
    return checkpoint is not None and checkpoint.round >= until and _evaluated(path, until)


def is_paused_at(trial: Trial, path: Path, until: int | None) -> bool:
    """Return whether a run is paused after so many updates, and no process has anything left to write of it.

    A kill may have come before the summary that says so.
    """
    if not has_reached(trial, path, until):
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
        if kind not in rows:  # a measure of its own name
            found = (r for r in reversed(rows["measure"].to_pylist()) if r["name"] == name)
            return {r["round"]: r["value"] for r in found if r["part"] == part}
        return {r["round"]: r[name] for r in reversed(rows[kind].to_pylist()) if r["part"] == part}

    losses = first("evaluation", "loss")
    return {
        updates: value if math.isfinite(losses.get(updates, math.nan)) else math.nan
        for updates, value in first(kind, name).items()
    }


def figure(value: float | None) -> str:
    """Return a metric in words."""
    return "no result" if value is None else f"{value:.4g}"
