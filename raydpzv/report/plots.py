"""One look for every picture: the palette, clean axes, curves on them, legends outside the data,
PNG bytes.

Only matplotlib's object interface is used, so that no global state is read or changed.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from raydpzv.errors import InputError

_STAMPS: Mapping[str, dict[str, Any]] = {
    "png": {},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
FORMS = tuple(_STAMPS)
"""Forms that pictures are written in."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours that tell apart under every common colour blindness, without the pale
yellow.
"""

NUMBER = "{x:,.10g}"
"""Numbers on an axis: no powers of ten."""
LATE, PLAIN, FAINT, INK = PALETTE[1], PALETTE[0], "#d9d9d9", "#333333"
_DASHES = ("solid", (0, (6, 2)), (0, (2, 1.5)))
GAPS = (0, (5, 5))
"""Dashes of a curve that covers an equal one, which shows through them."""
_SPAN = 20
"""Largest by smallest value from which a logarithmic axis shows more than a linear one."""
_MARKED = 10_000
"""Largest by smallest value of a logarithmic axis with marks between powers of ten: each takes
milliseconds to draw.
"""
_FEW = 40
"""Most points of a curve that are marked one by one."""
_MOST_POINTS = 4000
_MOST_ENDS = 8
_LINE = 0.17  # inches of a line of a legend
_APART = 0.06  # of the axes' height: a line of small print


Look = dict[str, Any]
Form = Literal["percent", "number"]


@dataclass(frozen=True)
class Curve:
    """A curve: its points, its look (see `line`), and its name in a legend.

    band: its lowest and highest values, to be shaded; end: words for the margin, beside its last
    point; marked: few points are marked one by one; over: which curve lies above another one. A
    page finds other x axes of a curve over updates by run, the place of its run among the runs.
    group: of curves that a page shows together.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    look: Look
    label: str = ""
    band: tuple[NDArray[Any], NDArray[Any]] | None = None
    end: str = ""
    marked: bool = False
    over: float = 2.0
    run: int = 0
    group: str = ""


@dataclass(frozen=True)
class Panel:
    """A chart of the page: its title, the words and the form of its heights, and its curves over
    updates.

    over: words of an x axis of its own, whose curves are drawn as steps, a lone one filled; ticks:
    names of the steps.
    notes: words at the points of each curve.
    """

    title: str
    y: str
    curves: Sequence[Curve]
    form: Form = "number"
    over: str = ""
    ticks: Sequence[str] = ()
    notes: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class ReportFigure:
    """A figure with its file name (no suffix) and caption, and the charts that a page shows in its
    place.

    No figure where the caption says all there is.
    """

    name: str
    caption: str
    figure: Figure | None
    panels: Sequence[Panel] = ()


def lines(ax: Axes, curves: Sequence[Curve]) -> list[Line2D]:
    """Draw curves, thinned; one that covers an equal one has gaps. Return their handles for a
    legend.
    """
    handles = []
    for curve in curves:
        look = curve.look | ({"linestyle": GAPS} if drawn_before(ax, curve) else {})
        marker = "o" if curve.marked and len(curve.x) <= _FEW else None
        x, y = thin(curve.x, curve.y)
        handles += ax.plot(
            x, y, marker=marker, markersize=3.5, **look, label=curve.label, zorder=curve.over
        )
        if curve.band:
            x, low, high = thin(curve.x, *curve.band)
            ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    return handles


def outline(
    ax: Axes, share: NDArray[Any], edges: NDArray[Any], look: Look | None, label: str = ""
) -> Any:
    """Draw a histogram as an outline of this look, or filled if it is alone."""
    if look is None:
        return ax.stairs(
            share, edges, fill=True, color=PLAIN, edgecolor="white", linewidth=0.8, label=label
        )
    return ax.stairs(share, edges, **look | {"linewidth": 1.5}, label=label)


def drawn_before(ax: Axes, curve: Curve) -> bool:
    """Return whether an earlier line already has these heights and would vanish below this one."""
    (y,) = thin(curve.y)
    return any(
        np.array_equal(np.asarray(line.get_ydata()), y, equal_nan=True) for line in ax.get_lines()
    )


def chart(title: str, x: str, y: str, height: float = 4.2) -> tuple[Figure, Axes]:
    """Return a figure with one styled pair of axes."""
    figure, axes = canvas(8.0, height)
    ax = axes[0, 0]
    head(ax, title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.xaxis.set_major_formatter(StrMethodFormatter(NUMBER))
    return figure, ax


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, share: bool = False
) -> tuple[Figure, NDArray[Any]]:
    """Return an empty figure (inches) and its axes [rows, columns], styled; `share` ties their
    scales.
    """
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    for ax in axes.flat:
        _clean(ax)
    return figure, axes


def line(index: int) -> Look:
    """Return the colour and dash of the run at this place; no two of 21 runs look the same."""
    dash = _DASHES[index // len(PALETTE) % len(_DASHES)]
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": dash, "linewidth": 1.8}


def head(ax: Axes, title: str) -> None:
    """Set a left-aligned title, at a height that need not be searched."""
    ax.set_title(title, loc="left", y=1, fontsize=11, color=INK, fontweight="bold")


def percents(ax: Axes, decimals: int | None = None) -> None:
    """Show heights, shares of 1, as percentages."""
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol="", decimals=decimals))


def plain_log(ax: Axes, direction: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, without powers of ten; values of 0 are left out."""
    getattr(ax, f"set_{direction}scale")("log", nonpositive="mask")
    axis = getattr(ax, f"{direction}axis")
    axis.set_major_formatter(StrMethodFormatter(NUMBER))
    low, high = getattr(ax, f"get_{direction}lim")()
    if high > _MARKED * low:
        axis.set_minor_locator(NullLocator())


def wide(values: Sequence[float] | NDArray[Any]) -> bool:
    """Return whether positive values span so much that a logarithmic axis shows more; zeros do not
    count.
    """
    positive = [v for v in values if v > 0]
    return bool(positive) and max(positive) > _SPAN * min(positive)


def legend(
    figure: Figure, handles: Sequence[Any], columns: int | None = None, *, upper: bool = False
) -> None:
    """Put a legend below (or above) the axes, never over the data; the figure grows by its lines
    after the first.

    columns: as many as fit if left out: about 100 characters a line.
    """
    place: Literal["outside upper left", "outside lower left"] = "outside lower left"
    if upper:
        place = "outside upper left"
    if columns is None:
        longest = max((len(str(handle.get_label())) for handle in handles), default=1)
        columns = max(1, min(len(handles), 100 // (longest + 6)))
    figure.set_figheight(figure.get_figheight() + _LINE * (-(-len(handles) // columns) - 1))
    figure.legend(handles=list(handles), loc=place, ncols=columns, frameon=False, fontsize=9)


def mark_ends(ax: Axes, curves: Sequence[Curve]) -> None:
    """Ring the last point of up to 8 curves, and write their words at the end in the margin.

    Call it when all is drawn and scaled: words too close to each other are moved apart. A curve
    without words, without points or with no place on a logarithmic axis gets none.
    """
    ends = [
        (float(c.x[-1]), float(c.y[-1]), c.end, c.look["color"])
        for c in curves
        if c.end and len(c.x)
    ]
    ends = [end for end in ends if np.isfinite(end[1]) and (ax.get_yscale() != "log" or end[1] > 0)]
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
    """Return the heights moved as little as keeps them `apart`, in the order given: upwards, down
    from the top.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed: list[float] = []
    for i in order:
        placed.append(max(heights[i], placed[-1] + apart) if placed else heights[i])
    limit = max([top, *heights])
    for k in reversed(range(len(placed))):
        placed[k] = min(placed[k], limit)
        limit = placed[k] - apart
    return [placed[order.index(i)] for i in range(len(heights))]


def thin(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Return every k-th entry and the last, few enough to draw; all of them if they are few."""
    length = len(arrays[0])
    if length <= _MOST_POINTS:
        return list(arrays)
    kept = np.unique(np.linspace(0, length - 1, _MOST_POINTS).astype(int))
    return [a[kept] for a in arrays]


def check_form(form: str) -> None:
    """Raise InputError unless pictures can have this form."""
    if form not in FORMS:
        raise InputError(f'format: wanted one of {", ".join(FORMS)}, got "{form}"')


def image(figure: Figure, form: str = "png") -> bytes:
    """Return the figure as PNG, PDF or SVG, without a stamp: equal figures give equal bytes.

    Letters that the font lacks are boxes, which is no reason to warn: pages have the names.
    """
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        if form != "png":
            with rc_context({"svg.hashsalt": "raydpzv"}):
                figure.savefig(buffer, format=form, metadata=_STAMPS[form])
            return buffer.getvalue()
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
