"""Pictures of what horizontal runs live on: bytes per update, catching up, and the lag of asynchronous updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from raydpzv.records import lateness, metrics, traffic
from raydpzv.report import style, text
from raydpzv.report.figure import (
    PLAIN,
    ReportFigure,
    RunView,
    chart,
    drawn_before,
    left_out,
    running_mean,
    updates_axis,
    wide,
    window_of,
)

_MOST_BARS = 50


def bytes_per_update(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw the running mean of the bytes of an update, up and down apart.

    A lone run whose updates all cost the same needs no figure: the caption says it.
    """
    drawn = [(i, r, *_bytes(r)) for i, r in enumerate(runs) if r.rows["message"].num_rows]
    silent = [r for _, r, up, down in drawn if not up.any() and not down.any()]
    drawn = [(i, r, up, down) for i, r, up, down in drawn if up.any() or down.any()]
    if not drawn:
        return None
    if len(drawn) == 1 and (cost := _constant(*drawn[0][2:])):
        return ReportFigure("bytes_per_update", f"Every update cost {cost}.", None)
    caption = "Running mean, over a 40th of a run's updates, of the tensor bytes of an update, all clients together."
    figure = _alone(*drawn[0][1:]) if len(drawn) == 1 else _side_by_side(drawn)
    return ReportFigure("bytes_per_update", caption + left_out(silent, "nothing travels"), figure)


def missed_over_updates(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw how many updates a client had missed when it began its work: mean and 90th percentile over time."""
    found = [(i, r, lateness.catch_up(r.rows["sync"])) for i, r in enumerate(runs)]
    drawn = [(i, r, c) for i, r, c in found if len(c.round) and c.high.max() > 1]
    if not drawn:
        return None
    figure, ax = chart("Catching up", updates_axis([r for _, r, _ in drawn]), "missed updates per activation")
    handles: list[Line2D] = []
    for i, run, caught in drawn:
        look = style.line(i, covers=drawn_before(ax, caught.mean))
        handles += ax.plot(caught.round, caught.mean, **look, label=f"{run.label}: mean")
        ax.plot(caught.round, caught.high, color=look["color"], linestyle=":", linewidth=1.1)
    handles.append(Line2D([], [], color=style.INK, linestyle=":", linewidth=1.1, label="90th percentile"))
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(StrMethodFormatter(PLAIN))
    style.legend(figure, handles, style.columns_for([str(h.get_label()) for h in handles]))
    caption = "Updates made since the client last caught up, which it replays before it works."
    return ReportFigure("missed_over_updates", caption, figure)


def lag_histogram(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw how many updates were made while an upload was computed, of runs in which there are any."""
    found = [(i, r, lateness.lag_counts(r.rows["sync"])) for i, r in enumerate(runs)]
    drawn = [(i, r, counts) for i, r, counts in found if len(counts) > 1]
    if not drawn:
        return None
    width = -(-max(len(counts) for *_, counts in drawn) // _MOST_BARS)
    figure, ax = chart(
        "Lag", "updates made between reading the model and the upload's own", "share of uploads (%)"
    )
    handles = []
    for i, run, counts in drawn:
        edges = np.arange(0, len(counts) + width, width)
        share = np.add.reduceat(counts, edges[:-1]) / counts.sum()
        mean = text.number(float(counts @ np.arange(len(counts)) / counts.sum()), 3)
        label = f"{run.label}: mean {mean}, max {len(counts) - 1:,}"
        handles.append(_outline(ax, i, share, edges - 0.5, label, alone=len(drawn) == 1))
    ax.set_xlim(left=-0.5)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol="", decimals=None))
    style.legend(figure, handles, style.columns_for([str(h.get_label()) for h in handles]))
    caption = (
        "Lag of the uploads: updates made between the reading of the model and the update made of the upload."
    )
    fresh = [r for i, r, counts in found if len(counts) == 1]
    return ReportFigure(
        "lag_histogram", caption + left_out(fresh, "every upload was made at the newest model"), figure
    )


def _bytes(run: RunView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return bytes up and down of the updates that were made, [R] each; what came before or after is no update's."""
    made = metrics.updates(run.rows["service"]) + 1
    up, down = traffic.bytes_per_round(run.rows["message"])
    return up[1:made], down[1:made]


def _constant(up: NDArray[np.int64], down: NDArray[np.int64]) -> str:
    """Return what each update cost, if all cost the same; the last answer of a run may be missing."""
    if len(np.unique(up)) > 1 or len(np.unique(down[:-1])) > 1:
        return ""
    return f"{text.size(int(up[0]))} up and {text.size(int(down[0]))} down"


def _alone(run: RunView, up: NDArray[np.int64], down: NDArray[np.int64]) -> Figure:
    """Draw both directions of one run in one pair of axes."""
    divisor, unit = text.size_unit(float(max(up.max(), down.max())))
    figure, ax = chart("Bytes per update", updates_axis([run]), f"bytes per update ({unit})")
    handles = [_rolling(ax, i, x / divisor, name) for i, (name, x) in enumerate((("up", up), ("down", down)))]
    _scale([ax], handles)
    style.legend(figure, handles, 2)
    return figure


def _side_by_side(drawn: Sequence[tuple[int, RunView, NDArray[np.int64], NDArray[np.int64]]]) -> Figure:
    """Draw several runs: uploads above, downlink below, on one scale."""
    divisor, unit = text.size_unit(max(float(x.max()) for _, _, *both in drawn for x in both))
    figure, axes = style.canvas(8.0, 6.0, rows=2, share=True)
    style.title(axes[0, 0], "Bytes per update")
    lines = [
        [_rolling(ax, i, x / divisor, run.label) for ax, x in zip(axes.flat, both, strict=True)]
        for i, run, *both in drawn
    ]
    _scale(list(axes.flat), [line for pair in lines for line in pair])
    for ax, name in zip(axes.flat, ("up", "down"), strict=True):
        ax.set_ylabel(f"{name} ({unit})")
    axes[1, 0].set_xlabel(updates_axis([run for _, run, *_ in drawn]))
    axes[1, 0].xaxis.set_major_formatter(StrMethodFormatter(PLAIN))
    style.legend(figure, [up for up, _ in lines], style.columns_for([run.label for _, run, *_ in drawn]))
    return figure


def _rolling(ax: Axes, index: int, amounts: NDArray[Any], label: str) -> Line2D:
    """Draw a running mean against the update at which its window ends; shorter runs lie above longer ones."""
    window, updates = window_of(len(amounts)), np.arange(1, len(amounts) + 1)
    x, y = style.thin(updates[window - 1 :], running_mean(amounts, window))
    look = style.line(index, covers=drawn_before(ax, y))
    (line,) = ax.plot(x, y, **look, label=label, zorder=2 + 1 / len(amounts))
    return line


def _scale(axes: Sequence[Axes], lines: Sequence[Line2D]) -> None:
    """Choose a logarithmic height where the lines span much, else one from 0; axes share their scales."""
    if wide(np.concatenate([np.asarray(line.get_ydata(), float) for line in lines])):
        axes[0].set_yscale("log", nonpositive="mask")
    else:
        axes[0].set_ylim(bottom=0)
    for ax in axes:
        ax.yaxis.set_major_formatter(StrMethodFormatter(PLAIN))


def _outline(
    ax: Axes, index: int, share: NDArray[Any], edges: NDArray[Any], label: str, *, alone: bool
) -> Any:
    """Draw a histogram: filled if it is alone, else as an outline."""
    if alone:
        return ax.stairs(
            share, edges, fill=True, color=style.PLAIN, edgecolor="white", linewidth=0.8, label=label
        )
    look = style.line(index)
    return ax.stairs(
        share, edges, color=look["color"], linestyle=look["linestyle"], linewidth=1.5, label=label
    )
