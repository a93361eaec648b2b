"""Pictures per client: how stale its cached embeddings were, when it was at work, and whose records
it holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from raydpzv.arrow_columns import array, numbers
from raydpzv.records import metrics
from raydpzv.report import plots, text
from raydpzv.report.plots import Curve, Panel, ReportFigure
from raydpzv.report.run_plots import clock_axis
from raydpzv.report.run_tables import RunView
from raydpzv.settings.party_names import label

_MOST_CLIENTS = 20
_MOST_PANELS = 6
_MOST_NAMED = 20
_SHORTEST = 1 / 400  # of the window: two pixels
_TYPICAL_TRIPS, _MOST_TRIPS = 10, 40


def staleness_by_client(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw one histogram per client of the age of its cached embeddings; several runs as outlines.

    With more than 20 clients, the 20 with the highest mean age in any of the runs.
    """
    ages = [(i, r, metrics.staleness(r.rows["staleness"])) for i, r in enumerate(runs)]
    drawn = [(i, r, a) for i, r, a in ages if any(c.bins.sum() for c in a)]
    if not drawn:
        return None
    shown, total = _stalest([c for _, _, a in drawn for c in a]), max(len(a) for _, _, a in drawn)
    columns = math.ceil(len(shown) / math.ceil(len(shown) / 4))
    rows = math.ceil(len(shown) / columns)
    figure, axes = plots.canvas(
        max(4.5, 2.5 * columns), 1.0 + 1.75 * rows, rows, columns, share=True
    )
    used = max(int(np.flatnonzero(c.bins).max(initial=0)) for _, _, a in drawn for c in a) + 1
    named = {r.party_names for _, r, _ in drawn}
    names = named.pop() if len(named) == 1 else ()
    for ax, client in zip(axes.flat, shown, strict=False):
        for i, _, a in drawn:
            if client < len(a):
                covers = any(
                    b[client : client + 1] and np.array_equal(b[client].bins, a[client].bins)
                    for j, _, b in drawn
                    if j < i
                )
                look = plots.line(i) | ({"linestyle": plots.GAPS} if covers else {})
                _histogram(ax, a[client], used, None if len(drawn) == 1 else look)
        ax.set_title(label(client, names), loc="left", y=1, fontsize=9.5, color=plots.INK)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    _age_axis(axes[0, 0], used)
    figure.supxlabel("age of a used embedding (server rounds, bins by powers of two)", fontsize=10)
    figure.supylabel("share of used rows (%)", fontsize=10)
    if len(drawn) > 1:
        handles = [Line2D([], [], **plots.line(i), label=r.label) for i, r, _ in drawn]
        plots.legend(figure, handles, upper=True)
    caption = "Server rounds since a cached embedding was refreshed, at each use; first bin: age 0."
    if len(shown) < total:
        caption += f" Of {total:,} clients, the {len(shown)} with the highest mean age."
    if len(drawn) == 1:
        bins = [(k, label(m, names), drawn[0][2][m].bins) for k, m in enumerate(shown)]
    else:
        bins = [(i, r.label, np.sum([c.bins for c in a], axis=0)) for i, r, a in drawn]
    x, ticks = np.arange(used), [_age_words(k) for k in range(used)]
    curves = [
        Curve(x, b[:used] / max(b.sum(), 1), plots.line(k), name, run=k) for k, name, b in bins
    ]
    panel = Panel(
        "Age of used embeddings", "share of used rows", curves, "percent", "age (rounds)", ticks
    )
    return ReportFigure("staleness_by_client", caption, figure, [panel])


def _age_words(k: int) -> str:
    """Return the ages in a bin."""
    return str(k) if k < 2 else f"{2 ** (k - 1):,} to {2**k - 1:,}"


def timeline(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw the first round trips of each client as bars from waking to their end, late ones marked.

    One panel for each of the first 6 runs in which time passes, and at most 20 clients in each; the
    window holds about 10 round trips of the median client and at most 40 of the busiest.
    """
    drawn = [(r, *_trips(r.rows["service"])) for r in runs if _time_passes(r.rows["service"])][
        :_MOST_PANELS
    ]
    if not drawn:
        return None
    heights = [0.6 + 0.28 * len(trips) for _, _, trips, _ in drawn]
    figure, axes = plots.canvas(9.0, 1.2 + sum(heights), rows=len(drawn))
    axes[0, 0].get_gridspec().set_height_ratios(heights)
    short = False
    for ax, (run, clients, trips, _) in zip(axes.flat, drawn, strict=True):
        short |= _bars(ax, [label(number, run.party_names) for number in clients], trips)
        plots.head(ax, "Activations" if len(runs) == 1 else run.label)
    axes[-1, 0].set_xlabel(clock_axis([run for run, *_ in drawn]))
    names = ("round trip", "late: due while the previous one ran", "when a late one was due")
    patches = [
        Patch(color=c, label=n) for c, n in zip((plots.PLAIN, plots.LATE), names, strict=False)
    ]
    due = Line2D([], [], color=plots.LATE, marker="|", markersize=7, linestyle="", label=names[2])
    plots.legend(figure, [*patches, due], 3)
    caption = f"The first round trips of each client, {_ends({r.horizontal for r, *_ in drawn})}."
    if short:
        caption += " A stroke is a round trip too short for a bar."
    if (most := max(total for *_, total in drawn)) > _MOST_CLIENTS:
        caption += f" The first {_MOST_CLIENTS} of {most:,} clients that took part."
    return ReportFigure("timeline", caption, figure)


def _ends(kinds: set[bool]) -> str:
    """Return from when to when a bar goes in vertical and in horizontal runs."""
    vertical = "from waking until the reply was applied, or the upload served where no reply came"
    horizontal = "from waking until the upload was served"
    if len(kinds) > 1:
        return (
            f"{horizontal} (horizontal runs) or {vertical.removeprefix('from waking ')} (vertical "
            "runs)"
        )
    return horizontal if True in kinds else vertical


def _time_passes(service: pa.Table) -> bool:
    """Return whether the run's clock ever moved; with no delays and no epochs everything happens at
    0.
    """
    return service.num_rows > 0 and bool(array(service.column("served")).max() > 0)


def _trips(service: pa.Table) -> tuple[list[int], list[metrics.Activity], int]:
    """Return up to 20 client numbers, their round trips, and how many clients there are to choose
    from.

    All clients if they are few, one without a round trip included; of many, the first that took
    part.
    """
    client = array(service.column("client"))
    took_part = np.unique(client)
    if took_part[-1] < _MOST_CLIENTS:
        trips = metrics.activity(service)
        return [t.client for t in trips], trips, len(trips)
    chosen = took_part[:_MOST_CLIENTS]
    few = service.filter(numbers(np.isin(client, chosen)))
    place = numbers(np.searchsorted(chosen, array(few.column("client"))).astype(np.int32))
    renumbered = few.set_column(few.schema.get_field_index("client"), "client", place)
    return chosen.tolist(), metrics.activity(renumbered, len(chosen)), len(took_part)


def _stalest(ages: Sequence[metrics.ClientStaleness]) -> list[int]:
    """Return up to 20 clients, in order of their numbers."""
    ranked = sorted(ages, key=lambda a: -math.inf if math.isnan(a.mean) else a.mean, reverse=True)
    return sorted(list(dict.fromkeys(a.client for a in ranked))[:_MOST_CLIENTS])


def _histogram(
    ax: Axes, ages: metrics.ClientStaleness, used: int, look: dict[str, Any] | None
) -> None:
    """Draw shares of used rows: as an outline of this look, or filled if the run is alone."""
    total = int(ages.bins.sum())
    share = ages.bins[:used] / max(total, 1)
    plots.outline(ax, share, np.arange(used + 1), look)
    if look is None:
        note = f"mean {text.short(ages.mean)}, max {ages.max:,}" if total else "never used"
        ax.set_title(note, loc="right", y=1, fontsize=8.5, color="#666666")


def _age_axis(ax: Axes, used: int) -> None:
    """Mark each bin's lower edge with the lowest age in it: 0, 1, 2, 4, 8, ..."""
    step = 1 if used <= 8 else 2
    places = np.arange(0 if step == 1 else 1, used + 1, step)
    ax.set_xticks(places, [str(0 if k == 0 else 2 ** (k - 1)) for k in places])
    ax.set_xlim(0, used)
    plots.percents(ax, decimals=0)


def _bars(ax: Axes, labels: Sequence[str], trips: Sequence[metrics.Activity]) -> bool:
    """Draw the round trips in the window; return whether some are too short for a bar and drawn as
    strokes.
    """
    end, strokes = _window(trips), False
    for t in trips:
        seen = t.woke < end
        stop = np.where(np.isnan(t.applied), t.served, t.applied)
        for late, colour in ((False, plots.PLAIN), (True, plots.LATE)):
            chosen = seen & (t.late == late)
            spans = list(zip(t.woke[chosen], (stop - t.woke)[chosen], strict=True))
            ax.broken_barh(
                spans, (t.client - 0.32, 0.64), color=colour, edgecolor="white", linewidth=0.4
            )
        brief = seen & (stop - t.woke < end * _SHORTEST)
        strokes |= bool(brief.any())
        colours = np.where(t.late[brief], plots.LATE, plots.PLAIN).tolist()
        ax.vlines(t.woke[brief], t.client - 0.32, t.client + 0.32, color=colours, linewidth=1.4)
        due = t.due[t.late & (t.due < end)]
        ax.vlines(due, t.client + 0.35, t.client + 0.48, color=plots.LATE, linewidth=1.2)
    ax.set_xlim(0, end)
    ax.set_ylim(len(trips) - 0.45, -0.6)
    ax.set_yticks(range(len(trips)), labels)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False)
    return strokes


def _window(trips: Sequence[metrics.Activity]) -> float:
    """Return the end of the window, in seconds of the run's clock: all there is where that is not
    much.
    """
    wakes: list[Any] = [t.woke for t in trips if len(t.woke)]
    typical = float(np.median([w[: _TYPICAL_TRIPS + 1][-1] for w in wakes]))
    if np.median([len(w) for w in wakes]) <= _TYPICAL_TRIPS:
        typical = max(float(np.nanmax([t.served[-1], t.applied[-1]])) for t in trips if len(t.woke))
    busiest = min((float(w[_MOST_TRIPS]) for w in wakes if len(w) > _MOST_TRIPS), default=math.inf)
    return min(typical, busiest) or max(float(w[-1]) for w in wakes) or 1.0


def records_per_user(runs: Sequence[RunView]) -> ReportFigure | None:
    """Draw how many records each user has, coloured by silo: Uldp-FL's figure 13; equal ones
    once.
    """
    found = [(run, counts_of(run.rows["pair"])) for run in runs if run.rows["pair"].num_rows]
    different: list[tuple[RunView, np.ndarray]] = []
    for run, counts_SU in found:
        if not any(np.array_equal(counts_SU, known) for _, known in different):
            different.append((run, counts_SU))
    if not different:
        return None
    figure, axes = plots.canvas(8.0, 1.0 + 2.8 * len(different), rows=len(different))
    most = max(len(counts_SU) for _, counts_SU in different)
    for ax, (run, counts_SU) in zip(axes.flat, different, strict=True):
        _stack(ax, counts_SU)
        plots.head(ax, "Records per user" + (f": {run.label}" if len(different) > 1 else ""))
        ax.set_ylabel("records")
        ax.yaxis.set_major_formatter(StrMethodFormatter(plots.NUMBER))
    axes[-1, 0].set_xlabel("users, from most records to fewest")
    if most <= _MOST_NAMED:
        handles = [Patch(color=_colour(silo), label=f"silo {silo}") for silo in range(most)]
        plots.legend(figure, handles)
    caption = "Records of each user, coloured by the silo that holds them."
    if len(found) > len(different):
        caption += " Runs on the same users and silos are drawn once."
    return ReportFigure("records_per_user", caption, figure)


def counts_of(pair: pa.Table) -> np.ndarray:
    """Return n_su, int64 [S, U], of a run's `pair` rows."""
    users, silos = array(pair.column("user")), array(pair.column("silo"))
    counts_SU = np.zeros((silos.max() + 1, users.max() + 1), np.int64)
    counts_SU[silos, users] = array(pair.column("records"))
    return counts_SU


def _stack(ax: Axes, counts_SU: np.ndarray) -> None:
    counts_SU = counts_SU[:, np.argsort(-counts_SU.sum(0), kind="stable")]
    tops_SU = np.cumsum(counts_SU, axis=0)
    edges = np.arange(counts_SU.shape[1] + 1) + 0.5
    for silo, top_U in enumerate(tops_SU):
        ax.stairs(
            top_U,
            edges,
            baseline=top_U - counts_SU[silo],
            fill=True,
            color=_colour(silo),
            linewidth=0,
        )
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(bottom=0)


def _colour(silo: int) -> str:
    return plots.PALETTE[silo % len(plots.PALETTE)]
