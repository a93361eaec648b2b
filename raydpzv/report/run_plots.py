"""Pictures of runs over updates, seconds and bytes. Each function overlays the labelled runs it is
given.

A function returns None where no run has rows for its picture. Pictures per client are in
`raydpzv.report.client_plots`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from raydpzv.privacy import claim_words
from raydpzv.records import lateness, metrics
from raydpzv.records.lateness import leg_begins
from raydpzv.report import plots, text
from raydpzv.report.measure_plots import judged
from raydpzv.report.plots import Curve, Panel, ReportFigure, chart
from raydpzv.report.run_summary import score_name
from raydpzv.report.run_tables import RunView

PAPER = "claimed by the paper, not proved"
PAPER_TRUE = "claimed by the paper, here proved"
CLIENT = "proved against a client that knows its batches"
_WHOM = {"external": "anyone who sees the models", "client": "one silo", "server": "the server"}
_LINES = {"paper": "dashed", "client": "solid", "external": "dashdot", "server": "dotted"}
"""Styles of curves of ε, by adversary or claimant."""
_VERTICAL = "uploads the server has served"
_HORIZONTAL = (
    "updates of the shared model: a round of several uploads is one, or each upload if asynchronous"
)
_MOST_BARS = 50


def clock_axis(runs: Sequence[RunView]) -> str:
    """Return the words on an axis of the run's clock, which stops between two legs."""
    return "run clock (s)" + (
        ", the gaps between legs left out" if any(r.summary.get("legs") for r in runs) else ""
    )


def updates_axis(runs: Sequence[RunView]) -> str:
    """Return the words on an axis of updates: an update is what a server round is in vertical runs
    alone.
    """
    kinds = {run.horizontal for run in runs}
    if len(kinds) != 1:
        return "updates"
    return "updates of the model" if True in kinds else "updates (server rounds)"


def _left_out(runs: Sequence[RunView], why: str) -> str:
    """Return the sentence that names runs a picture does not show; empty if it shows all."""
    return f" Left out: {'; '.join(r.label for r in runs)} ({why})." if runs else ""


@dataclass(frozen=True)
class _Axis:
    """What accuracy is drawn over: the field of an accuracy series, its unit, and the words on the
    axis.

    name: of the picture; still: what is said of runs whose values are all 0, which are left out
    ("": they are not).
    """

    name: str
    field: str
    words: str
    unit: float = 1.0
    still: str = ""
    wide: bool = False


def accuracy_over_updates(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw test accuracy against the updates: the server's rounds, or those of the shared model."""
    kinds = {run.horizontal for run in runs}
    count = _HORIZONTAL if kinds == {True} else _VERTICAL
    if len(kinds) > 1:
        count = f"updates (vertical runs: {_VERTICAL}; horizontal runs: {_HORIZONTAL})"
    caption = f"Test accuracy against the number of {count}."
    return _accuracy(runs, _Axis("updates", "round", updates_axis(runs)), caption)


def accuracy_over_seconds(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw test accuracy against the run's own clock, of runs in which time passes."""
    caption = (
        "Test accuracy against the run's own clock (simulated seconds under the virtual clock)."
    )
    axis = _Axis(
        "seconds", "time", clock_axis(runs), still="no delay is simulated, their clock stands still"
    )
    drawn = _accuracy(runs, axis, caption)
    begins = leg_begins(runs[0].rows["leg"]) if len(runs) == 1 else np.zeros(0)
    if not (drawn and drawn.figure and len(begins)):
        return drawn
    for time in begins:
        drawn.figure.axes[0].axvline(time, color=plots.FAINT, linestyle=":")
    said = f"{drawn.caption} Dotted: where the run, interrupted, continued as a new leg."
    return replace(drawn, caption=said)


def accuracy_over_bytes(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw test accuracy against the tensor bytes on the wire, both directions, of runs that send
    any.
    """
    sent = [int(judged(r).bytes.max(initial=0)) for r in runs]
    divisor, unit = text.size_unit(max(sent, default=0))
    caption = "Test accuracy against the tensor bytes sent by all parties, up and down together."
    words = f"sent, up and down ({unit})"
    axis = _Axis("bytes", "bytes", words, divisor, "nothing travels", wide=plots.wide(sent))
    return _accuracy(runs, axis, caption)


def _accuracy(runs: Sequence[RunView], axis: _Axis, caption: str) -> ReportFigure | None:
    found = [(i, r, s) for i, r in enumerate(runs) if len((s := judged(r)).round)]
    moves = [not axis.still or bool(getattr(s, axis.field).max() > 0) for *_, s in found]
    still = [r for (_, r, _), moving in zip(found, moves, strict=True) if not moving]
    drawn = list(compress(found, moves))
    if not drawn:
        return None
    score = next((name for r in runs if (name := score_name(r.summary)) != "accuracy"), "accuracy")
    share = score in ("accuracy", "concordance")
    figure, ax = chart(
        f"Test {score} over {axis.name}", axis.words, f"test {score}{' (%)' if share else ''}"
    )
    if axis.wide:
        plots.plain_log(ax, "x")
    curves = [
        Curve(
            getattr(s, axis.field) / axis.unit,
            s.accuracy,
            plots.line(i),
            run.label,
            end=(text.percent if share else text.short)(s.accuracy[-1]),
            marked=True,
            run=i,
        )
        for i, run, s in drawn
    ]
    handles = plots.lines(ax, curves)
    plots.mark_ends(ax, curves)
    if share:
        plots.percents(ax)
    if len(runs) > 1:
        plots.legend(figure, handles)
    said = caption.replace("accuracy", score, 1) + _left_out(still, axis.still)
    panel = Panel(f"Test {score}", f"test {score}", curves, "percent" if share else "number")
    return ReportFigure(
        f"accuracy_over_{axis.name}", said, figure, [panel] if axis.field == "round" else ()
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
    handles, curves, single = [], [], []
    for i, run, rounds, loss in drawn:
        updates, means = _by_round(rounds, loss)
        curve, window = _running(updates, means, i, run.label)
        if len(runs) == 1:
            x, y = plots.thin(rounds, loss)
            look: plots.Look = {"color": plots.FAINT, "marker": ".", "linestyle": ""}
            ax.plot(x, y, **look, markersize=3)
            handles.append(Line2D([], [], **look, label="single uploads"))
            single.append(Curve(rounds, loss, look, "single uploads", run=i))
            curve = replace(curve, label=f"{run.label}: mean of the last {window:,}")
        curves.append(curve)
    plots.legend(figure, handles + plots.lines(ax, curves))
    caption = (
        "Running mean, over a 40th of a run's updates, of the training loss on the uploads' "
        "batches."
    )
    panel = Panel("Training loss", "training loss", [*curves, *single])
    return ReportFigure("loss_over_updates", caption, figure, [panel])


def _running(
    updates: NDArray[Any], values: NDArray[Any], index: int, label: str
) -> tuple[Curve, int]:
    """Return the running mean over a 40th of a series, at the end of each full window, and the
    window's length.
    """
    window = max(1, len(values) // 40)
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    means = (sums[window:] - sums[:-window]) / window
    return Curve(updates[window - 1 :], means, plots.line(index), label, run=index), window


def _by_round(rounds: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rounds, once each, and the means of their values; rounds are ascending."""
    updates, starts, counts = np.unique(rounds, return_index=True, return_counts=True)
    return updates, np.add.reduceat(values, starts) / counts


def _finite(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    kept = np.isfinite(y)
    return x[kept], y[kept]


def epsilon_over_updates(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw ε spent so far, as the paper claims it and as it is proved; name what cannot be drawn.

    A curve is drawn only where it is finite, where a proved ε is useful, and where summary.json
    states its δ, mechanism, relation, adversary and accountant, which its legend repeats.
    """
    curves = spent(runs)
    if not curves:
        return None
    obstacles = [f"{c.run.label}, {c.name}: {c.obstacle}" for c in curves if c.obstacle]
    drawn = [c for c in curves if len(c.finite[0])]
    names = dict.fromkeys(f"{_LINES[c.kind]} is {c.name}" for c in drawn)
    caption = f"ε spent so far{': ' if names else ''}{', '.join(names)}."
    if obstacles:
        caption += f" Not drawn: {'; '.join(obstacles)}."
    if not drawn:
        return ReportFigure("epsilon_over_updates", caption, None)
    figure, shown = _draw_epsilon(_merge(drawn))
    return ReportFigure(
        "epsilon_over_updates", caption, figure, [Panel("ε spent so far", "ε", shown)]
    )


def spent(runs: Sequence[RunView]) -> list[SpentEpsilon]:
    """Return every series of ε of runs: of users by adversary, else against a client and as the
    paper claims it.
    """
    of_users = {i: metrics.user_epsilons(r.rows["user_epsilon"]) for i, r in enumerate(runs)}
    # ε of users is in rows of its own, which a run that broke off may lack: its releases alone say
    # nothing of users
    series = [
        (i, r, metrics.epsilon_series(r.rows["release"]))
        for i, r in enumerate(runs)
        if not of_users[i] and not claim_words.of_users(r.summary.get("epsilon") or [])
    ]
    curves = [
        SpentEpsilon(i, r, who, rounds, values)
        for i, r in enumerate(runs)
        for who, (rounds, values) in of_users[i].items()
    ]
    curves += [
        SpentEpsilon(i, r, kind, s.round, values)
        for i, r, s in series
        for kind, values in (("client", s.client), ("paper", s.paper))
        if len(s.round) and not (kind == "paper" and _is_proved(r))
    ]
    return curves


def _is_proved(run: RunView) -> bool:
    """Whether its claims are those of privacy.mode = "proved", none of which is a paper's."""
    return any(claim["adversary"] == "all_clients" for claim in run.summary.get("epsilon") or [])


@dataclass(frozen=True)
class SpentEpsilon:
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
    def newest(self) -> str:
        """The last value as a privacy table shows it, and whose it is."""
        last = float(self.values[-1])
        cut = claim_words.cut({**self.claim, "epsilon": last}) if self.claim else ""
        return f"{cut or text.number(last)}, {self.name}"

    @property
    def claim(self) -> claim_words.Claim | None:
        return claim_words.claim_behind(
            self.run.summary.get("epsilon") or [], self.kind, float(self.values[-1])
        )

    @property
    def terms(self) -> str:
        """What is said of the last point that is drawn; the claim's own ε is the whole run's."""
        return claim_words.claim_text({**(self.claim or {}), "epsilon": float(self.finite[1][-1])})

    @property
    def finite(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The points to draw: none where the terms are not stated, nor where a proved ε is too
        large to be useful.
        """
        if not self.claim:
            return self.round[:0], self.values[:0]
        return _finite(self.round, np.where(self._large, np.inf, self.values))

    @property
    def _large(self) -> NDArray[np.bool_]:
        """Where a proved ε is too large to be useful, bool [R]."""
        proved = self.claim is not None and bool(self.claim["holds"])
        return proved & np.isfinite(self.values) & ~claim_words.small(self.values)

    @property
    def obstacle(self) -> str:
        """Why all or some of the curve cannot be drawn; empty if nothing is left out."""
        infinite, missing = int(np.isinf(self.values).sum()), int(np.isnan(self.values).sum())
        total = len(self.values)
        parts = [f"ε is infinite at {infinite:,} of {total:,} rounds"] if infinite else []
        parts += [f"no ε is stated at {missing:,} of {total:,} rounds"] if missing else []
        if large := int(self._large.sum()):
            parts.append(
                f"ε is above {claim_words.USEFUL:g}, {claim_words.TOO_LARGE}, at {large:,} of "
                f"{total:,} rounds"
            )
        if infinite + missing < total and not self.claim:
            parts.append("the summary does not state its terms")
        return " and ".join(parts)


def _merge(curves: Sequence[SpentEpsilon]) -> list[SpentEpsilon]:
    """Return equal curves with equal terms as one, under the names of all their runs."""
    groups: list[list[SpentEpsilon]] = []
    for curve in curves:
        twins = next((g for g in groups if _equal(g[0], curve)), None)
        if twins is None:
            groups.append([curve])
        else:
            twins.append(curve)
    names = ["; ".join(c.run.label for c in g) for g in groups]
    return [
        replace(g[0], run=replace(g[0].run, label=n)) for g, n in zip(groups, names, strict=True)
    ]


def _equal(one: SpentEpsilon, other: SpentEpsilon) -> bool:
    arrays = ((one.round, other.round), (one.values, other.values))
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in arrays)
    return same and (one.kind, one.terms) == (other.kind, other.terms)


def _draw_epsilon(series: Sequence[SpentEpsilon]) -> tuple[Figure, list[Curve]]:
    wrap = textwrap.TextWrapper(105, break_on_hyphens=False).wrap
    labels = ["\n".join([f"{s.run.label}: {s.name}", *wrap(f"({s.terms})")]) for s in series]
    height = 3.97 + 0.17 * sum(label.count("\n") for label in labels)
    figure, ax = chart("ε spent so far", updates_axis([s.run for s in series]), "ε", height)
    curves = [
        Curve(
            *s.finite,
            plots.line(s.index) | {"linestyle": _LINES[s.kind]},
            label,
            end=f"ε = {text.number(float(s.finite[1][-1]))}",
            run=s.index,
        )
        for s, label in zip(series, labels, strict=True)
    ]
    handles = plots.lines(ax, curves)
    values = np.concatenate([curve.y for curve in curves])
    positive = values[values > 0]
    if len(positive) and positive.max() > 50 * positive.min():
        plots.plain_log(ax, "y")
    else:
        ax.set_ylim(bottom=0)
    plots.mark_ends(ax, curves)
    plots.legend(figure, handles, 1)
    return figure, curves


def lag_histogram(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw how many updates were made while an upload was computed, of runs in which there are
    any.
    """
    found = [(i, r, lateness.lag_counts(r.rows["sync"])) for i, r in enumerate(runs)]
    drawn = [(i, r, counts) for i, r, counts in found if len(counts) > 1]
    if not drawn:
        return None
    width = -(-max(len(counts) for *_, counts in drawn) // _MOST_BARS)
    words = "updates made between reading the model and the upload's own"
    figure, ax = chart("Lag", words, "share of uploads (%)")
    handles, curves = [], []
    for i, run, counts in drawn:
        edges = np.arange(0, len(counts) + width, width)
        share = np.add.reduceat(counts, edges[:-1]) / counts.sum()
        mean = text.short(float(counts @ np.arange(len(counts)) / counts.sum()))
        label = f"{run.label}: mean {mean}, max {len(counts) - 1:,}"
        curves.append(Curve(edges[:-1], share, plots.line(i), label, run=i))
        handles.append(
            plots.outline(ax, share, edges - 0.5, plots.line(i) if len(drawn) > 1 else None, label)
        )
    ax.set_xlim(left=-0.5)
    plots.percents(ax)
    plots.legend(figure, handles)
    caption = (
        "Lag of the uploads: updates made between the reading of the model and the update made of "
        "the upload."
    )
    fresh = [r for i, r, counts in found if len(counts) == 1]
    caption += _left_out(fresh, "every upload was made at the newest model")
    panel = Panel("Lag", "share of uploads", curves, "percent", "updates made meanwhile")
    return ReportFigure("lag_histogram", caption, figure, [panel])
