"""What a comparison comes to as rows of text, and as tables for a console of 120 columns.

A function ending in `_rows` returns plain text for any medium (a cell may have two lines); one ending in `_table`
renders those rows with rich. `table` is what `raydpzv.report.comparison_table.table` returns. The ε beside a method is
what its noise is calibrated to, no guarantee: what is proved is in the privacy table alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from raydpzv.records.summary_fields import shown
from raydpzv.report import text
from raydpzv.report.comparison_lines import FAILURES, NOT_RUN, lines
from raydpzv.report.comparison_table import equal_bytes, equal_seconds, target_name
from raydpzv.report.head_table import HeadTable

Cells = tuple[str, ...]
CALIBRATED = "calibrated to ε"
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
_LEFT = ("method", "runs")
_ROOMY = 110  # columns from which figures stand whole


@dataclass(frozen=True)
class Grid:
    """Rows of text under heads; a row in `failed` has failed runs."""

    heads: Cells
    rows: tuple[Cells, ...]
    failed: tuple[bool, ...]


@dataclass(frozen=True)
class ConsoleGrid:
    """A grid for a console: a method's name stands once, FAILED in red; below 110 columns figures wrap too."""

    title: str
    grid: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table."""
        grid, roomy = self.grid, options.max_width >= _ROOMY
        found = HeadTable(
            title=Text(self.title, "bold"),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=0,
            pad_edge=False,
        )
        for head in grid.heads:
            justify: Literal["left", "right"] = "left" if head in _LEFT else "right"
            width = _width(grid, head) if roomy else None
            least, fixed = (width, None) if head in _LEFT else (None, width)
            found.add_column(head, overflow="fold", justify=justify, min_width=least, width=fixed)
        above = ""
        for row, failed in zip(grid.rows, grid.failed, strict=True):
            cells = [Text(cell) for cell in row]
            if row[0] == above:
                cells[0] = Text()  # the method stands above
            above = row[0]
            if failed and "runs" in grid.heads:
                cells[grid.heads.index("runs")].stylize("bold red")
            found.add_row(*cells)
        yield found


def calibrated(epsilon: float | None) -> str:
    """Return the ε that noise is calibrated to; "none" without noise."""
    return "none" if epsilon is None else text.number(epsilon)


def named(label: str, epsilon: float | None) -> str:
    """Return a line's name in a sentence."""
    return label if epsilon is None else f"{label}, calibrated to ε = {calibrated(epsilon)}"


def accuracy_rows(table: pa.Table, bytes_at: int, seconds_at: float) -> Grid:
    """Return one row per line; columns of an equal budget are left out where there is none (0 bytes, NaN seconds).

    bytes_at, seconds_at: the equal budgets, for the heads.
    """
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "method": lambda r: str(r["label"]),
        CALIBRATED: lambda r: calibrated(r["epsilon"]),
        "runs": _runs,
        "accuracy": lambda r: _range(r, "accuracy", text.percent),
    }
    if _scored(table, "best"):
        columns["best by validation"] = lambda r: _range(r, "best", text.percent)
    if _scored(table, "roc_auc"):
        columns["ROC AUC"] = lambda r: _range(r, "roc_auc", _area)
        columns["PR AUC"] = lambda r: _range(r, "pr_auc", _area)
    if _scored(table, "balanced_accuracy"):
        columns["balanced accuracy"] = lambda r: _range(r, "balanced_accuracy", text.percent)
    if _scored(table, "concordance"):
        columns["concordance"] = lambda r: _range(r, "concordance", _area)
    if bytes_at:
        columns[f"at {text.size(bytes_at)}"] = lambda r: _range(r, "equal_bytes", text.percent)
    if not math.isnan(seconds_at):
        columns[f"at {seconds_text(seconds_at)}"] = lambda r: _range(r, "equal_seconds", text.percent)
    columns["bytes up, bytes down"] = lambda r: (
        f"{bytes_text(r['bytes_up_median'])}\n{bytes_text(r['bytes_down_median'])}"
    )
    if math.isnan(seconds_at):
        columns["updates"] = lambda r: text.number(r["updates_median"])
    else:
        columns["updates, seconds"] = lambda r: (
            f"{text.number(r['updates_median'])}\n{seconds_text(r['seconds_median'])}"
        )
    columns["staleness"] = lambda r: text.number(r["staleness_median"], 3)
    return _grid(columns, table)


def _scored(table: pa.Table, name: str) -> bool:
    """Tell whether any line has such a score: a run without a model has 0 of each, asked for or not."""
    return any(value > 0 for value in table[f"{name}_median"].to_pylist())


def _area(value: float) -> str:
    return text.number(value, 3)


def target_rows(table: pa.Table, target: float) -> Grid:
    """Return what it took each line to reach an accuracy; no rows if no run of any line did."""
    name = target_name(target)
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "method": lambda r: str(r["label"]),
        CALIBRATED: lambda r: calibrated(r["epsilon"]),
        "reached": lambda r: f"{r[f'reached_{name}']} of {r['runs']}",
        "updates": lambda r: _cost(r[f"updates_{name}_median"], "{:,.0f}".format),
        "bytes up and down": lambda r: _range(r, f"bytes_{name}", lambda v: _cost(v, bytes_text)),
    }
    if _time_passes(table, name):
        columns["seconds"] = lambda r: _range(r, f"seconds_{name}", lambda v: _cost(v, seconds_text))
        columns["time, × the quickest"] = lambda r: _times(r[f"slower_{name}"])
    found = _grid(columns, table)
    return found if any(table[f"reached_{name}"].to_pylist()) else replace(found, rows=(), failed=())


def target_title(target: float) -> str:
    """Return a target in words."""
    return f"test accuracy {100 * target:g} %"


def failure_lines(runs: pa.Table) -> list[str]:
    """Return one sentence per failed run, with its folder and its reason, and one on the runs that were not made."""
    found = runs.to_pylist()
    order = list(dict.fromkeys((r["label"], r["epsilon"]) for r in found))
    rows = sorted(found, key=lambda r: order.index((r["label"], r["epsilon"])))
    said = [
        f"FAILED: {named(r['label'], r['epsilon'])}, seed {r['seed']} (runs/{r['run']}): "
        f"{shown(r['outcome'])}{': ' if r['reason'] else ''}{shown(r['reason'])}"
        for r in rows
        if r["outcome"] in FAILURES
    ]
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


def accuracy_table(table: pa.Table, runs: pa.Table, curves: pa.Table) -> ConsoleGrid:
    """Return the accuracies as a console table; runs, curves: what `table` was made of."""
    grid = accuracy_rows(table, equal_bytes(curves, runs), equal_seconds(curves, runs))
    return ConsoleGrid("Test accuracy: median, and range over the seeds", grid)


def target_table(table: pa.Table, target: float) -> ConsoleGrid | Text:
    """Return the costs of one target as a console table, or the sentence that no run reached it."""
    grid = target_rows(table, target)
    if not grid.rows:
        return Text(f"No run reached {target_title(target)}.")
    return ConsoleGrid(f"What it took to reach {target_title(target)}", grid)


def _grid(columns: Mapping[str, Callable[[Mapping[str, Any]], str]], table: pa.Table) -> Grid:
    rows = table.to_pylist()
    return Grid(
        tuple(columns),
        tuple(tuple(cell(row) for cell in columns.values()) for row in rows),
        tuple(row["failures"] > 0 for row in rows),
    )


def _width(grid: Grid, head: str) -> int:
    """Return the least width of a column: texts give way, neither figures nor the words of a head do."""
    if head in _LEFT:
        return 10
    lines = [line for row in grid.rows for line in row[grid.heads.index(head)].split("\n")]
    return max(map(len, [*lines, *head.split()]))


def _runs(row: Mapping[str, Any]) -> str:
    said = f"{row['runs']}"
    if row["failures"]:
        kinds = row["why"].removeprefix(
            f"{row['failures']} "
        )  # the count stands before, if there is one kind
        said += f", {row['failures']} FAILED: {shown(kinds)}"
    return said + (f", {row['not_run']} not run" if row["not_run"] else "")


def _range(row: Mapping[str, Any], name: str, said: Callable[[float], str]) -> str:
    """Return a median and, on a second line, its range, if it has one."""
    median, low, high = (row[f"{name}_{what}"] for what in ("median", "min", "max"))
    if math.isnan(median) or low == high:
        return said(median)
    words = [said(end) for end in (median, low, high)]
    units = {word.rpartition(" ")[2] for word in words}
    if len(units) == 1:  # it stands with the median
        words[1:] = [word.rpartition(" ")[0] for word in words[1:]]
    return f"{words[0]}\n{words[1]} to {words[2]}"


def _cost(value: float, said: Callable[[float], str]) -> str:
    if math.isnan(value):
        return text.NONE
    return "never" if math.isinf(value) else said(value)


def bytes_text(value: float) -> str:
    """Return a median number of bytes in its binary unit; a dash where there is none."""
    return text.NONE if math.isnan(value) else text.size(round(value))


def seconds_text(value: float) -> str:
    """Return a median duration in seconds; a dash where there is none."""
    return text.NONE if math.isnan(value) else f"{text.number(value)} s"


def _times(value: float) -> str:
    return text.NONE if not math.isfinite(value) else f"{value:.3g} ×"


def _time_passes(table: pa.Table, name: str) -> bool:
    seconds = [v for end in ("min", "max") for v in table[f"seconds_{name}_{end}"].to_pylist()]
    return any(math.isfinite(v) and v > 0 for v in seconds)
