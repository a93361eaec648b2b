"""Pictures of accuracy for the lines of a comparison: medians over the seeds with their ranges, failures marked.

A function returns None where there is nothing to draw. A method has one colour in all pictures; controls are black
and grey and stand in every panel, since they have no ε.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from raydpzv.report import style, text
from raydpzv.report.comparison_lines import Line, band, final_accuracy
from raydpzv.report.comparison_text import calibrated, named
from raydpzv.report.figure import PLAIN, ReportFigure, drawn_before, wide

DISCLAIMER = (
    "ε in this picture is what each method's noise is calibrated to, not what is proved: the privacy table states what "
    "is proved, and against whom."
)
"""Belongs to every picture that shows an ε."""
_MOST_COLUMNS = 4
_LONGEST = 44  # letters of a name in a legend
_BLACK = 6  # place of black in the palette: the controls' own
_GREYS = ("#000000", "#777777", "#a5a5a5")
_FAILED = "a run that failed"
_STAGGER = 0.5  # of the distance between two values of ε, shared by the entrants

Look = dict[str, Any]


def looks(lines: Sequence[Line]) -> dict[str, Look]:
    """Return the colour and dash of every label: the palette without black for entrants, dashed greys for controls."""
    entrants = list(dict.fromkeys(line.label for line in lines if not line.control))
    controls = [c for c in dict.fromkeys(line.label for line in lines if line.control) if c not in entrants]
    found = {label: style.line(i + i // _BLACK) for i, label in enumerate(entrants)}
    for i, label in enumerate(controls):
        dash = (0, (6 - 2 * (i % 3), 2))
        found[label] = {"color": _GREYS[i % len(_GREYS)], "linestyle": dash, "linewidth": 1.5}
    return found


def plain(label: str) -> str:
    """Return a label as matplotlib shows it literally and in bounds: no formula, no hidden name."""
    short = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def spent(lines: Sequence[Line]) -> list[float | None]:
    """Return the values of ε of the entrants: none first, then decreasing."""
    values = {line.epsilon for line in lines if not line.control}
    numbers = sorted((v for v in values if v is not None), reverse=True)
    return [*([None] if None in values or not numbers else []), *numbers]


def accuracy_over_updates(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against the updates, one panel for each ε."""
    caption = "Test accuracy against the number of updates."
    return _over(lines, "updates", "update", caption, "updates", 1.0)


def accuracy_over_bytes(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against the bytes of both directions, of lines that send any."""
    divisor, unit = text.size_unit(max(_ends(lines, "bytes"), default=0.0))
    caption = "Test accuracy against the tensor bytes sent by all parties, up and down together."
    return _over(lines, "bytes", "bytes", caption, f"sent, up and down ({unit})", divisor)


def accuracy_over_vector_length(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against DeComFL's communication vector length, of horizontal lines that send any."""
    caption = "Test accuracy against the communication vector length: numbers sent both ways, per client on average."
    return _over(lines, "vector_length", "vector_length", caption, "communication vector length", 1.0)


def accuracy_over_seconds(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against the simulated seconds, of lines in which time passes."""
    caption = "Test accuracy against the simulated seconds of the run's clock."
    return _over(lines, "seconds", "time", caption, "simulated seconds", 1.0)


def accuracy_over_epsilon(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw the final accuracy of each method at each ε; None without any ε."""
    values = spent(lines)
    if all(v is None for v in values) or not _scored(lines):
        return None
    look = looks(lines)
    entrants = list(dict.fromkeys(line.label for line in lines if not line.control))
    figure, axes = style.canvas(
        max(7.0, min(1.6 * len(values) + 0.35 * len(values) * len(entrants), 14.0)), 4.4
    )
    ax = axes[0, 0]
    for control in (line for line in lines if line.control and line.runs):
        _level(ax, control, look[control.label])
    step = _STAGGER / max(len(entrants), 1)
    for i, label in enumerate(entrants):
        own = {line.epsilon: line for line in lines if line.label == label and not line.control and line.runs}
        shift = step * (i - (len(entrants) - 1) / 2)
        _points(ax, [(k + shift, own[v]) for k, v in enumerate(values) if v in own], look[label])
    ax.set_xticks(range(len(values)), [calibrated(v) for v in values])
    ax.set_xlim(-0.5, len(values) - 0.5)
    for k in range(1, len(values)):
        ax.axvline(k - 0.5, color=style.FAINT, linewidth=0.8)
    ax.set_xlabel("ε that the noise is calibrated to (not what is proved)")
    _accuracy_axis(ax)
    style.title(ax, "Final test accuracy")
    _legend(figure, lines, look)
    caption = "Final test accuracy: median over the seeds, bars from the lowest to the highest. "
    return ReportFigure("accuracy_over_epsilon", caption + DISCLAIMER + failed_words(lines), figure)


def _scored(lines: Sequence[Line]) -> bool:
    """Tell whether any run has accuracies; survival times have none."""
    return any(math.isfinite(final_accuracy(run)) for line in lines for run in line.runs)


def failed_words(lines: Sequence[Line]) -> str:
    """Return the sentence that names the lines with failed runs; empty if none failed."""
    failed = [f"{named(line.label, line.epsilon)} ({line.why})" for line in lines if line.failed]
    return f" FAILED, marked × where the run left a curve: {'; '.join(failed)}." if failed else ""


def _over(
    lines: Sequence[Line], name: str, by: str, caption: str, axis: str, divisor: float
) -> ReportFigure | None:
    """Draw one panel for each ε; by: the field of a curve that is x, divided by `divisor`."""
    moving = [line for line in lines if any(x > 0 for x in _ends([line], by))]
    values = spent(moving)
    if not _scored(moving):
        return None
    columns = min(len(values), _MOST_COLUMNS)
    rows = math.ceil(len(values) / columns)
    width = 8.0 if len(values) == 1 else max(8.0, 3.4 * columns)
    figure, axes = style.canvas(width, 0.9 + 3.2 * rows, rows, columns, share=True)
    look = looks(lines)
    if name in ("bytes", "vector_length") and wide(_ends(moving, by)):
        axes[0, 0].set_xscale("log", nonpositive="mask")
    for ax, value in zip(axes.flat, values, strict=False):
        shown = [line for line in moving if line.control or line.epsilon == value]
        ends = _panel(ax, shown, by, divisor, look)
        if len(values) == 1:  # beside another panel the words would have no margin
            style.mark_ends(ax, ends)
        style.title(ax, _noise_words(value, shown))
    _name_axes(axes, len(values), axis)
    _legend(figure, moving, look)
    return ReportFigure(f"accuracy_over_{name}", _caption(caption, lines, moving, values), figure)


def _noise_words(value: float | None, shown: Sequence[Line]) -> str:
    if value is not None:
        return f"calibrated to ε = {calibrated(value)}"
    return "noise calibrated to no ε, or none" if any(line.noisy for line in shown) else "no noise"


def _name_axes(axes: NDArray[Any], panels: int, axis: str) -> None:
    """Name the axes at the left and those with no panel below; hide what is left over of the last row."""
    for ax in axes[:, 0]:
        _accuracy_axis(ax)
    for place, ax in enumerate(axes.flat):
        ax.xaxis.set_major_formatter(StrMethodFormatter(PLAIN))
        if place >= panels:
            ax.set_axis_off()
        elif place + axes.shape[1] >= panels:
            ax.set_xlabel(axis)
            ax.tick_params(labelbottom=True)


def _caption(
    caption: str, lines: Sequence[Line], drawn: Sequence[Line], values: Sequence[float | None]
) -> str:
    said = f"{caption} Median over the seeds, shaded from the lowest to the highest."
    if any(v is not None for v in values):
        said += f" {DISCLAIMER}"
    still = [named(line.label, line.epsilon) for line in lines if line not in drawn]
    if still:
        said += f" Left out: {'; '.join(still)} (nothing to draw against this axis)."
    return said + failed_words(drawn)


def _panel(
    ax: Axes, lines: Sequence[Line], by: str, divisor: float, look: dict[str, Look]
) -> list[tuple[float, float, str, str]]:
    """Draw the lines of one ε; return their ends as `style.mark_ends` takes them."""
    ends: list[tuple[float, float, str, str]] = []
    for line in lines:
        found, own = band(line.curves, by), look[line.label]
        x, median, low, high = style.thin(found.x / divisor, found.median, found.low, found.high)
        marker = "o" if len(x) <= 40 and not line.control else None
        if drawn_before(ax, median):
            own = own | {"linestyle": style.line(0, covers=True)["linestyle"]}
        ax.plot(x, median, marker=marker, markersize=2.5, **own, zorder=2.5)
        ax.fill_between(x, low, high, color=own["color"], alpha=0.15, linewidth=0)
        for run, curve in zip(line.runs, line.curves, strict=True):
            if run in line.failed and len(curve.update):
                _cross(ax, getattr(curve, by)[-1] / divisor, final_accuracy(run), own["color"])
        if len(x):
            ends.append((x[-1], median[-1], text.percent(median[-1]), own["color"]))
    return ends


def _points(ax: Axes, points: Sequence[tuple[float, Line]], look: Look) -> None:
    """Draw the final accuracies of one method, joined by a thin line."""
    accuracy = [np.array([final_accuracy(run) for run in line.runs]) for _, line in points]
    x, median = [at for at, _ in points], [float(np.median(a)) for a in accuracy]
    below = [m - a.min() for m, a in zip(median, accuracy, strict=True)]
    above = [a.max() - m for m, a in zip(median, accuracy, strict=True)]
    ax.plot(x, median, color=look["color"], linestyle=look["linestyle"], linewidth=0.8, alpha=0.6)
    ax.errorbar(
        x, median, yerr=[below, above], fmt="o", markersize=5, capsize=3, color=look["color"], linewidth=1.4
    )
    for at, line in points:
        for run in line.failed:
            _cross(ax, at, final_accuracy(run), look["color"])


def _level(ax: Axes, control: Line, look: Look) -> None:
    accuracy = [final_accuracy(run) for run in control.runs]
    ax.axhline(float(np.median(accuracy)), **look)
    ax.axhspan(min(accuracy), max(accuracy), color=look["color"], alpha=0.1, linewidth=0)


def _cross(ax: Axes, x: float, y: float, colour: str) -> None:
    ax.plot([x], [y], marker="x", markersize=8, markeredgewidth=2, color=colour, zorder=4, clip_on=False)


def _legend(figure: Figure, lines: Sequence[Line], look: dict[str, Look]) -> None:
    labels = list(dict.fromkeys(line.label for line in lines))
    handles = [Line2D([], [], **look[label], label=plain(label)) for label in labels]
    if any(line.failed for line in lines):
        handles.append(
            Line2D(
                [],
                [],
                color=style.INK,
                marker="x",
                markersize=7,
                markeredgewidth=2,
                linestyle="",
                label=_FAILED,
            )
        )
    style.legend(figure, handles, style.columns_for([str(h.get_label()) for h in handles]))


def _accuracy_axis(ax: Axes) -> None:
    ax.set_ylabel("test accuracy (%)")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))


def _ends(lines: Sequence[Line], by: str) -> list[float]:
    """Return where the runs' curves end."""
    return [float(getattr(c, by)[-1]) for line in lines for c in line.curves if len(c.update)]
