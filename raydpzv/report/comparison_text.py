"""A comparison in words: its tables of accuracies and costs, and sentences on failures and targets.

The ε beside a method is what its noise is calibrated to, no guarantee: the privacy table alone says what is proved.
`folded` is what `raydpzv.report.comparison_table.table` returns; a row is a line of it.
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
from raydpzv.report.comparison_lines import CALIBRATED, NOT_RUN, as_meant, calibrated, fails, lines, named
from raydpzv.report.comparison_privacy import privacy_block, privacy_line
from raydpzv.report.comparison_table import (
    Compared,
    equal_bytes,
    equal_seconds,
    measures_of,
    table,
    target_name,
)
from raydpzv.report.latex import latex
from raydpzv.report.table import Column, Grid, Mark, grid

ACCURACY_NOTE = (
    "Medians over the seeds, and from the lowest to the highest. A failed run is never left out: it counts with its "
    "accuracy, or with 0 where it ends without a model. Equal bytes and equal seconds: accuracy of the last evaluation "
    "within what every run covers, up and down together. Best by validation: test accuracy of each run's model with "
    "the highest validation accuracy. Seconds are simulated. An update is one upload: a synchronous "
    "step of M clients counts as M."
)
TARGET_NOTE = (
    "Up to the first evaluation at or above the target. A run that never reached it costs infinitely much in "
    "medians; a failed run has reached nothing. Time: the median as a multiple of the quickest method's that is no "
    "control."
)
AIM = "aim: ε"
_TITLE = "median over the seeds (lowest to highest)"
_AIM = f"; {AIM} is what noise is calibrated to by each method's own argument, not what is proved"
_MOST_WARNINGS = 3

Row = Mapping[str, Any]
Show = Callable[[float], str]


def paper_table(compared: Compared, targets: Sequence[float]) -> str:
    """Return the summary's table as LaTeX: medians over the seeds, with their ranges."""
    runs, curves, _ = compared
    budgets = (equal_bytes(curves, runs), equal_seconds(curves, runs))
    found = summary_grid(table(runs, curves, targets), *budgets, measures_of(runs))
    return latex(found, f"Test scores: {_TITLE}{_AIM if AIM in found.heads else ''}.", failures_line(runs))


def summary_report(compared: Compared, targets: Sequence[float]) -> Group:
    """Return a comparison for one screen of 120 columns: a table, and a line each for failures, targets, privacy."""
    runs, curves, claims = compared
    folded = table(runs, curves, targets)
    found = summary_grid(folded, equal_bytes(curves, runs), equal_seconds(curves, runs), measures_of(runs))
    failed, warnings = failures_line(runs), warning_lines(runs, curves)
    score = next((name for name in ("concordance", "accuracy") if name in found.heads), "scores")
    hidden = len(warnings) - _MOST_WARNINGS
    parts: list[RenderableType] = [
        found.console(f"Test {score}: {_TITLE}{_AIM if AIM in found.heads else ''}", gap=0, once=True),
        Text(failed, "bold red" if "FAILED" in failed else ""),
        *(Text(target_line(folded, target)) for target in dict.fromkeys(targets) if score == "accuracy"),
        Text(privacy_line(claims, runs)),
        *(Text(line, "yellow") for line in warnings[:_MOST_WARNINGS]),
        *([Text(f"{hidden} more warnings: --explain", "yellow")] if hidden > 0 else []),
    ]
    return Group(*parts)


def console_report(compared: Compared, targets: Sequence[float]) -> Group:
    """Return everything about a comparison, for a console of 120 columns."""
    runs, curves, claims = compared
    folded = table(runs, curves, targets)
    found = accuracy_grid(folded, equal_bytes(curves, runs), equal_seconds(curves, runs), measures_of(runs))
    parts: list[RenderableType] = [
        found.console("Test accuracy: median, and range over the seeds", gap=0, once=True),
        Text(ACCURACY_NOTE, "dim"),
    ]
    for target in dict.fromkeys(targets):
        found, title = target_grid(folded, target), target_title(target)
        shown = found.console(f"What it took to reach {title}", gap=0, once=True)
        parts += [Text(), shown if found.rows else Text(f"No run reached {title}.")]
    if targets:
        parts.append(Text(TARGET_NOTE, "dim"))
    parts += [Text(), privacy_block(claims, runs), Text()]
    warnings = (Text(line, "yellow") for line in warning_lines(runs, curves))
    failed = (Text(line, "bold red" if line.startswith("FAILED") else "") for line in failure_lines(runs))
    return Group(*parts, *failed, *warnings)


def summary_grid(folded: pa.Table, bytes_at: int, seconds_at: float, measures: Sequence[str] = ()) -> Grid:
    """Return one row of one line for each method at each ε; columns that would say nothing are left out.

    bytes_at, seconds_at: budgets that every run covers, 0 and NaN where there is none. measures: further ones, by name.
    """
    rows = folded.to_pylist()
    columns = [_METHOD]
    if any(row["epsilon"] is not None for row in rows):
        columns.append(Column(AIM, lambda r: r["epsilon"], calibrated))
    columns.append(_runs(why=False))
    if _scored(rows, "concordance"):
        columns.append(_spread("concordance", "concordance", text.short, " ({} to {})"))
    elif not all(math.isnan(row["accuracy_median"]) for row in rows) or not measures:
        columns.append(_spread("accuracy", "accuracy", text.percent, " ({} to {})"))
    columns += [_spread(name, name, text.short, " ({} to {})") for name in measures]
    if bytes_at:
        columns.append(_median(f"at {text.size(bytes_at)}", "equal_bytes", text.percent))
    if not math.isnan(seconds_at):
        columns.append(_median(f"at {seconds_text(seconds_at)}", "equal_seconds", text.percent))
    columns += [_median("bytes up", "bytes_up", bytes_text), _median("bytes down", "bytes_down", bytes_text)]
    if not all(math.isnan(row["vector_length_median"]) for row in rows):
        columns.append(_median("numbers per client", "vector_length", text.number))
    if not math.isnan(seconds_at):
        columns.append(_median("simulated", "seconds", seconds_text))
    return grid(columns, rows)


def accuracy_grid(folded: pa.Table, bytes_at: int, seconds_at: float, measures: Sequence[str] = ()) -> Grid:
    """Return one row per line of the table, with ranges on lines of their own; budgets as for `summary_grid`."""
    rows = folded.to_pylist()
    scores = [
        _spread("best by validation", "best", text.percent),
        _spread("ROC AUC", "roc_auc", text.short),
        _spread("PR AUC", "pr_auc", text.short),
        _spread("balanced accuracy", "balanced_accuracy", text.percent),
        _spread("concordance", "concordance", text.short),
    ]
    names = ("best", "roc_auc", "roc_auc", "balanced_accuracy", "concordance")
    columns = [_METHOD, Column(CALIBRATED, lambda r: r["epsilon"], calibrated), _runs(why=True)]
    columns.append(_spread("accuracy", "accuracy", text.percent))
    columns += [_spread(name, name, text.short) for name in measures]
    columns += [column for column, name in zip(scores, names, strict=True) if _scored(rows, name)]
    if bytes_at:
        columns.append(_spread(f"at {text.size(bytes_at)}", "equal_bytes", text.percent))
    if not math.isnan(seconds_at):
        columns.append(_spread(f"at {seconds_text(seconds_at)}", "equal_seconds", text.percent))
    columns.append(_pair("bytes up, bytes down", ("bytes_up", bytes_text), ("bytes_down", bytes_text)))
    if math.isnan(seconds_at):
        columns.append(_median("updates", "updates", text.number))
    else:
        columns.append(_pair("updates, seconds", ("updates", text.number), ("seconds", seconds_text)))
    return grid([*columns, _median("staleness", "staleness", text.short)], rows)


def page_grid(
    folded: pa.Table,
    budgets: tuple[int, float],
    targets: Sequence[float],
    measures: Sequence[str] = (),
) -> Grid:
    """Return one row of one line for each line, with its cost of each target; budgets: see `summary_grid`."""
    rows, (bytes_at, seconds_at) = folded.to_pylist(), budgets
    scores = ("accuracy", "best by validation", "ROC AUC", "PR AUC", "balanced accuracy", "concordance")
    names = ("accuracy", "best", "roc_auc", "pr_auc", "balanced_accuracy", "concordance")
    columns = [_METHOD, Column("ε aimed at", lambda r: r["epsilon"], calibrated, value=_epsilon)]
    columns += [Column("runs", lambda r: r["runs"]), Column("failed", _short, align="left", mark=_failed)]
    for title, name in zip(scores, names, strict=True):
        show = text.short if "roc" in name or "pr_" in name or name == "concordance" else text.percent
        if name == "accuracy" or _scored(rows, name):
            columns.append(_spread(title, name, show, " ({} to {})"))
    columns += [_spread(name, name, text.short, " ({} to {})") for name in measures]
    for target in dict.fromkeys(targets):
        name, words = target_name(target), f"{100 * target:g} %"
        if any(row[f"reached_{name}"] for row in rows):
            columns.append(
                _spread(f"bytes to {words}", f"bytes_{name}", partial(_cost, show=bytes_text), " ({} to {})")
            )
    if bytes_at:
        columns.append(_spread(f"at {text.size(bytes_at)}", "equal_bytes", text.percent, " ({} to {})"))
    if not math.isnan(seconds_at):
        title = f"at {seconds_text(seconds_at)}"
        columns.append(_spread(title, "equal_seconds", text.percent, " ({} to {})"))
    columns += [_median("bytes up", "bytes_up", bytes_text), _median("bytes down", "bytes_down", bytes_text)]
    columns.append(_median("updates", "updates", text.number))
    if not math.isnan(seconds_at):
        columns.append(_median("seconds", "seconds", seconds_text))
    return grid([*columns, _median("staleness", "staleness", text.short)], rows)


def run_rows(runs: pa.Table, pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what a page says of each run: its line, its end in a word, its accuracy, and where its page is."""
    found = runs.to_pylist()
    order = list(dict.fromkeys((row["label"], row["epsilon"]) for row in found))
    return [
        {
            "name": named(row["label"], row["epsilon"]),
            "line": order.index((row["label"], row["epsilon"])),
            "seed": row["seed"],
            "outcome": ("control: " if as_meant(row, row["outcome"]) else "") + short_outcome(row["outcome"]),
            "failed": fails(row),
            "accuracy": text.percent(row["accuracy"]),
            "folder": f"runs/{row['run']}",
            "page": pages.get(row["run"], ""),
        }
        for row in found
    ]


_SHORT = {"constant prediction": "constant", "one class' share": "one class", "ended early": "early"}


def short_outcome(outcome: str) -> str:
    """Return how a run ended in a word or two."""
    return _SHORT.get(outcome, outcome)


def _short(row: Row) -> str:
    """Return how the runs of a line failed, in short words, and how many were not made."""
    why = [
        f"{n} {short_outcome(kind)}"
        for n, _, kind in (one.partition(" ") for one in row["why"].split(", "))
        if n
    ]
    said = ", ".join([*why, *([f"{row['not_run']} not run"] if row["not_run"] else [])])
    return f"control: {said}" if why and not _failed(row) else said


def _epsilon(row: Row) -> float:
    return math.inf if row["epsilon"] is None else float(row["epsilon"])


def target_grid(folded: pa.Table, target: float) -> Grid:
    """Return what it took each line to reach an accuracy; no rows if no run of any line did."""
    name, rows = target_name(target), folded.to_pylist()
    columns: list[Column[Row]] = [
        _METHOD,
        Column(CALIBRATED, lambda r: r["epsilon"], calibrated),
        Column("reached", lambda r: f"{r[f'reached_{name}']} of {r['runs']}"),
        _median("updates", f"updates_{name}", partial(_cost, show="{:,.0f}".format)),
        _spread("bytes up and down", f"bytes_{name}", partial(_cost, show=bytes_text)),
    ]
    seconds = [row[f"seconds_{name}_{end}"] for row in rows for end in ("min", "max")]
    if any(math.isfinite(v) and v > 0 for v in seconds):
        columns.append(_spread("seconds", f"seconds_{name}", partial(_cost, show=seconds_text)))
        columns.append(Column("time, × the quickest", lambda r: r[f"slower_{name}"], _times))
    return grid(columns, rows if any(row[f"reached_{name}"] for row in rows) else [])


def _failed(row: Row) -> Mark:
    kinds = (one.partition(" ")[2] for one in row["why"].split(", "))
    return "bad" if row["failures"] and not as_meant(row, *kinds) else ""


_METHOD: Column[Row] = Column("method", lambda r: r["label"], align="left")


def _runs(*, why: bool) -> Column[Row]:
    def show(row: Row) -> str:
        said = f"{row['runs']}"
        if row["failures"]:
            said += f", {row['failures']} {'FAILED' if _failed(row) else 'as a control may'}"
        if row["failures"] and why:  # the count comes first already, if there is one kind
            kinds = row["why"].removeprefix(f"{row['failures']} ")
            said += f": {shown(kinds)}"
        return said + (f", {row['not_run']} not run" if row["not_run"] else "")

    return Column("runs", show, align="left", mark=_failed)


def _median(title: str, name: str, show: Show) -> Column[Row]:
    return Column(title, lambda r: r[f"{name}_median"], show, value=lambda r: r[f"{name}_median"])


def _pair(title: str, one: tuple[str, Show], other: tuple[str, Show]) -> Column[Row]:
    """Return a column of two medians, on a line each."""
    return Column(title, lambda r: "\n".join(show(r[f"{name}_median"]) for name, show in (one, other)))


def _spread(title: str, name: str, show: Show, ends: str = "\n{} to {}") -> Column[Row]:
    """Return a column of medians with their ranges, if they have one; ends: how a range follows."""

    def get(row: Row) -> str:
        median, low, high = (row[f"{name}_{end}"] for end in ("median", "min", "max"))
        if math.isnan(median) or low == high:
            return show(median)
        words = [show(value) for value in (median, low, high)]
        if (
            len({word.rpartition(" ")[1:] for word in words}) == 1 and " " in words[0]
        ):  # the median has the unit
            words[1:] = [word.rpartition(" ")[0] for word in words[1:]]
        return words[0] + ends.format(*words[1:])

    return Column(title, get, value=lambda r: r[f"{name}_median"])


def _scored(rows: Sequence[Row], name: str) -> bool:
    """Return whether any line has such a score: a run without a model has 0 of each, asked for or not."""
    return any(row[f"{name}_median"] > 0 for row in rows)


def _cost(value: float, show: Show) -> str:
    if math.isnan(value):
        return text.NONE
    return "never" if math.isinf(value) else show(value)


def _times(value: float) -> str:
    return text.NONE if not math.isfinite(value) else f"{value:.3g} ×"


def bytes_text(value: float) -> str:
    """Return a median number of bytes in its binary unit; a dash where there is none."""
    return text.NONE if math.isnan(value) else text.size(round(value))


def seconds_text(value: float) -> str:
    """Return a median duration in seconds; a dash where there is none."""
    return text.NONE if math.isnan(value) else f"{text.number(value)} s"


def target_title(target: float) -> str:
    """Return a target in words."""
    return f"test accuracy {100 * target:g} %"


def target_line(folded: pa.Table, target: float) -> str:
    """Return which lines reached an accuracy, and the least that half of a line's runs took to reach it."""
    name, rows = target_name(target), folded.to_pylist()
    reached = sum(row[f"reached_{name}"] > 0 for row in rows)
    title = target_title(target)
    if not reached:
        return f"No run reached {title}."
    costs: tuple[tuple[str, str, Show], ...] = (
        ("fewest updates", f"updates_{name}_median", "{:,.0f}".format),
        ("fewest bytes", f"bytes_{name}_median", bytes_text),
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


def failures_line(runs: pa.Table) -> str:
    """Return how many runs failed, the first with its folder and reason, and how many were not made."""
    rows = runs.to_pylist()
    failed, meant = list(filter(fails, rows)), sum(as_meant(row, row["outcome"]) for row in rows)
    missing = sum(row["outcome"] == NOT_RUN for row in rows)
    left = f"; {meant} of the control predict one class, as it may" if meant else ""
    left += f"; {missing} not made to the end, left out of every number" if missing else ""
    if not failed:
        return f"Failures: none of {len(rows)} runs{left}"
    return f"FAILED: {len(failed)} of {len(rows)} runs{left}; first {_failure(failed[0])}"


def failure_lines(runs: pa.Table) -> list[str]:
    """Return one sentence per failed run, with its folder and its reason, and one on the runs that were not made."""
    found = runs.to_pylist()
    order = list(dict.fromkeys((r["label"], r["epsilon"]) for r in found))
    rows = sorted(found, key=lambda r: order.index((r["label"], r["epsilon"])))
    said = [f"FAILED: {_failure(row)}" for row in rows if fails(row)]
    said += [f"as a control may: {_failure(row)}" for row in rows if as_meant(row, row["outcome"])]
    missing = sum(r["outcome"] == NOT_RUN for r in rows)
    if missing:
        verb = "was" if missing == 1 else "were"
        said.append(f"{missing} of {len(rows)} runs {verb} not made to the end: left out of every number")
    return said


def heads_line(heads: str) -> str:
    """Return what is said of methods whose heads learn differently; "" where they do not."""
    return f"Heads differ between the methods: {heads}" if heads else ""


def warning_lines(runs: pa.Table, curves: pa.Table) -> list[str]:
    """Return one sentence per line of the table for what is suspicious in its runs that did not fail."""
    return [
        f"warning: {named(line.label, line.epsilon)}: {warning}"
        for line in lines(runs, curves)
        for warning in line.warnings
    ]
