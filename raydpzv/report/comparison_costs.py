"""Pictures of what it took the lines of a comparison to reach a test accuracy, in bytes and in simulated seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from raydpzv.report import style, text
from raydpzv.report.comparison_lines import Line
from raydpzv.report.comparison_plots import DISCLAIMER, Look, looks, plain
from raydpzv.report.comparison_table import target_name
from raydpzv.report.comparison_text import calibrated
from raydpzv.report.figure import PLAIN, ReportFigure, wide

_MOST_COLUMNS = 3
_ROOM = 0.6  # of the bars' span, kept right of the longest one for its words

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Cost:
    """What is drawn: the columns' name, the words on the axis, its unit, and a value in words."""

    name: str
    axis: str
    divisor: float
    said: Callable[[float], str]

    def of(self, row: Row, target: float, end: str = "median") -> float:
        """Return a row's cost of a target in units of the axis."""
        return float(row[f"{self.name}_{target_name(target)}_{end}"]) / self.divisor


def bytes_to_target(table: pa.Table, lines: Sequence[Line], targets: Sequence[float]) -> ReportFigure | None:
    """Draw the median bytes, up and down together, up to each target that any run reached.

    table, lines: what `raydpzv.report.comparison_table` makes of the same runs.
    """
    ends = [v for t in targets for v in table[f"bytes_{target_name(t)}_median"].to_pylist()]
    divisor, unit = text.size_unit(max((v for v in ends if math.isfinite(v)), default=0.0))
    cost = _Cost("bytes", f"sent, up and down ({unit})", divisor, lambda v: text.size(round(v)))
    caption = "Bytes, up and down together, until the first evaluation at or above a test accuracy"
    return _draw(table.to_pylist(), looks(lines), targets, cost, caption)


def seconds_to_target(
    table: pa.Table, lines: Sequence[Line], targets: Sequence[float]
) -> ReportFigure | None:
    """Draw the median simulated seconds up to each target that any run reached; None where no time passes."""
    cost = _Cost("seconds", "simulated seconds", 1.0, lambda v: f"{text.number(v)} s")
    caption = "Simulated seconds until the first evaluation at or above a test accuracy"
    return _draw(table.to_pylist(), looks(lines), targets, cost, caption)


def _draw(
    rows: Sequence[Row], look: Mapping[str, Look], targets: Sequence[float], cost: _Cost, caption: str
) -> ReportFigure | None:
    """Draw one panel for each target, one bar for each line."""
    asked = list(dict.fromkeys(targets))
    reached = [t for t in asked if any(r[f"reached_{target_name(t)}"] for r in rows)]
    costs = [cost.of(r, t, end) for t in reached for r in rows for end in ("median", "min", "max")]
    ends = [v for v in costs if math.isfinite(v) and v > 0]
    medians = [cost.of(r, t, "median") for t in reached for r in rows]
    if not ends or not any(map(math.isfinite, medians)):
        return None
    columns = min(len(reached), _MOST_COLUMNS)
    down = math.ceil(len(reached) / columns)
    height = down * (0.8 + 0.27 * len(rows)) + 0.4
    figure, axes = style.canvas(3.0 + 3.2 * columns, height, down, columns, share=True)
    _scale(axes[0, 0], ends)
    for ax, target in zip(axes.flat, reached, strict=False):
        for place, row in enumerate(rows):
            _bar(ax, place, row, target, cost, look[row["label"]])
        ax.grid(visible=False, axis="y")
        style.title(ax, f"{100 * target:g} % test accuracy")
        ax.xaxis.set_major_formatter(StrMethodFormatter(PLAIN))
    for ax in axes.flat[len(reached) :]:
        ax.set_axis_off()
    axes[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    axes[0, 0].set_yticks(range(len(rows)), [_name(row) for row in rows])
    figure.supxlabel(cost.axis, fontsize=10, color=style.INK)
    return ReportFigure(f"{cost.name}_to_target", _caption(caption, rows, asked, reached), figure)


def _scale(ax: Axes, ends: Sequence[float]) -> None:
    """Choose a logarithmic axis where the costs span much, and keep room for words beside the longest bar."""
    low, high = min(ends), max(ends)
    if wide(ends):
        ax.set_xscale("log")
        ax.set_xlim(low / 2, high * (2 * high / low) ** _ROOM)
    else:
        ax.set_xlim(0, high * (1 + _ROOM))


def _bar(ax: Axes, place: int, row: Row, target: float, cost: _Cost, look: Look) -> None:
    median, left = cost.of(row, target), ax.get_xlim()[0]
    count, runs = row[f"reached_{target_name(target)}"], row["runs"]
    if math.isinf(median) or math.isnan(median):
        words, end = (f"{count} of {runs} reached it" if count else "not reached"), left
    else:
        ax.barh(place, max(median - left, 0.0), left=left, height=0.62, color=look["color"], alpha=0.85)
        low, high = cost.of(row, target, "min"), cost.of(row, target, "max")
        end = high if math.isfinite(high) else median
        if low < end:
            ax.plot([low, end], [place, place], color=style.INK, linewidth=1.2, marker="|", markersize=5)
        words = cost.said(median * cost.divisor) + (f" ({count} of {runs})" if count < runs else "")
    colour = style.INK if math.isfinite(median) else "#888888"
    ax.annotate(
        words, (max(end, left), place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
        color=colour,
    )  # fmt: skip


def _name(row: Row) -> str:
    said = plain(row["label"])
    return said if row["epsilon"] is None else f"{said}, ε {calibrated(row['epsilon'])}"


def _caption(caption: str, rows: Sequence[Row], asked: Sequence[float], reached: Sequence[float]) -> str:
    said = (
        f"{caption}: median over the seeds, strokes from the lowest to the highest of those that reached it."
    )
    if missed := [f"{100 * t:g} %" for t in asked if t not in reached]:
        said += f" No run reached {' or '.join(missed)}."
    return said + (f" {DISCLAIMER}" if any(row["epsilon"] is not None for row in rows) else "")
