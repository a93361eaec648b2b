"""Pictures of runs against updates, seconds and bytes. Each function overlays the labelled runs it is given.

A function returns None where no run has rows for its picture. Pictures per client are in
`raydpzv.report.clients`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from raydpzv.privacy import claim_words
from raydpzv.records import metrics
from raydpzv.records.lateness import leg_begins
from raydpzv.report import style, text
from raydpzv.report.figure import (
    PLAIN,
    ReportFigure,
    RunView,
    chart,
    clock_axis,
    drawn_before,
    left_out,
    mean_label,
    running_mean,
    updates_axis,
    wide,
    window_of,
)

PAPER = "claimed by the paper, not proved"
PAPER_TRUE = "claimed by the paper, here proved"
CLIENT = "proved against a client that knows its batches"
_WHOM = {"external": "whoever sees the models", "client": "one silo", "server": "the server"}
_LINES = {"paper": "dashed", "client": "solid", "external": "dashdot", "server": "dotted"}
"""Styles of curves of ε, by adversary or claimant."""
Scale = Literal["linear", "log"]
_VERTICAL = "uploads the server has served"
_HORIZONTAL = "updates of the shared model: a round of several uploads is one, or each upload if asynchronous"


def accuracy_over_updates(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw test accuracy against the updates: the server's rounds, or those of the shared model."""
    kinds = {run.horizontal for run in runs}
    count = _HORIZONTAL if kinds == {True} else _VERTICAL
    if len(kinds) > 1:
        count = f"updates (vertical runs: {_VERTICAL}; horizontal runs: {_HORIZONTAL})"
    caption = f"Test accuracy against the number of {count}."
    return _accuracy(runs, "updates", caption, lambda s: s.round, updates_axis(runs))


def accuracy_over_seconds(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw test accuracy against the run's own clock, of runs in which time passes."""
    passes = [bool(_evaluations(r).time.max(initial=0) > 0) for r in runs]
    still = [r for r, moves in zip(runs, passes, strict=True) if not moves and len(_evaluations(r).round)]
    caption = "Test accuracy against the run's own clock (simulated seconds under the virtual clock)."
    caption += left_out(still, "no delay is simulated, their clock stands still")
    begins = leg_begins(runs[0].rows["leg"]) if len(runs) == 1 else np.zeros(0)
    if len(begins):
        caption += " Dotted: where the run, interrupted, went on as a new leg."
    drawn = _accuracy(runs, "seconds", caption, lambda s: s.time, clock_axis(runs), shown=passes)
    if drawn and drawn.figure:
        for time in begins:
            drawn.figure.axes[0].axvline(time, color=style.FAINT, linestyle=":")
    return drawn


def accuracy_over_bytes(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw test accuracy against the tensor bytes on the wire, both directions, of runs that send any."""
    sent = [int(_evaluations(r).bytes.max(initial=0)) for r in runs]
    divisor, unit = text.size_unit(max(sent, default=0))
    silent = [r for r, count in zip(runs, sent, strict=True) if not count and len(_evaluations(r).round)]
    caption = "Test accuracy against the tensor bytes sent by all parties, up and down together."
    caption += left_out(silent, "nothing travels")
    label = f"sent, up and down ({unit})"
    scale: Scale = "log" if wide(sent) else "linear"
    return _accuracy(
        runs, "bytes", caption, lambda s: s.bytes / divisor, label, shown=[c > 0 for c in sent], scale=scale
    )


def loss_over_updates(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw the running mean of the training loss, and a lone run's single losses behind it.

    The mean is over updates: several uploads of one round count as their mean.
    """
    series = [(i, r, *_finite(*metrics.loss_series(r.rows["service"]))) for i, r in enumerate(runs)]
    drawn = [s for s in series if len(s[2])]
    if not drawn:
        return None
    figure, ax = chart("Training loss", updates_axis(runs), "training loss on the upload's batch")
    handles = []
    for i, run, rounds, loss in drawn:
        updates, means = _by_round(rounds, loss)
        window = window_of(len(means))
        if len(runs) == 1:
            x, y = style.thin(rounds, loss)
            ax.plot(x, y, ".", color=style.FAINT, markersize=3)
            handles.append(
                Line2D([], [], color=style.FAINT, marker=".", linestyle="", label="single uploads")
            )
        x, y = style.thin(updates[window - 1 :], running_mean(means, window))
        look = style.line(i, covers=drawn_before(ax, y))
        handles += ax.plot(x, y, **look, label=mean_label(run, window, alone=len(runs) == 1))
    style.legend(figure, handles, style.columns_for([str(h.get_label()) for h in handles]))
    caption = "Running mean, over a 40th of a run's updates, of the training loss on the uploads' batches."
    return ReportFigure("loss_over_updates", caption, figure)


def epsilon_over_updates(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw ε spent so far, as the paper claims it and as it is proved; name what cannot be drawn.

    A curve is drawn only where it is finite and where summary.json states its δ, mechanism, relation,
    adversary and accountant, which its legend repeats.
    """
    of_users = {i: metrics.user_epsilons(r.rows["user_epsilon"]) for i, r in enumerate(runs)}
    # ε of users is in rows of its own, which a run that broke off may lack: its releases alone tell nothing of users
    series = [
        (i, r, metrics.epsilon_series(r.rows["release"]))
        for i, r in enumerate(runs)
        if not of_users[i] and not claim_words.of_users(r.summary.get("epsilon") or [])
    ]
    curves = [
        _Curve(i, r, who, rounds, values)
        for i, r in enumerate(runs)
        for who, (rounds, values) in of_users[i].items()
    ]
    curves += [
        _Curve(i, r, kind, s.round, values)
        for i, r, s in series
        for kind, values in (("client", s.client), ("paper", s.paper))
        if len(s.round) and not (kind == "paper" and _is_sound(r))
    ]
    if not curves:
        return None
    obstacles = [f"{c.run.label}, {c.name}: {c.obstacle}" for c in curves if c.obstacle]
    drawn = [c for c in curves if len(c.finite[0])]
    names = dict.fromkeys(f"{_LINES[c.kind]} is {c.name}" for c in drawn)
    caption = f"ε spent so far{': ' if names else ''}{', '.join(names)}."
    if obstacles:
        caption += f" Not drawn: {'; '.join(obstacles)}."
    return ReportFigure("epsilon_over_updates", caption, _draw_epsilon(_merge(drawn)) if drawn else None)


def _is_sound(run: RunView) -> bool:
    """Whether its claims are those of privacy.mode = "sound", none of which is a paper's."""
    return any(claim["adversary"] == "all_clients" for claim in run.summary.get("epsilon") or [])


@dataclass(frozen=True)
class _Curve:
    """One series of ε of one run; `kind` is "paper", or the adversary that it is proved against."""

    index: int
    run: RunView
    kind: str
    round: NDArray[Any]
    values: NDArray[Any]

    @property
    def name(self) -> str:
        if claim_words.of_users(self.run.summary.get("epsilon") or []):
            return f"one user's, against {_WHOM[self.kind]}"
        if self.kind == "client":
            return CLIENT
        return PAPER_TRUE if self.claim and self.claim["holds"] else PAPER

    @property
    def claim(self) -> claim_words.Claim | None:
        return claim_words.claim_behind(
            self.run.summary.get("epsilon") or [], self.kind, float(self.values[-1])
        )

    @property
    def terms(self) -> str:
        return claim_words.claim_text(self.claim) if self.claim else ""

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
    height = 3.97 + 0.17 * sum(label.count("\n") for label in labels)
    figure, ax = chart("ε spent so far", updates_axis([c.run for c in curves]), "ε", height)
    handles, ends = [], []
    for curve, label in zip(curves, labels, strict=True):
        look = style.line(curve.index) | {"linestyle": _LINES[curve.kind]}
        at, spent = style.thin(*curve.finite)
        handles += ax.plot(at, spent, **look, label=label)
        ends.append((at[-1], spent[-1], f"ε = {text.number(float(spent[-1]))}", look["color"]))
    values = np.concatenate([c.finite[1] for c in curves])
    positive = values[values > 0]
    if len(positive) and positive.max() > 50 * positive.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(StrMethodFormatter(PLAIN))
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
    x: Callable[[metrics.AccuracySeries], NDArray[Any]],
    label: str,
    *,
    shown: Sequence[bool] | None = None,
    scale: Scale = "linear",
) -> ReportFigure | None:
    wanted = [True] * len(runs) if shown is None else shown
    found = [(i, r, _evaluations(r)) for i, r in enumerate(runs) if wanted[i]]
    drawn = [(i, r, s) for i, r, s in found if len(s.round)]
    if not drawn:
        return None
    what = "concordance" if any(map(survived, runs)) else "accuracy"
    figure, ax = chart(f"Test {what} over {name}", label, f"test {what} (%)")
    if scale == "log":
        ax.set_xscale("log", nonpositive="mask")
        ax.xaxis.set_major_formatter(StrMethodFormatter(PLAIN))
    ends: list[tuple[float, float, str, str]] = []
    for i, run, series in drawn:
        marker = "o" if len(series.round) <= 40 else None
        at, accuracy = style.thin(x(series), series.accuracy)
        look = style.line(i, covers=drawn_before(ax, accuracy))
        ax.plot(at, accuracy, marker=marker, markersize=3.5, **look, label=run.label)
        if np.isfinite(accuracy[-1]):
            ends.append((at[-1], accuracy[-1], text.percent(accuracy[-1]), look["color"]))
    style.mark_ends(ax, ends)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    if len(runs) > 1:
        style.legend(figure, ax.get_lines(), style.columns_for([r.label for r in runs]))
    return ReportFigure(f"accuracy_over_{name}", caption.replace("accuracy", what, 1), figure)


def _by_round(rounds: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rounds, once each, and the means of their values; rounds are ascending."""
    updates, starts, counts = np.unique(rounds, return_index=True, return_counts=True)
    return updates, np.add.reduceat(values, starts) / counts


def survived(run: RunView) -> bool:
    """Tell whether a run's held-out rows are survival times, which have a concordance and no accuracy."""
    return bool(run.rows["concordance"].num_rows)


def _evaluations(run: RunView) -> metrics.AccuracySeries:
    """Return the evaluations; in place of accuracies the concordances of survival times."""
    found = metrics.accuracy_series(run.rows["evaluation"], run.rows["message"])
    return replace(found, accuracy=metrics.concordances(run.rows["concordance"])) if survived(run) else found


def _finite(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    kept = np.isfinite(y)
    return x[kept], y[kept]
