"""One look for every picture: the palette, clean axes, legends outside the data, PNG bytes.

Only matplotlib's object interface is used, so that no global state is read or changed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours that tell apart under every common colour blindness, without the pale yellow."""

LATE, PLAIN, FAINT, INK = PALETTE[1], PALETTE[0], "#d9d9d9", "#333333"
_DASHES = ("solid", (0, (6, 2)), (0, (2, 1.5)))
_GAPS = (0, (5, 5))
_MOST_POINTS = 4000
_MOST_ENDS = 8
_LINE = 0.17  # inches of a line of a legend
_APART = 0.06  # of the axes' height: a line of small print


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, share: bool = False
) -> tuple[Figure, NDArray[Any]]:
    """Return an empty figure (inches) and its axes [rows, columns], styled; `share` ties their scales."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    for ax in axes.flat:
        _clean(ax)
    return figure, axes


def line(index: int, covers: bool = False) -> dict[str, Any]:
    """Return the colour and dash of the run at this place; no two of 21 runs look the same.

    A curve that `covers` an equal one has gaps through which the other shows.
    """
    dash = _GAPS if covers else _DASHES[index // len(PALETTE) % len(_DASHES)]
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": dash, "linewidth": 1.8}


def title(ax: Axes, text: str) -> None:
    """Set a left-aligned title."""
    ax.set_title(text, loc="left", fontsize=11, color=INK, fontweight="bold")


def legend(figure: Figure, handles: Sequence[Any], columns: int = 1, upper: bool = False) -> None:
    """Put a legend below (or above) the axes, never over the data; the figure grows by its lines after the first."""
    place: Literal["outside upper left", "outside lower left"] = "outside lower left"
    if upper:
        place = "outside upper left"
    figure.set_figheight(figure.get_figheight() + _LINE * (-(-len(handles) // columns) - 1))
    figure.legend(handles=list(handles), loc=place, ncols=columns, frameon=False, fontsize=9)


def mark_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Ring the last point of up to 8 curves, (x, y, words, colour) each, and write its words in the margin.

    Call it when all is drawn and scaled: words too close to each other are moved apart.
    """
    if len(ends) > _MOST_ENDS:
        return
    right = ax.get_xlim()[1]
    for x, y, _, colour in ends:
        ax.scatter([x], [y], s=42, facecolor="white", edgecolor=colour, linewidth=1.6, zorder=3)
        ax.hlines(y, x, right, color=colour, linestyle=":", linewidth=1)
    ax.set_xlim(right=right)
    to_axes = ax.transScale + ax.transLimits
    heights = [float(to_axes.transform((x, y))[1]) for x, y, _, _ in ends]
    for (_, _, words, colour), height in zip(ends, spread(heights, _APART), strict=True):
        ax.annotate(
            words, (1, height), xycoords="axes fraction", xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=9, color=colour, annotation_clip=False,
        )  # fmt: skip


def spread(heights: Sequence[float], apart: float, top: float = 1.0) -> list[float]:
    """Return the heights moved as little as keeps them `apart`, in the order given: upwards, down from the top."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed: list[float] = []
    for i in order:
        placed.append(max(heights[i], placed[-1] + apart) if placed else heights[i])
    limit = max([top, *heights])
    for k in reversed(range(len(placed))):
        placed[k] = min(placed[k], limit)
        limit = placed[k] - apart
    return [placed[order.index(i)] for i in range(len(heights))]


def columns_for(labels: Sequence[str]) -> int:
    """Return how many legend columns fit the labels: about 100 characters a line."""
    return max(1, min(len(labels), 100 // (max(map(len, labels), default=1) + 6)))


def thin(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Return every k-th entry and the last, few enough to draw; all of them if they are few."""
    length = len(arrays[0])
    if length <= _MOST_POINTS:
        return list(arrays)
    kept = np.unique(np.linspace(0, length - 1, _MOST_POINTS).astype(int))
    return [a[kept] for a in arrays]


def png(figure: Figure) -> bytes:
    """Return the figure as PNG, without a software stamp: equal figures give equal bytes."""
    buffer = io.BytesIO()
    # `savefig` draws twice where a layout is computed, with the same pixels
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _clean(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#888888")
    ax.tick_params(labelsize=9, color="#888888", labelcolor=INK)
    ax.grid(axis="y", color="#ececec", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.xaxis.label.set_color(INK)
    ax.yaxis.label.set_color(INK)
