"""Pictures of runs against updates, seconds and bytes. Each function overlays the labelled runs it is given.

A function returns None where no run has rows for its picture. Pictures per client are in
`raydpzv.report.clients`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from raydpzv.records import folds
from raydpzv.records.store import Rows
from raydpzv.report import style, text

PAPER = "claimed by the paper, not proved"
PAPER_TRUE = "claimed by the paper, here proved"
CLIENT = "proved against a client that knows its batches"
_CLOCK = "run clock (s)"
_PLAIN = "{x:,.10g}"


@dataclass(frozen=True)
class RunView:
    """What a picture or a table needs to know of a run: its label in legends, summary.json, its rows."""

    label: str
    summary: dict[str, Any]
    rows: Rows


@dataclass(frozen=True)
class Picture:
    """A figure with its file name (no suffix) and caption; no figure where the caption says all there is."""

    name: str
    caption: str
    figure: Figure | None


def accuracy_over_updates(runs: Sequence[RunView]) -> Picture | None:
    """Draw test accuracy against the server's rounds."""
    caption = "Test accuracy against the number of uploads the server has served."
    return _accuracy(runs, "updates", caption, lambda s, _: s.round, "updates (server rounds)")


def accuracy_over_seconds(runs: Sequence[RunView]) -> Picture | None:
    """Draw test accuracy against the run's own clock."""
    caption = "Test accuracy against the run's own clock (simulated seconds under the virtual clock)."
    return _accuracy(runs, "seconds", caption, lambda s, _: s.time, _CLOCK)


def accuracy_over_bytes(runs: Sequence[RunView]) -> Picture | None:
    """Draw test accuracy against the tensor bytes on the wire, both directions."""
    sent = [int(_evaluations(r).bytes.max(initial=0)) for r in runs]
    divisor, unit = text.size_unit(max(sent, default=0))
    caption = "Test accuracy against the tensor bytes sent, uploads and replies together."
    return _accuracy(runs, "bytes", caption, lambda s, _: s.bytes / divisor, f"sent, up and down ({unit})")


def loss_over_updates(runs: Sequence[RunView]) -> Picture | None:
    """Draw the running mean of the server's training loss, and a lone run's single losses behind it."""
    series = [(i, r, *_finite(*folds.loss_series(r.rows["service"]))) for i, r in enumerate(runs)]
    drawn = [s for s in series if len(s[2])]
    if not drawn:
        return None
    figure, ax = _figure("Training loss", "updates (server rounds)", "training loss on the upload's batch")
    handles = []
    for i, run, rounds, loss in drawn:
        window = max(1, len(loss) // 40)
        if len(runs) == 1:
            x, y = style.thin(rounds, loss)
            ax.plot(x, y, ".", color=style.FAINT, markersize=3)
            handles.append(
                Line2D([], [], color=style.FAINT, marker=".", linestyle="", label="single uploads")
            )
        x, y = style.thin(rounds[window - 1 :], _running_mean(loss, window))
        look = style.line(i, covers=_drawn_before(ax, y))
        handles += ax.plot(x, y, **look, label=f"{run.label}: mean of the last {window}")
    style.legend(figure, handles, style.columns_for([str(h.get_label()) for h in handles]))
    return Picture("loss_over_updates", "Running mean of the training loss on the uploads' batches.", figure)


def epsilon_over_updates(runs: Sequence[RunView]) -> Picture | None:
    """Draw ε spent so far, as the paper claims it and as it is proved; name what cannot be drawn.

    A curve is drawn only where it is finite and where summary.json states its δ, mechanism, relation,
    adversary and accountant, which its legend repeats.
    """
    series = [(i, r, folds.epsilon_series(r.rows["release"])) for i, r in enumerate(runs)]
    curves = [
        _Curve(i, r, kind, s.round, values)
        for i, r, s in series
        for kind, values in (("client", s.client), ("paper", s.paper))
        if len(s.round)
    ]
    if not curves:
        return None
    left_out = [f"{c.run.label}, {c.name}: {c.obstacle}" for c in curves if c.obstacle]
    drawn = [c for c in curves if len(c.finite[0])]
    names = dict.fromkeys(f"{'dashed' if c.kind == 'paper' else 'solid'} is {c.name}" for c in drawn)
    caption = f"ε spent so far{': ' if names else ''}{', '.join(names)}."
    if left_out:
        caption += f" Not drawn: {'; '.join(left_out)}."
    return Picture("epsilon_over_updates", caption, _draw_epsilon(_merge(drawn)) if drawn else None)


@dataclass(frozen=True)
class _Curve:
    """One series of ε of one run; `kind` is "paper" or "client"."""

    index: int
    run: RunView
    kind: str
    round: NDArray[Any]
    values: NDArray[Any]

    @property
    def name(self) -> str:
        if self.kind == "client":
            return CLIENT
        return PAPER_TRUE if self.claim and self.claim["holds"] else PAPER

    @property
    def claim(self) -> text.Claim | None:
        return text.claim_behind(self.run.summary.get("epsilon") or [], self.kind, float(self.values[-1]))

    @property
    def terms(self) -> str:
        return text.claim_text(self.claim) if self.claim else ""

    @property
    def finite(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The points to draw: none where the terms are not stated."""
        return _finite(self.round, self.values) if self.claim else (self.round[:0], self.values[:0])

    @property
    def obstacle(self) -> str:
        """Why all or some of the curve cannot be drawn; empty if nothing is left out."""
        infinite, missing = int(np.isinf(self.values).sum()), int(np.isnan(self.values).sum())
        total = len(self.values)
        parts = [f"ε is infinite at {infinite:,} of {total:,} rounds"] if infinite else []
        parts += [f"no ε is stated at {missing:,} of {total:,} rounds"] if missing else []
        if infinite + missing < total and not self.claim:
            parts.append("the summary does not state its terms")
        return " and ".join(parts)


def _merge(curves: Sequence[_Curve]) -> list[_Curve]:
    """Return equal curves with equal terms as one, under the names of all their runs."""
    groups: list[list[_Curve]] = []
    for curve in curves:
        twins = next((g for g in groups if _equal(g[0], curve)), None)
        if twins is None:
            groups.append([curve])
        else:
            twins.append(curve)
    names = ["; ".join(c.run.label for c in g) for g in groups]
    return [replace(g[0], run=replace(g[0].run, label=n)) for g, n in zip(groups, names, strict=True)]


def _equal(one: _Curve, other: _Curve) -> bool:
    arrays = ((one.round, other.round), (one.values, other.values))
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in arrays)
    return same and (one.kind, one.terms) == (other.kind, other.terms)


def _draw_epsilon(curves: Sequence[_Curve]) -> Figure:
    labels = [_label(c) for c in curves]
    height = 3.8 + 0.17 * sum(label.count("\n") + 1 for label in labels)
    figure, ax = _figure("ε spent so far", "updates (server rounds)", "ε", height)
    handles, ends = [], []
    for curve, label in zip(curves, labels, strict=True):
        look = style.line(curve.index) | {"linestyle": "dashed" if curve.kind == "paper" else "solid"}
        at, spent = style.thin(*curve.finite)
        handles += ax.plot(at, spent, **look, label=label)
        ends.append((at[-1], spent[-1], f"ε = {text.number(float(spent[-1]))}", look["color"]))
    values = np.concatenate([c.finite[1] for c in curves])
    positive = values[values > 0]
    if len(positive) and positive.max() > 50 * positive.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(StrMethodFormatter(_PLAIN))
        ends = [end for end in ends if end[1] > 0]
    else:
        ax.set_ylim(bottom=0)
    style.mark_ends(ax, ends)
    style.legend(figure, handles)
    return figure


def _label(curve: _Curve) -> str:
    wrapped = textwrap.wrap(f"({curve.terms})", 105, break_on_hyphens=False)
    return "\n".join([f"{curve.run.label}: {curve.name}", *wrapped])


def _accuracy(
    runs: Sequence[RunView],
    name: str,
    caption: str,
    x: Callable[[folds.AccuracySeries, RunView], NDArray[Any]],
    label: str,
) -> Picture | None:
    drawn = [(i, r, s) for i, r in enumerate(runs) if len((s := _evaluations(r)).round)]
    if not drawn:
        return None
    figure, ax = _figure(f"Test accuracy over {name}", label, "test accuracy (%)")
    ends: list[tuple[float, float, str, str]] = []
    for i, run, series in drawn:
        marker = "o" if len(series.round) <= 40 else None
        at, accuracy = style.thin(x(series, run), series.accuracy)
        look = style.line(i, covers=_drawn_before(ax, accuracy))
        ax.plot(at, accuracy, marker=marker, markersize=3.5, **look, label=run.label)
        if np.isfinite(accuracy[-1]):
            ends.append((at[-1], accuracy[-1], text.percent(accuracy[-1]), look["color"]))
    style.mark_ends(ax, ends)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    if len(runs) > 1:
        style.legend(figure, ax.get_lines(), style.columns_for([r.label for r in runs]))
    return Picture(f"accuracy_over_{name}", caption, figure)


def _drawn_before(ax: Axes, y: NDArray[Any]) -> bool:
    """Tell whether an earlier line already has these heights and would vanish below this one."""
    return any(np.array_equal(np.asarray(line.get_ydata()), y, equal_nan=True) for line in ax.get_lines())


def _evaluations(run: RunView) -> folds.AccuracySeries:
    return folds.accuracy_series(run.rows["evaluation"], run.rows["message"])


def _figure(title: str, x: str, y: str, height: float = 4.2) -> tuple[Figure, Axes]:
    figure, axes = style.canvas(8.0, height)
    ax = axes[0, 0]
    style.title(ax, title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.xaxis.set_major_formatter(StrMethodFormatter(_PLAIN))
    return figure, ax


def _finite(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    kept = np.isfinite(y)
    return x[kept], y[kept]


def _running_mean(values: NDArray[Any], window: int) -> NDArray[Any]:
    """Return the means of `window` consecutive values, one for each full window."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[window:] - sums[:-window]) / window
