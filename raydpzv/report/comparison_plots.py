"""Pictures of a comparison's lines: accuracy, and what it took to reach a target, as medians with
ranges over seeds.

A function returns None where there is nothing to draw. A method has one colour in all pictures.
Controls are black and grey, and are in every panel, since they have no ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from raydpzv.report import plots, text
from raydpzv.report.comparison_lines import Line, band, calibrated, final_accuracy, judged, named
from raydpzv.report.comparison_table import ComparisonView, target_name
from raydpzv.report.plots import Curve, Look, Panel, ReportFigure

DISCLAIMER = (
    "ε in this picture is what each method's noise is calibrated to, not what is proved: the "
    "privacy table states what is proved, and against whom."
)
"""Belongs to every picture that shows an ε."""
_MOST_COLUMNS = 4
_MOST_TARGETS = 3  # panels beside each other
_ROOM = 0.6  # of the bars' span, kept right of the longest one for its words
_LONGEST = 44  # letters of a name in a legend
_BLACK = 6  # place of black in the palette: the controls' own
_GREYS = ("#000000", "#777777", "#a5a5a5")
_FAILED = "a run that failed"
_STAGGER = 0.5  # of the distance between two values of ε, shared by the methods

Row = Mapping[str, Any]


def looks(lines: Sequence[Line]) -> dict[str, Look]:
    """Return the colour and dash of every label: the palette without black for methods, dashed
    greys for controls.
    """
    methods = list(dict.fromkeys(line.label for line in lines if not line.control))
    controls = [
        c for c in dict.fromkeys(line.label for line in lines if line.control) if c not in methods
    ]
    found = {label: plots.line(i + i // _BLACK) for i, label in enumerate(methods)}
    for i, label in enumerate(controls):
        dash = (0, (6 - 2 * (i % 3), 2))
        found[label] = {"color": _GREYS[i % len(_GREYS)], "linestyle": dash, "linewidth": 1.5}
    return found


def plain(label: str) -> str:
    """Return a label as matplotlib shows it literally and in bounds: no formula, no hidden name."""
    short = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def spent(lines: Sequence[Line]) -> list[float | None]:
    """Return the values of ε of the methods: none first, then decreasing."""
    values = {line.epsilon for line in lines if not line.control}
    numbers = sorted((v for v in values if v is not None), reverse=True)
    return [*([None] if None in values or not numbers else []), *numbers]


@dataclass(frozen=True)
class _Over:
    """What accuracy is drawn over: the field of a run's evaluations, its words on the axis, its
    unit.

    name: of the picture; wide: may the axis be logarithmic?
    """

    name: str
    field: str
    words: str
    caption: str
    unit: float = 1.0
    wide: bool = False


def accuracy_over_updates(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against the updates, one panel for each ε."""
    caption = "Test accuracy against the number of updates."
    return _over(lines, _Over("updates", "update", "updates", caption))


def accuracy_over_bytes(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against the bytes of both directions, of lines that send any."""
    unit, name = text.size_unit(max(_ends(lines, "bytes"), default=0.0))
    caption = "Test accuracy against the tensor bytes sent by all parties, up and down together."
    return _over(
        lines, _Over("bytes", "bytes", f"sent, up and down ({name})", caption, unit, wide=True)
    )


def accuracy_over_vector_length(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against DeComFL's communication vector length, of horizontal lines that
    send any.
    """
    name = "vector_length"
    caption = (
        "Test accuracy against the communication vector length: numbers sent both ways, per client "
        "on average."
    )
    return _over(lines, _Over(name, name, "communication vector length", caption, wide=True))


def accuracy_over_seconds(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw test accuracy against the simulated seconds, of lines in which time passes."""
    caption = "Test accuracy against the simulated seconds of the run's clock."
    return _over(lines, _Over("seconds", "time", "simulated seconds", caption))


def accuracy_over_epsilon(lines: Sequence[Line]) -> ReportFigure | None:
    """Draw the final accuracy of each method at each ε, or what runs without one are judged by;
    None without any ε.
    """
    (score, lines), values = judged(lines), spent(lines)
    if all(v is None for v in values) or not _scored(lines):
        return None
    look = looks(lines)
    methods = list(dict.fromkeys(line.label for line in lines if not line.control))
    figure, axes = plots.canvas(
        max(7.0, min(1.6 * len(values) + 0.35 * len(values) * len(methods), 14.0)), 4.4
    )
    ax = axes[0, 0]
    for control in (line for line in lines if line.control and line.runs):
        _level(ax, control, look[control.label])
    step = _STAGGER / max(len(methods), 1)
    for i, label in enumerate(methods):
        own = {
            line.epsilon: line
            for line in lines
            if line.label == label and not line.control and line.runs
        }
        shift = step * (i - (len(methods) - 1) / 2)
        _points(ax, [(k + shift, own[v]) for k, v in enumerate(values) if v in own], look[label])
    ax.set_xticks(range(len(values)), [calibrated(v) for v in values])
    ax.set_xlim(-0.5, len(values) - 0.5)
    for k in range(1, len(values)):
        ax.axvline(k - 0.5, color=plots.FAINT, linewidth=0.8)
    ax.set_xlabel("ε that the noise is calibrated to (not what is proved)")
    _score_axis(ax, score)
    plots.head(ax, f"Final test {score}")
    _legend(figure, lines, look)
    caption = f"Final test {score}: median over the seeds, bars from the lowest to the highest. "
    return ReportFigure("accuracy_over_epsilon", caption + DISCLAIMER + failed_words(lines), figure)


def accuracy_panel(lines: Sequence[Line]) -> Panel | None:
    """Return the page's chart of what runs are judged by, over updates with bands over the seeds;
    None without any.
    """
    score, lines = judged(lines)
    look, curves = looks(lines), []
    for place, line in enumerate(lines):
        found = band(line.curves, "update")
        if len(found.x):
            name, edges = named(line.label, line.epsilon), (found.low, found.high)
            own = look[line.label]
            curves.append(
                Curve(found.x, found.median, own, name, edges, run=place, group=_group(line))
            )
    return Panel(f"Test {score}", f"test {score}", curves, _form(score)) if curves else None


def cost_panel(lines: Sequence[Line]) -> Panel | None:
    """Return the page's chart of final scores over bytes, each with its ε; None where nothing
    travels.
    """
    score, lines = judged(lines)
    look, curves, notes = looks(lines), [], []
    for place, line in enumerate(lines):
        sent = [float(curve.bytes[-1]) for curve in line.curves if len(curve.bytes)]
        accuracy = [final_accuracy(run) for run in line.runs]
        if not sent or not math.isfinite(np.median(accuracy)) or not np.median(sent) > 0:
            continue
        x, y = np.array([np.median(sent)]), np.array([np.median(accuracy)])
        curves.append(
            Curve(
                x,
                y,
                look[line.label],
                named(line.label, line.epsilon),
                run=place,
                group=_group(line),
            )
        )
        notes.append([] if line.epsilon is None else [f"ε {calibrated(line.epsilon)}"])
    title, axis = f"{score[0].upper()}{score[1:]}, ε and bytes", "bytes sent, up and down"
    return (
        Panel(title, f"test {score}", curves, _form(score), axis, notes=notes) if curves else None
    )


def _form(score: str) -> Literal["percent", "number"]:
    return "percent" if score == "accuracy" else "number"


def _group(line: Line) -> str:
    """Return the lines that a page shows a line with: those of its ε; a control is with all of
    them.
    """
    return "*" if line.control else _noise_words(line.epsilon, [line])


def _scored(lines: Sequence[Line]) -> bool:
    """Return whether any run has what it is judged by; of survival times only the last one is
    kept.
    """
    return any(math.isfinite(final_accuracy(run)) for line in lines for run in line.runs)


def failed_words(lines: Sequence[Line]) -> str:
    """Return the sentence that names the lines with failed runs; empty if none failed."""
    failed = [f"{named(line.label, line.epsilon)} ({line.why})" for line in lines if line.failed]
    return f" FAILED, marked × where the run left a curve: {'; '.join(failed)}." if failed else ""


def _over(lines: Sequence[Line], over: _Over) -> ReportFigure | None:
    """Draw one panel for each ε."""
    score, lines = judged(lines)
    moving = [line for line in lines if any(x > 0 for x in _ends([line], over.field))]
    values = spent(moving)
    if not _scored(moving):
        return None
    columns = min(len(values), _MOST_COLUMNS)
    rows = math.ceil(len(values) / columns)
    width = 8.0 if len(values) == 1 else max(8.0, 3.4 * columns)
    figure, axes = plots.canvas(width, 0.9 + 3.2 * rows, rows, columns, share=True)
    look = looks(lines)
    if over.wide and plots.wide(_ends(moving, over.field)):
        plots.plain_log(axes[0, 0], "x")
    for ax, value in zip(axes.flat, values, strict=False):
        shown = [line for line in moving if line.control or line.epsilon == value]
        curves = _panel(ax, shown, over, look, text.percent if score == "accuracy" else text.short)
        if len(values) == 1:  # beside another panel the words would have no margin
            plots.mark_ends(ax, curves)
        plots.head(ax, _noise_words(value, shown))
    for ax in axes[:, 0]:
        _score_axis(ax, score)
    _name_axes(axes, len(values), over.words)
    _legend(figure, moving, look)
    caption = over.caption.replace("accuracy", score, 1)
    return ReportFigure(
        f"accuracy_over_{over.name}", _caption(caption, lines, moving, values), figure
    )


def _noise_words(value: float | None, shown: Sequence[Line]) -> str:
    if value is not None:
        return f"calibrated to ε = {calibrated(value)}"
    return "noise calibrated to no ε, or none" if any(line.noisy for line in shown) else "no noise"


def _name_axes(axes: NDArray[Any], panels: int, axis: str) -> None:
    """Name the axes with no panel below; hide what is left over of the last row."""
    for place, ax in enumerate(axes.flat):
        ax.xaxis.set_major_formatter(StrMethodFormatter(plots.NUMBER))
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
    ax: Axes,
    lines: Sequence[Line],
    over: _Over,
    look: Mapping[str, Look],
    said: Callable[[float], str],
) -> list[Curve]:
    """Draw the lines of one ε; return their curves."""
    curves = []
    for line in lines:
        found = band(line.curves, over.field)
        end = said(found.median[-1]) if len(found.x) else ""
        edges, own = (found.low, found.high), look[line.label]
        curves.append(
            Curve(
                found.x / over.unit,
                found.median,
                own,
                "",
                edges,
                end,
                marked=not line.control,
                over=2.5,
            )
        )
        for run, curve in zip(line.runs, line.curves, strict=True):
            if run in line.failed and len(curve.update):
                _cross(
                    ax,
                    getattr(curve, over.field)[-1] / over.unit,
                    final_accuracy(run),
                    own["color"],
                )
    plots.lines(ax, curves)
    return curves


def _points(ax: Axes, points: Sequence[tuple[float, Line]], look: Look) -> None:
    """Draw the final accuracies of one method, joined by a thin line."""
    accuracy = [np.array([final_accuracy(run) for run in line.runs]) for _, line in points]
    x, median = [at for at, _ in points], [float(np.median(a)) for a in accuracy]
    below = [m - a.min() for m, a in zip(median, accuracy, strict=True)]
    above = [a.max() - m for m, a in zip(median, accuracy, strict=True)]
    ax.plot(x, median, color=look["color"], linestyle=look["linestyle"], linewidth=0.8, alpha=0.6)
    ax.errorbar(
        x,
        median,
        yerr=[below, above],
        fmt="o",
        markersize=5,
        capsize=3,
        color=look["color"],
        linewidth=1.4,
    )
    for at, line in points:
        for run in line.failed:
            _cross(ax, at, final_accuracy(run), look["color"])


def _level(ax: Axes, control: Line, look: Look) -> None:
    accuracy = [final_accuracy(run) for run in control.runs]
    ax.axhline(float(np.median(accuracy)), **look)
    ax.axhspan(min(accuracy), max(accuracy), color=look["color"], alpha=0.1, linewidth=0)


def _cross(ax: Axes, x: float, y: float, colour: str) -> None:
    ax.plot(
        [x], [y], marker="x", markersize=8, markeredgewidth=2, color=colour, zorder=4, clip_on=False
    )


def _legend(figure: Figure, lines: Sequence[Line], look: Mapping[str, Look]) -> None:
    labels = list(dict.fromkeys(line.label for line in lines))
    handles = [Line2D([], [], **look[label], label=plain(label)) for label in labels]
    if any(line.failed for line in lines):
        look_of_cross: Look = {"color": plots.INK, "marker": "x", "linestyle": ""}
        handles.append(
            Line2D([], [], **look_of_cross, markersize=7, markeredgewidth=2, label=_FAILED)
        )
    plots.legend(figure, handles)


def _score_axis(ax: Axes, score: str) -> None:
    share = score == "accuracy"
    ax.set_ylabel(f"test {score}{' (%)' if share else ''}")
    if share:
        plots.percents(ax)


def _ends(lines: Sequence[Line], by: str) -> list[float]:
    """Return where the runs' curves end."""
    return [float(getattr(c, by)[-1]) for line in lines for c in line.curves if len(c.update)]


@dataclass(frozen=True)
class _Spent:
    """What is drawn: the columns' name, the words on the axis, its unit, and a value in words."""

    name: str
    axis: str
    divisor: float
    said: Callable[[float], str]

    def of(self, row: Row, target: float, end: str = "median") -> float:
        """Return a row's cost of a target in units of the axis."""
        return float(row[f"{self.name}_{target_name(target)}_{end}"]) / self.divisor


def bytes_to_target(view: ComparisonView) -> ReportFigure | None:
    """Draw the median bytes, up and down together, up to each target that any run reached."""
    ends = [row[f"bytes_{target_name(t)}_median"] for t in view.targets for row in view.rows]
    divisor, unit = text.size_unit(max((v for v in ends if math.isfinite(v)), default=0.0))
    cost = _Spent("bytes", f"sent, up and down ({unit})", divisor, text.size)
    caption = "Bytes, up and down together, until the first evaluation at or above a test accuracy"
    return _draw_costs(view, cost, caption)


def seconds_to_target(view: ComparisonView) -> ReportFigure | None:
    """Draw the median simulated seconds up to each target that any run reached; None where no time
    passes.
    """
    cost = _Spent("seconds", "simulated seconds", 1.0, lambda v: f"{text.number(v)} s")
    return _draw_costs(
        view, cost, "Simulated seconds until the first evaluation at or above a test accuracy"
    )


def _draw_costs(view: ComparisonView, cost: _Spent, caption: str) -> ReportFigure | None:
    """Draw one panel for each target, one bar for each line."""
    rows, look, asked = view.rows, looks(view.lines), list(dict.fromkeys(view.targets))
    reached = [t for t in asked if any(r[f"reached_{target_name(t)}"] for r in rows)]
    costs = [cost.of(r, t, end) for t in reached for r in rows for end in ("median", "min", "max")]
    ends = [v for v in costs if math.isfinite(v) and v > 0]
    medians = [cost.of(r, t, "median") for t in reached for r in rows]
    if not ends or not any(map(math.isfinite, medians)):
        return None
    columns = min(len(reached), _MOST_TARGETS)
    down = math.ceil(len(reached) / columns)
    height = down * (0.8 + 0.27 * len(rows)) + 0.4
    figure, axes = plots.canvas(3.0 + 3.2 * columns, height, down, columns, share=True)
    _scale(axes[0, 0], ends)
    for ax, target in zip(axes.flat, reached, strict=False):
        for place, row in enumerate(rows):
            _bar(ax, place, row, target, cost, look[row["label"]])
        ax.grid(visible=False, axis="y")
        plots.head(ax, f"{100 * target:g} % test accuracy")
        ax.xaxis.set_major_formatter(StrMethodFormatter(plots.NUMBER))
    for ax in axes.flat[len(reached) :]:
        ax.set_axis_off()
    axes[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    axes[0, 0].set_yticks(range(len(rows)), [_name(row) for row in rows])
    figure.supxlabel(cost.axis, fontsize=10, color=plots.INK)
    return ReportFigure(
        f"{cost.name}_to_target", _cost_caption(caption, rows, asked, reached), figure
    )


def _scale(ax: Axes, ends: Sequence[float]) -> None:
    """Choose a logarithmic axis where the costs span much, and keep room for words beside the
    longest bar.
    """
    low, high = min(ends), max(ends)
    if plots.wide(ends):
        ax.set_xscale("log")
        ax.set_xlim(low / 2, high * (2 * high / low) ** _ROOM)
    else:
        ax.set_xlim(0, high * (1 + _ROOM))


def _bar(ax: Axes, place: int, row: Row, target: float, cost: _Spent, look: Look) -> None:
    median, left = cost.of(row, target), ax.get_xlim()[0]
    count, runs = row[f"reached_{target_name(target)}"], row["runs"]
    if math.isinf(median) or math.isnan(median):
        words, end = (f"{count} of {runs} reached it" if count else "not reached"), left
    else:
        ax.barh(
            place, max(median - left, 0.0), left=left, height=0.62, color=look["color"], alpha=0.85
        )
        low, high = cost.of(row, target, "min"), cost.of(row, target, "max")
        end = high if math.isfinite(high) else median
        if low < end:
            ax.plot(
                [low, end], [place, place], color=plots.INK, linewidth=1.2, marker="|", markersize=5
            )
        words = cost.said(median * cost.divisor) + (f" ({count} of {runs})" if count < runs else "")
    colour = plots.INK if math.isfinite(median) else "#888888"
    ax.annotate(
        words, (max(end, left), place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
        color=colour,
    )  # fmt: skip


def _name(row: Row) -> str:
    said = plain(row["label"])
    return said if row["epsilon"] is None else f"{said}, ε {calibrated(row['epsilon'])}"


def _cost_caption(
    caption: str, rows: Sequence[Row], asked: Sequence[float], reached: Sequence[float]
) -> str:
    said = (
        f"{caption}: median over the seeds, strokes from the lowest to the highest of those that "
        "reached it."
    )
    if missed := [f"{100 * t:g} %" for t in asked if t not in reached]:
        said += f" No run reached {' or '.join(missed)}."
    return said + (f" {DISCLAIMER}" if any(row["epsilon"] is not None for row in rows) else "")
