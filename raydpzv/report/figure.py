"""What every picture is made of: the runs it overlays, its figure with caption, and the words on its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from raydpzv.records.store import Rows
from raydpzv.report import horizontal, style

PLAIN = "{x:,.10g}"
"""Numbers on an axis: no powers of ten."""
_SPAN = 20
"""Largest by smallest value from which a logarithmic axis shows more than a linear one."""


@dataclass(frozen=True)
class RunView:
    """What a picture or a table needs to know of a run: its label in legends, summary.json, its rows."""

    label: str
    summary: dict[str, Any]
    rows: Rows

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the clients' parties; () where they have none."""
        return tuple(self.summary.get("parties") or ())

    @property
    def horizontal(self) -> bool:
        """Whether clients share out rows and train one model."""
        return horizontal.is_horizontal(self.summary)


@dataclass(frozen=True)
class ReportFigure:
    """A figure with its file name (no suffix) and caption; no figure where the caption says all there is."""

    name: str
    caption: str
    figure: Figure | None


def chart(title: str, x: str, y: str, height: float = 4.2) -> tuple[Figure, Axes]:
    """Return a figure with one styled pair of axes."""
    figure, axes = style.canvas(8.0, height)
    ax = axes[0, 0]
    style.title(ax, title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.xaxis.set_major_formatter(StrMethodFormatter(PLAIN))
    return figure, ax


def clock_axis(runs: Sequence[RunView]) -> str:
    """Return the words on an axis of the run's clock, which stands still between two legs."""
    return "run clock (s)" + (
        ", the gaps between legs left out" if any(r.summary.get("legs") for r in runs) else ""
    )


def updates_axis(runs: Sequence[RunView]) -> str:
    """Return the words on an axis of updates: an update is what a server round is in vertical runs alone."""
    kinds = {run.horizontal for run in runs}
    if len(kinds) != 1:
        return "updates"
    return "updates of the model" if True in kinds else "updates (server rounds)"


def drawn_before(ax: Axes, y: NDArray[Any]) -> bool:
    """Tell whether an earlier line already has these heights and would vanish below this one."""
    return any(np.array_equal(np.asarray(line.get_ydata()), y, equal_nan=True) for line in ax.get_lines())


def wide(values: Sequence[float] | NDArray[Any]) -> bool:
    """Tell whether positive values span so much that a logarithmic axis shows more; zeros do not count."""
    positive = [v for v in values if v > 0]
    return bool(positive) and max(positive) > _SPAN * min(positive)


def window_of(length: int) -> int:
    """Return how many values of a series this long a running mean goes over: a 40th."""
    return max(1, length // 40)


def mean_label(run: RunView, window: int, *, alone: bool) -> str:
    """Return a running mean's name in a legend; its window where there is one run to speak of."""
    return f"{run.label}: mean of the last {window:,}" if alone else run.label


def running_mean(values: NDArray[Any], window: int) -> NDArray[np.float64]:
    """Return the means of `window` consecutive values, one for each full window."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return (sums[window:] - sums[:-window]) / window


def left_out(runs: Sequence[RunView], why: str) -> str:
    """Return the sentence that names runs a picture does not show; empty if it shows all."""
    return f" Left out: {'; '.join(r.label for r in runs)} ({why})." if runs else ""
