"""A comparison in words: its tables of accuracies and costs, and sentences on failures and targets.

The ε beside a method is what its noise is calibrated to, no guarantee: the privacy table alone says
what is proved. A row is one of `raydpzv.report.comparison_table.ComparisonView`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.text import Text

from raydpzv.records.summary_fields import shown
from raydpzv.report import text
from raydpzv.report.comparison_lines import CALIBRATED, NOT_RUN, as_meant, calibrated, fails, named
from raydpzv.report.comparison_privacy import privacy_line
from raydpzv.report.comparison_table import ComparisonView, target_name
from raydpzv.report.latex import latex
from raydpzv.report.table import Column, Grid, Mark, grid

ACCURACY_NOTE = (
    "Medians over the seeds, and from the lowest to the highest. A failed run is never left out: "
    "it counts with its accuracy, or with 0 where it ends without a model. Equal bytes and equal "
    "seconds: accuracy of the last evaluation within what every run covers, up and down together. "
    "Best by validation: test accuracy of each run's model with the highest validation accuracy. "
    "Seconds are simulated. An update is one upload: a synchronous step of M clients counts as M."
)
TARGET_NOTE = (
    "Up to the first evaluation at or above the target. A run that never reached it costs "
    "infinitely much in medians; a failed run has reached nothing. Time: the median as a multiple "
    "of the quickest method's that is no control."
)
AIM = "aim: ε"
_TITLE = "median over the seeds (lowest to highest)"
_AIM = f"; {AIM} is what noise is calibrated to by each method's own argument, not what is proved"
_MOST_WARNINGS = 3
_BELOW, _BESIDE = "\n{} to {}", " ({} to {})"
"""How a range follows its median."""

Row = Mapping[str, Any]
Show = Callable[[float], str]


def paper_table(view: ComparisonView) -> str:
    """Return the summary's table as LaTeX: medians over the seeds, with their ranges."""
    found = summary_grid(view)
    title = f"Test scores: {_TITLE}{_AIM if AIM in found.heads else ''}."
    return latex(found, title, failures_line(view.compared.runs))


def summary_report(view: ComparisonView) -> Group:
    """Return a comparison for one screen of 120 columns: a table, and a line each for failures,
    targets, privacy.
    """
    runs, _, claims = view.compared
    found, failed, warnings = summary_grid(view), failures_line(runs), warning_lines(view)
    score = next((name for name in ("concordance", "accuracy") if name in found.heads), "scores")
    hidden = len(warnings) - _MOST_WARNINGS
    parts: list[RenderableType] = [
        found.console(
            f"Test {score}: {_TITLE}{constant_text(runs, '; {}')}{_AIM if AIM in found.heads else ''}",
            gap=0,
            once=True,
        ),
        Text(failed, "bold red" if "FAILED" in failed else ""),
        *(
            Text(target_line(view.rows, t))
            for t in dict.fromkeys(view.targets)
            if score == "accuracy"
        ),
        Text(privacy_line(claims, runs)),
        *(Text(line, "yellow") for line in warnings[:_MOST_WARNINGS]),
        *([Text(f"{hidden} more warnings: on the page", "yellow")] if hidden > 0 else []),
    ]
    return Group(*parts)


def constant_text(runs: pa.Table, form: str) -> str:
    """Return in a form, such as "; {}", what one class everywhere reaches; "" without classes."""
    shares = [
        share for share in runs.column("largest_class_share").to_pylist() if text.known(share)
    ]
    if not shares:
        return ""
    ends = dict.fromkeys((text.percent(min(shares)), text.percent(max(shares))))
    return form.format(f"a constant prediction reaches {' to '.join(ends)}")


_SCORES = (
    ("best by validation", "best", text.percent),
    ("ROC AUC", "roc_auc", text.short),
    ("PR AUC", "pr_auc", text.short),
    ("balanced accuracy", "balanced_accuracy", text.percent),
    ("concordance", "concordance", text.short),
)
"""Scores beside accuracy: titles, names and how they are shown."""


def summary_grid(view: ComparisonView) -> Grid:
    """Return one row of one line for each method at each ε; columns that would say nothing are left
    out.
    """
    rows = view.rows
    columns = [_METHOD]
    if any(row["epsilon"] is not None for row in rows):
        columns.append(Column(AIM, lambda r: r["epsilon"], calibrated))
    columns.append(_RUNS)
    if _scored(rows, "concordance"):
        columns.append(_spread("concordance", "concordance", text.short, _BESIDE))
    elif not all(math.isnan(row["accuracy_median"]) for row in rows) or not view.measures:
        columns.append(_spread("accuracy", "accuracy", text.percent, _BESIDE))
    if _scored(rows, "roc_auc"):
        columns.append(_median("ROC AUC", "roc_auc", text.short))
    columns += [_spread(name, name, text.short, _BESIDE) for name in view.measures]
    columns += _budgets(view, lambda title, name: _median(title, name, text.percent))
    columns += [
        _median("bytes up", "bytes_up", text.size),
        _median("bytes down", "bytes_down", text.size),
    ]
    if not all(math.isnan(row["vector_length_median"]) for row in rows):
        columns.append(_median("numbers per client", "vector_length", text.number))
    if not math.isnan(view.seconds_at):
        columns.append(_median("simulated", "seconds", seconds_text))
    return grid(columns, rows)


def page_grid(view: ComparisonView) -> Grid:
    """Return one row of one line for each line, with its cost of each target."""
    columns = [_METHOD, Column("ε aimed at", lambda r: r["epsilon"], calibrated, value=_epsilon)]
    columns += [
        Column("runs", lambda r: r["runs"]),
        Column("failed", _short, align="left", mark=_failed),
    ]
    columns.append(_spread("accuracy", "accuracy", text.percent, _BESIDE))
    columns += [_spread(*score, _BESIDE) for score in _SCORES if _scored(view.rows, score[1])]
    columns += [_spread(name, name, text.short, _BESIDE) for name in view.measures]
    for target in dict.fromkeys(view.targets):
        name, title = target_name(target), f"bytes to {100 * target:g} %"
        if any(row[f"reached_{name}"] for row in view.rows):
            columns.append(_spread(title, f"bytes_{name}", partial(_cost, show=text.size), _BESIDE))
    columns += _budgets(view, lambda title, name: _spread(title, name, text.percent, _BESIDE))
    columns += [
        _median("bytes up", "bytes_up", text.size),
        _median("bytes down", "bytes_down", text.size),
    ]
    columns.append(_median("updates", "updates", text.number))
    if not math.isnan(view.seconds_at):
        columns.append(_median("seconds", "seconds", seconds_text))
    return grid([*columns, _median("staleness", "staleness", text.short)], view.rows)


def _budgets(view: ComparisonView, column: Callable[[str, str], Column[Row]]) -> list[Column[Row]]:
    """Return columns of the accuracy at the bytes and at the seconds that every run covers."""
    found = [(text.size(view.bytes_at), "equal_bytes")] if view.bytes_at else []
    found += (
        [] if math.isnan(view.seconds_at) else [(seconds_text(view.seconds_at), "equal_seconds")]
    )
    return [column(f"at {budget}", name) for budget, name in found]


def run_rows(runs: pa.Table, pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what a page says of each run: its line, its end in a word, its accuracy, and where its
    page is.
    """
    found = runs.to_pylist()
    order = list(dict.fromkeys((row["label"], row["epsilon"]) for row in found))
    return [
        {
            "name": named(row["label"], row["epsilon"]),
            "line": order.index((row["label"], row["epsilon"])),
            "seed": row["seed"],
            "outcome": ("control: " if as_meant(row, row["outcome"]) else "")
            + short_outcome(row["outcome"]),
            "failed": fails(row),
            "accuracy": text.percent(row["accuracy"]),
            "folder": f"runs/{row['run']}",
            "page": pages.get(row["run"], ""),
        }
        for row in found
    ]


_SHORT = {
    "constant prediction": "constant",
    "one class' share": "one class",
    "ended early": "early",
}


def short_outcome(outcome: str) -> str:
    """Return how a run ended in a word or two."""
    return _SHORT.get(outcome, outcome)


def _short(row: Row) -> str:
    """Return how the runs of a line failed, in short words, and how many were not made."""
    failed, meant = _failures(row)
    said = [f"{count} {short_outcome(kind)}" for kind, count in failed.items()]
    said += [f"{row['not_run']} not run"] if row["not_run"] else []
    return ", ".join([*said, *([f"control: {meant} constant"] if meant else [])])


def _epsilon(row: Row) -> float:
    return math.inf if row["epsilon"] is None else float(row["epsilon"])


def target_grid(rows: Sequence[Row], target: float) -> Grid:
    """Return what it took each line to reach an accuracy; no rows if no run of any line did."""
    name = target_name(target)
    columns: list[Column[Row]] = [
        _METHOD,
        Column(CALIBRATED, lambda r: r["epsilon"], calibrated),
        Column("reached", lambda r: f"{r[f'reached_{name}']} of {r['runs']}"),
        _median("updates", f"updates_{name}", partial(_cost, show="{:,.0f}".format)),
        _spread("bytes up and down", f"bytes_{name}", partial(_cost, show=text.size)),
    ]
    seconds = [row[f"seconds_{name}_{end}"] for row in rows for end in ("min", "max")]
    if any(math.isfinite(v) and v > 0 for v in seconds):
        columns.append(_spread("seconds", f"seconds_{name}", partial(_cost, show=seconds_text)))
        columns.append(Column("time, × the quickest", lambda r: r[f"slower_{name}"], _times))
    return grid(columns, rows if any(row[f"reached_{name}"] for row in rows) else [])


def _failures(row: Row) -> tuple[dict[str, int], int]:
    """Return how many runs failed by how, the most frequent first; and how many predict one class,
    as a control may.
    """
    parts = (one.partition(" ") for one in row["why"].split(", ") if one)
    counts = {kind: int(count) for count, _, kind in parts}
    failed = {kind: count for kind, count in counts.items() if not as_meant(row, kind)}
    return failed, sum(counts.values()) - sum(failed.values())


def _failed(row: Row) -> Mark:
    return "bad" if _failures(row)[0] else ""


_METHOD: Column[Row] = Column("method", lambda r: r["label"], align="left")


def _made(row: Row) -> str:
    said, (failed, meant) = f"{row['runs']}", _failures(row)
    if failed:
        said += f", {sum(failed.values())} FAILED"
    if meant:
        said += f" ({meant} predict{'s' if meant == 1 else ''} one class)"
    return said + (f", {row['not_run']} not run" if row["not_run"] else "")


_RUNS: Column[Row] = Column("runs", _made, align="left", mark=_failed)


def _median(title: str, name: str, show: Show) -> Column[Row]:
    return Column(title, lambda r: r[f"{name}_median"], show, value=lambda r: r[f"{name}_median"])


def _spread(title: str, name: str, show: Show, ends: str = _BELOW) -> Column[Row]:
    """Return a column of medians with their ranges, if they have one; ends: how a range follows."""

    def get(row: Row) -> str:
        median, low, high = (row[f"{name}_{end}"] for end in ("median", "min", "max"))
        if math.isnan(median) or low == high:
            return show(median)
        words = [show(value) for value in (median, low, high)]
        # the median has the unit
        if len({word.rpartition(" ")[1:] for word in words}) == 1 and " " in words[0]:
            words[1:] = [word.rpartition(" ")[0] for word in words[1:]]
        return words[0] + ends.format(*words[1:])

    return Column(title, get, value=lambda r: r[f"{name}_median"])


def _scored(rows: Sequence[Row], name: str) -> bool:
    """Return whether any line has such a score: a run without a model has 0 of each, asked for or
    not.
    """
    return any(row[f"{name}_median"] > 0 for row in rows)


def _cost(value: float, show: Show) -> str:
    if math.isnan(value):
        return text.NONE
    return "never" if math.isinf(value) else show(value)


def _times(value: float) -> str:
    return text.NONE if not math.isfinite(value) else f"{value:.3g} ×"


def seconds_text(value: float) -> str:
    """Return a median duration in seconds; a dash where there is none."""
    return text.NONE if math.isnan(value) else f"{text.number(value)} s"


def target_title(target: float) -> str:
    """Return a target in words."""
    return f"test accuracy {100 * target:g} %"


def target_line(rows: Sequence[Row], target: float) -> str:
    """Return which lines reached an accuracy, and the least that half of a line's runs took to
    reach it.
    """
    name = target_name(target)
    reached = sum(row[f"reached_{name}"] > 0 for row in rows)
    title = target_title(target)
    if not reached:
        return f"No run reached {title}."
    costs: tuple[tuple[str, str, Show], ...] = (
        ("fewest updates", f"updates_{name}_median", "{:,.0f}".format),
        ("fewest bytes", f"bytes_{name}_median", text.size),
        ("least simulated time", f"seconds_{name}_median", seconds_text),
    )
    least = [said for cost in costs if (said := _least(rows, *cost))]
    said = ", ".join(least) if least else "none of them with half of its runs"
    return f"Reached {title}: {reached} of {len(rows)} lines; {said}"


def _least(rows: Sequence[Row], kind: str, name: str, show: Show) -> str:
    """Return the row with the least cost in words, "" if none is finite or nothing was spent."""
    best = min(rows, key=lambda row: math.inf if math.isnan(row[name]) else row[name])
    if not 0 < best[name] < math.inf:
        return ""
    return f"{kind} {named(best['label'], best['epsilon'])} ({show(best[name])})"


def _failure(run: Row) -> str:
    """Return which run failed, where it is, and why."""
    reason = f": {shown(run['reason'])}" if run["reason"] else ""
    who = f"{named(run['label'], run['epsilon'])}, seed {run['seed']} (runs/{run['run']})"
    return f"{who}: {shown(run['outcome'])}{reason}"


def failures_line(runs: pa.Table, *, first: bool = True) -> str:
    """Return how many runs failed, the first of them with its folder and reason, and how many were
    not made.
    """
    rows = runs.to_pylist()
    failed, meant = list(filter(fails, rows)), sum(as_meant(row, row["outcome"]) for row in rows)
    missing = sum(row["outcome"] == NOT_RUN for row in rows)
    predict = "predicts" if meant == 1 else "predict"
    left = (
        f"; {meant} of the control {predict} one class, as its clients never train" if meant else ""
    )
    left += f"; {missing} not made to the end, left out of every number" if missing else ""
    if not failed:
        return f"Failures: none of {len(rows)} runs{left}"
    left += f"; first {_failure(failed[0])}" if first else ""
    return f"FAILED: {len(failed)} of {len(rows)} runs{left}"


def failure_lines(runs: pa.Table) -> list[str]:
    """Return one sentence per failed run, with its folder and its reason."""
    found = runs.to_pylist()
    order = list(dict.fromkeys((r["label"], r["epsilon"]) for r in found))
    rows = sorted(found, key=lambda r: order.index((r["label"], r["epsilon"])))
    return [f"FAILED: {_failure(row)}" for row in rows if fails(row)]


def heads_line(heads: str) -> str:
    """Return what is said of methods whose heads learn differently; "" where they do not."""
    return f"Heads differ between the methods: {heads}" if heads else ""


def warning_lines(view: ComparisonView) -> list[str]:
    """Return one sentence per line of the table for what is suspicious in its runs that did not
    fail.
    """
    return [
        f"warning: {named(line.label, line.epsilon)}: {warning}"
        for line in view.lines
        for warning in line.warnings
    ]
