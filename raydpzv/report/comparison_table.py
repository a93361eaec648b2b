"""Runs side by side: the rows that a comparison keeps, and the one table they fold into.

A line of the table is a method (its label) at one ε, the one its noise is calibrated to (null:
none, or noise by a multiplier that the label names); its runs differ in their seeds. A run has
failed if its outcome is one of FAILURES. Failed runs stay in every median and range:

- with accuracy 0 (final, best, at equal budgets) and other scores of 0 where the run ends without a
  model, since it predicts nothing;
- as never having reached a target, whatever they had reached before, since a model that predicts
  one class has that class' share.

A run that was not made ("not run") is in no number but `not_run`. A median over nothing is NaN,
never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raydpzv.notebook import table_html
from raydpzv.report.comparison_lines import (
    FAILURES,
    Evaluations,
    Floats,
    Line,
    ends_without_model,
    final_accuracy,
    known,
    lines,
    score_name,
)

RUNS = pa.schema(
    [
        ("label", pa.string()),
        ("method", pa.string()),
        ("control", pa.bool_()),
        ("epsilon", pa.float64()),  # that the noise is calibrated to; null: to none
        ("multiplier", pa.float64()),  # of the noise, given in place of an ε; null: none is
        ("sigma", pa.float64()),  # the noise's deviation, given in place of an ε; null: none is
        ("seed", pa.int64()),
        ("run", pa.string()),  # folder below runs/
        ("status", pa.string()),  # "done", "stopped", "failed" or "missing"
        ("outcome", pa.string()),  # "ok", "not run" or one of FAILURES
        ("reason", pa.string()),  # "" if ok
        ("accuracy", pa.float64()),  # of the last evaluation; NaN where there is none
        (
            "best_accuracy",
            pa.float64(),
        ),  # of the model that validation rows choose; NaN without them
        ("validation_accuracy", pa.float64()),  # of that model; NaN without them
        (
            "peak_accuracy",
            pa.float64(),
        ),  # the highest of any evaluation, chosen on test rows: shows a fall
        ("roc_auc", pa.float64()),  # of the last evaluation; NaN where there are no two classes
        ("pr_auc", pa.float64()),
        ("balanced_accuracy", pa.float64()),  # of two classes, likewise
        ("concordance", pa.float64()),  # of survival times, whose accuracies are NaN
        ("loss", pa.float64()),
        ("top_share", pa.float64()),
        ("largest_class_share", pa.float64()),  # of the held-out rows
        ("control_accuracy", pa.float64()),  # of frozen clients with the same seed; NaN without one
        ("updates", pa.int64()),
        ("bytes_up", pa.int64()),
        ("bytes_down", pa.int64()),
        ("vector_length", pa.float64()),  # numbers sent both ways, per client; NaN in vertical runs
        ("simulated_seconds", pa.float64()),
        ("seconds", pa.float64()),
        ("staleness", pa.float64()),  # mean
        ("private", pa.bool_()),
        ("verdict", pa.string()),
    ]
)

CURVES = pa.schema(
    [
        ("label", pa.string()),
        ("epsilon", pa.float64()),
        ("seed", pa.int64()),
        ("update", pa.int64()),
        ("time", pa.float64()),  # seconds of the run's clock
        ("bytes_up", pa.int64()),  # up to and including that update
        ("bytes_down", pa.int64()),
        ("vector_length", pa.float64()),  # null where runs have NaN
        ("accuracy", pa.float64()),
        ("loss", pa.float64()),
        ("validation_accuracy", pa.float64()),  # null without validation rows
    ]
)

CLAIMS = pa.schema(
    [
        ("label", pa.string()),
        ("epsilon", pa.float64()),
        ("seed", pa.int64()),
        ("adversary", pa.string()),
        ("claimed", pa.float64()),  # the claim's own ε; infinity bounds nothing
        ("delta", pa.float64()),
        ("mechanism", pa.string()),
        ("sensitivity", pa.float64()),
        ("relation", pa.string()),
        ("accountant", pa.string()),
        ("holds", pa.bool_()),
        ("note", pa.string()),
        ("scope", pa.string()),
        ("premise", pa.string()),  # what the user states to be public
        (
            "guess",
            pa.float64(),
        ),  # how often an attacker is right at most; null where no ε is proved
    ]
)


class Compared(NamedTuple):
    """The rows of a comparison: RUNS, CURVES and CLAIMS."""

    runs: pa.Table
    curves: pa.Table
    claims: pa.Table

    def _folded(self) -> tuple[list[dict[str, Any]], str]:
        """Return a row for each method and ε, and the score that they are judged by."""
        view = ComparisonView(self)
        score = score_name(view.lines)
        if any(
            f"{score}_median" not in row for row in view.rows
        ):  # they have no column of the loss
            score = next(iter(view.measures), "accuracy")
        return view.rows, score

    def __repr__(self) -> str:
        folded, score = self._folded()
        each = ", ".join(f"{row['label']} {row[f'{score}_median']:.3f}" for row in folded)
        return f"<comparison of {self.runs.num_rows} runs, median test {score}: {each}>"

    def _repr_html_(self) -> str:
        folded, score = self._folded()
        rows = [
            (
                row["label"],
                "none" if row["epsilon"] is None else f"{row['epsilon']:g}",
                f"{row['runs']}{', ' + row['why'] if row['why'] else ''}",
                "{:.3f} ({:.3f} to {:.3f})".format(*(row[f"{score}_{end}"] for end in _SPREAD)),
            )
            for row in folded
        ]
        heads = ("method", "noise calibrated to ε", "runs", f"test {score}: median (min to max)")
        return table_html("comparison", rows, heads)


_SPREAD = ("median", "min", "max")


def target_name(target: float) -> str:
    """Return a target as the names of columns have it: 0.9."""
    return f"{target:.10g}"


@dataclass(frozen=True)
class ComparisonView:
    """A comparison as its tables, pictures and page read it; targets: test accuracies, shares of
    1.
    """

    compared: Compared
    targets: Sequence[float] = ()

    @cached_property
    def lines(self) -> list[Line]:
        """The lines of the table."""
        return lines(self.compared.runs, self.compared.curves)

    @cached_property
    def measures(self) -> list[str]:
        """The names of further measures that runs have: of numbers, and the user's."""
        return [name for name in self.compared.runs.column_names if name not in RUNS.names]

    @cached_property
    def bytes_at(self) -> int:
        """The most bytes, up and down together, that every run covers; 0 where nothing travels.

        Runs that send nothing cover any number. Those not run are left out, and those that broke
        off without a model, which count with accuracy 0 at any budget.
        """
        return int(min((c.bytes[-1] for c in self._moving if c.bytes[-1] > 0), default=0))

    @cached_property
    def seconds_at(self) -> float:
        """The most seconds of the run's clock that every run covers, as of bytes; NaN where no time
        passes.
        """
        return float(min((c.time[-1] for c in self._moving if c.time[-1] > 0), default=math.nan))

    @cached_property
    def _moving(self) -> list[Evaluations]:
        """The curves over which an equal budget is taken: those with an evaluation after update
        0.
        """
        found = [c for line in self.lines for c in line.curves if not c.broken and c.scored]
        return [c for c in found if len(c.update) and c.update[-1] > 0]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per line: medians over its seeds and, for accuracies and costs, their ranges.

        Accuracies are shares of 1. `updates`, bytes, seconds (simulated) and staleness are medians
        over the runs that left a summary. A cost of a target is infinite for a run that never
        reached it; `slower_T` is the median time to T as a multiple of the quickest line's that is
        no control, NaN where that one took no time.
        """
        found = [_row(line, self) for line in self.lines]
        for name in map(target_name, dict.fromkeys(self.targets)):
            medians = [row[f"seconds_{name}_median"] for row in found if not row["control"]]
            quickest = min((m for m in medians if not math.isnan(m)), default=math.nan)
            for row in found:
                compared = math.isfinite(quickest) and quickest > 0
                row[f"slower_{name}"] = (
                    row[f"seconds_{name}_median"] / quickest if compared else math.nan
                )
        return found

    @cached_property
    def table(self) -> pa.Table:
        """The rows as a table."""
        names = list(
            self.rows[0] if self.rows else _row(Line("", None, (), (), "", False, 0), self)
        )
        kinds = [
            _TYPES.get("reached" if n.startswith("reached_") else n, pa.float64()) for n in names
        ]
        return pa.Table.from_pylist(
            self.rows, schema=pa.schema(list(zip(names, kinds, strict=True)))
        )


_TYPES = {
    **dict.fromkeys(("label", "method", "why", "warnings"), pa.string()),
    **dict.fromkeys(("control", "private"), pa.bool_()),
    **dict.fromkeys(("runs", "failures", "not_run", "reached"), pa.int64()),
}
"""Types of the table's columns that are no numbers, or whole ones."""


def _row(line: Line, view: ComparisonView) -> dict[str, Any]:
    runs, curves, sent, passed = line.runs, line.curves, view.bytes_at, view.seconds_at
    left = [run for run in runs if run["status"] != "missing"]
    row: dict[str, Any] = {
        "label": line.label,
        "method": line.method,
        "control": line.control,
        "epsilon": line.epsilon,
        "runs": len(runs),
        "failures": len(line.failed),
        "not_run": line.not_run,
        "why": line.why,
        **_spread("accuracy", [final_accuracy(run) for run in runs]),
        **_spread("best", _of_model(runs, "best_accuracy")),
    }
    for name in ("roc_auc", "pr_auc", "balanced_accuracy", "concordance"):
        row |= _spread(name, _of_model(runs, name))
    for name in (
        "updates",
        "bytes_up",
        "bytes_down",
        "vector_length",
        "simulated_seconds",
        "staleness",
    ):
        row[f"{name.removeprefix('simulated_')}_median"] = _median([run[name] for run in left])
    row |= _spread("equal_bytes", [_accuracy_at(c, c.bytes, sent) for c in curves] if sent else [])
    timed = curves if not math.isnan(passed) else ()
    row |= _spread("equal_seconds", [_accuracy_at(c, c.time, passed) for c in timed])
    row["private"] = bool(runs) and all(run["private"] for run in runs)
    row["warnings"] = "; ".join(line.warnings)
    for target in dict.fromkeys(view.targets):
        row |= _cost(line, target)
    ended = [run for run in runs if not ends_without_model(run)]  # a measure has no worst value
    for name in view.measures:
        row |= _spread(name, [known(run[name]) for run in ended])
    return row


def _of_model(runs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return a score of each run's model; 0 where a run ends without one."""
    return [0.0 if ends_without_model(run) else known(run[name]) for run in runs]


def _accuracy_at(curve: Evaluations, spent: Floats, budget: float) -> float:
    """Return the accuracy of the last evaluation within a budget; NaN if the first one is beyond
    it.
    """
    if curve.broken:
        return 0.0
    within = np.flatnonzero(spent <= budget)
    if not len(within) or not curve.scored:
        return math.nan
    return float(np.nan_to_num(curve.accuracy[within[-1]]))


def _cost(line: Line, target: float) -> dict[str, Any]:
    """Return the columns of one target."""
    costs: dict[str, list[float]] = {
        name: [] for name in ("update", "time", "bytes_up", "bytes_down", "bytes")
    }
    for run, curve in zip(line.runs, line.curves, strict=True):
        at = np.flatnonzero(curve.accuracy >= target)
        reached = len(at) > 0 and run["outcome"] not in FAILURES
        for name, values in costs.items():
            values.append(float(getattr(curve, name)[at[0]]) if reached else math.inf)
    name = target_name(target)
    return {
        f"reached_{name}": int(np.isfinite(costs["update"]).sum()),
        f"updates_{name}_median": _median(costs["update"]),
        **_spread(f"seconds_{name}", costs["time"]),
        f"bytes_up_{name}_median": _median(costs["bytes_up"]),
        f"bytes_down_{name}_median": _median(costs["bytes_down"]),
        **_spread(f"bytes_{name}", costs["bytes"]),
        f"slower_{name}": math.nan,
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    found = (math.nan,) * 3
    if values and not any(
        math.isnan(v) for v in values
    ):  # one unknown run leaves the range unknown
        found = (_median(values), min(values), max(values))
    return {f"{name}_{end}": float(value) for end, value in zip(_SPREAD, found, strict=True)}


def _median(values: Sequence[float | None]) -> float:
    found = [
        v for v in values if v is not None and not math.isnan(v)
    ]  # null: a measure that the run lacks
    return float(np.median(found)) if found else math.nan
