"""The lines of a comparison: a method at one ε, with its runs and their curves, and their band over
the seeds.

A line is a method (its label) at one ε, the one its noise is calibrated to (None: no noise); its
runs differ in their seeds. Tables have the schemas of `raydpzv.report.comparison_table`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydpzv.experiment.diagnostics import collapsed, fallen, not_above
from raydpzv.grouping import grouped
from raydpzv.report import text

EARLY = "ended early"
FAILURES = ("diverged", "constant prediction", "one class' share", EARLY, "failed")
"""Outcomes that count as failures."""
NOT_RUN = "not run"
CALIBRATED = "calibrated to ε"
WARNINGS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "not above frozen clients (control)": lambda run: not_above(
        known(run["accuracy"]), known(run["control_accuracy"])
    ),
    "collapsed: nearly all held-out rows are predicted as one class": lambda run: collapsed(
        known(run["top_share"]), known(run["largest_class_share"])
    ),
    "fallen far below its own peak accuracy": lambda run: fallen(
        known(run["peak_accuracy"]), known(run["accuracy"])
    ),
}
"""What is suspicious in a run (a row of RUNS) that did not fail."""
_NO_FLOATS = np.zeros(0)
_FIELDS = ("update", "time", "bytes_up", "bytes_down", "vector_length", "accuracy")
_NO_SCORES = ("label", "epsilon", "seed", *_FIELDS, "validation_accuracy")

Key = tuple[str, float | None, int]
"""Label, ε and seed: what tells runs apart."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one run, in order of updates; bytes: both directions.

    scores: the loss and the measures, by name; broken: the run ends without a model.
    """

    update: Floats
    time: Floats
    bytes_up: Floats
    bytes_down: Floats
    vector_length: Floats
    accuracy: Floats
    scores: Mapping[str, Floats]
    broken: bool

    @property
    def scored(self) -> bool:
        """Whether there are accuracies; survival times have none."""
        return bool(np.isfinite(self.accuracy).any())

    @property
    def bytes(self) -> Floats:
        """Bytes up and down together."""
        return self.bytes_up + self.bytes_down


@dataclass(frozen=True)
class Line:
    """A line of the table: its runs (rows of RUNS) with their curves, both in order; without those
    not run.
    """

    label: str
    epsilon: float | None
    runs: tuple[Mapping[str, Any], ...]
    curves: tuple[Evaluations, ...]
    method: str
    control: bool
    not_run: int

    @property
    def noisy(self) -> bool:
        """Whether noise was asked for."""
        return self.epsilon is not None or any(
            run.get("multiplier") or run.get("sigma") for run in self.runs
        )

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        """The runs that failed."""
        return [run for run in self.runs if run["outcome"] in FAILURES]

    @property
    def warnings(self) -> list[str]:
        """What is suspicious in its runs that did not fail, each with its seeds; a control's are
        not compared to it.
        """
        whole = [run for run in self.runs if run["outcome"] not in FAILURES]
        return [
            f"{warning} ({len(seeds)} of {len(self.runs)} runs: seed {', '.join(map(str, seeds))})"
            for warning, holds in WARNINGS.items()
            if (seeds := [run["seed"] for run in whole if holds(run)])
        ]

    @property
    def why(self) -> str:
        """How its runs failed, the most frequent outcome first; empty if none did."""
        counts = Counter(str(run["outcome"]) for run in self.failed)
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


@dataclass(frozen=True)
class Band:
    """Accuracy of several runs at common updates: x, and the accuracy's median, minimum and
    maximum.
    """

    x: Floats
    median: Floats
    low: Floats
    high: Floats


def as_meant(row: Mapping[str, Any], *outcomes: str) -> bool:
    """Return whether such outcomes are no failure: the control whose clients learn nothing may
    predict one class.

    If its loss has blown up, its outcome is "diverged", which is a failure.
    """
    return row["method"] == "frozen" and set(outcomes) <= {
        "constant prediction",
        "one class' share",
    }


def fails(run: Mapping[str, Any]) -> bool:
    """Return whether a run (a row of RUNS) failed, other than as its control may."""
    return run["outcome"] in FAILURES and not as_meant(run, run["outcome"])


def lines(runs: pa.Table, curves: pa.Table) -> list[Line]:
    """Return the lines, in order of first appearance."""
    found = grouped(((run["label"], run["epsilon"]), run) for run in runs.to_pylist())
    keys = zip(*(curves[n].to_pylist() for n in ("label", "epsilon", "seed")), strict=True)
    places = grouped((key, i) for i, key in enumerate(keys))
    names = [name for name in curves.column_names if name not in _NO_SCORES]
    columns = {name: curves[name].to_numpy().astype(np.float64) for name in (*_FIELDS, *names)}

    def evaluations(run: Mapping[str, Any]) -> Evaluations:
        own = np.array(places.get((run["label"], run["epsilon"], run["seed"]), ()), np.int64)
        own = own[np.argsort(columns["update"][own], kind="stable")]
        scores = {name: columns[name][own] for name in names} if len(own) else {}
        return Evaluations(
            **{n: columns[n][own] for n in _FIELDS}, scores=scores, broken=ends_without_model(run)
        )

    def line(label: str, epsilon: float | None, group: Sequence[Mapping[str, Any]]) -> Line:
        made = tuple(run for run in group if run["outcome"] != NOT_RUN)
        return Line(
            label,
            epsilon,
            made,
            tuple(map(evaluations, made)),
            group[0]["method"],
            group[0]["control"],
            len(group) - len(made),
        )

    return [line(*key, group) for key, group in found.items()]


def calibrated(epsilon: float | None) -> str:
    """Return the ε that noise is calibrated to; "none" without noise."""
    return "none" if epsilon is None else text.number(epsilon)


def named(label: str, epsilon: float | None) -> str:
    """Return a line's name in a sentence."""
    return label if epsilon is None else f"{label}, {CALIBRATED} = {calibrated(epsilon)}"


def known(value: float | None) -> float:
    """Return a number of RUNS; a null, of a run without that measure, is NaN."""
    return math.nan if value is None else value


def final_accuracy(run: Mapping[str, Any]) -> float:
    """Return the accuracy that a run counts with: 0 if it ends without a model."""
    return 0.0 if ends_without_model(run) else float(run["accuracy"])


def ends_without_model(run: Mapping[str, Any]) -> bool:
    """Return whether a run ends without a model: an error ended it, or it has no score that is a
    number.
    """
    ended = run["outcome"] in FAILURES and run["status"] in ("failed", "missing")
    names = ("accuracy", "concordance", *(("loss",) if run["outcome"] == "ok" else ()))
    unscored = all(math.isnan(known(run.get(name))) for name in names)
    return ended or run["outcome"] == "failed" or unscored


def score_name(lines: Sequence[Line]) -> str:
    """Return what runs are judged by: accuracy; of times concordance; of numbers rmse, or else the
    loss.
    """
    runs = [run for line in lines for run in line.runs if not ends_without_model(run)]
    ordered = ("accuracy", "concordance", "rmse", "loss")
    return next(
        (n for n in ordered if any(math.isfinite(known(run.get(n))) for run in runs)), "accuracy"
    )


def judged(lines: Sequence[Line]) -> tuple[str, Sequence[Line]]:
    """Return what runs are judged by, and lines whose accuracies are that: over the runs that end
    with a model.
    """
    score = score_name(lines)
    if score == "accuracy":
        return score, lines
    found = []
    for line in lines:
        both = zip(line.runs, line.curves, strict=True)
        pairs = [(r, c) for r, c in both if score in c.scores and not c.broken]
        runs = tuple({**run, "accuracy": run[score]} for run, _ in pairs)
        curves = tuple(replace(curve, accuracy=curve.scores[score]) for _, curve in pairs)
        found.append(replace(line, runs=runs, curves=curves))
    return score, found


def band(curves: Sequence[Evaluations], by: str) -> Band:
    """Return median and range of the accuracy at every update at which a run was evaluated.

    by: the field of a curve that is x, of which the median is taken too. A run keeps its last
    accuracy after its end, or 0 if it broke off; updates before the first evaluation of any run are
    left out.
    """
    ran = [c for c in curves if len(c.update)]
    if not any(c.scored for c in ran):
        return Band(_NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS)
    grid = np.unique(np.concatenate([c.update for c in ran]))
    grid = grid[grid >= max(c.update[0] for c in ran)]
    accuracy = np.stack([_at_updates(c, np.nan_to_num(c.accuracy), grid, 0.0) for c in curves])
    x = np.nanmedian(
        np.stack([_at_updates(c, getattr(c, by), grid, math.nan) for c in ran]), axis=0
    )
    # where a run broke off, the median of x is over fewer runs and could step back
    return Band(
        np.maximum.accumulate(x),
        np.median(accuracy, axis=0),
        accuracy.min(axis=0),
        accuracy.max(axis=0),
    )


def _at_updates(curve: Evaluations, values: Floats, grid: Floats, after: float) -> Floats:
    """Return the last value at or before each update of the grid; `after` the end of a run that
    broke off.
    """
    place = np.searchsorted(curve.update, grid, "right") - 1
    found: Floats = np.append(values, after)[place]
    if curve.broken and len(curve.update):
        found[grid > curve.update[-1]] = after
    return found
