"""What a page draws, as plain data: charts, heat maps and timelines, thinned so that a page stays
small.

A long curve keeps the first and the last row, and the lowest and the highest of each stretch. A
long timeline joins round trips that lie beside each other. Numbers keep seven digits.
"""

# R runs, M clients

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydpzv.arrow_columns import array, equal
from raydpzv.records import metrics
from raydpzv.report import plots, run_plots
from raydpzv.report.measure_plots import judged
from raydpzv.report.plots import Panel, ReportFigure
from raydpzv.report.run_plots import SpentEpsilon, clock_axis, updates_axis
from raydpzv.report.run_tables import RunView
from raydpzv.settings.party_names import label

Data = dict[str, Any]
Array = NDArray[Any]

_POINTS = 40_000
"""Points of all curves of a page together, about."""
_MOST_STRETCHES, _LEAST_STRETCHES = 600, 60
_TRIPS = 20_000
"""Round trips of all timelines of a page together."""
_KNOTS = 400
"""Updates beside those of the evaluations at which time, bytes and ε are kept."""
_JOINED = "Round trips that lie close together are one bar, which says how many they are."
_MOST_LANES = 120
_MOST_SPANS = 120


def charts(figures: Iterable[ReportFigure]) -> list[Data]:
    """Return the charts of figures as data, in order."""
    found = [
        (figure, panel, "" if place else figure.caption)
        for figure in figures
        for place, panel in enumerate(figure.panels)
    ]
    curves = sum(len(panel.curves) for _, panel, _ in found)
    stretches = min(_MOST_STRETCHES, max(_LEAST_STRETCHES, _POINTS // (2 * max(curves, 1))))
    return [
        _chart(figure.name, panel, stretches) | {"caption": caption}
        for figure, panel, caption in found
    ]


def _chart(name: str, panel: Panel, stretches: int) -> Data:
    series, thinned = [], False
    for place, curve in enumerate(panel.curves):
        kept = extremes(np.asarray(curve.y, float), stretches)
        thinned |= len(kept) < len(curve.y)
        colour, style = curve.look["color"], curve.look["linestyle"]
        found = {
            "name": " ".join(curve.label.split()),
            "run": curve.run,
            "group": curve.group,
            "colour": plots.PALETTE.index(colour) if colour in plots.PALETTE else -1,
            "dash": list(style[1]) if isinstance(style, tuple) else _DASHES[style],
            "x": numbers(np.asarray(curve.x)[kept]),
            "y": numbers(np.asarray(curve.y)[kept]),
        }
        if curve.band:
            found["low"], found["high"] = (numbers(np.asarray(edge)[kept]) for edge in curve.band)
        if panel.notes:
            found["notes"] = list(panel.notes[place])
        series.append(found)
    return {
        "kind": "points" if panel.notes else "steps" if panel.over else "lines",
        "id": name,
        "title": panel.title,
        "words": panel.y,
        "form": panel.form,
        "over": panel.over,
        "overForm": "bytes" if panel.notes else "number",
        "ticks": list(panel.ticks),
        "thinned": stretches if thinned else 0,
        "series": series,
    }


_DASHES: Mapping[Any, Any] = {
    "solid": [], "dashed": [8, 4], "dotted": [2, 3], "dashdot": [8, 3, 2, 3], "": None,
}  # fmt: skip


def extremes(values: NDArray[np.float64], stretches: int) -> NDArray[np.int64]:
    """Return the places of the first, the last, and of each stretch's lowest and highest value; all
    if they are few.
    """
    if len(values) <= 2 * stretches:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), stretches + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[start:end]
        known = np.flatnonzero(np.isfinite(part))
        if len(known):
            kept |= {
                start + int(known[part[known].argmin()]),
                start + int(known[part[known].argmax()]),
            }
    return np.array(sorted(kept), np.int64)


def numbers(values: Array) -> list[float | int | None]:
    """Return numbers with seven digits; null for what is none, or infinite."""
    if values.dtype.kind in "iub":
        return [int(v) for v in values]
    return [float(f"{v:.7g}") if np.isfinite(v) else None for v in values.tolist()]


def axes(runs: Sequence[RunView], clock: str) -> tuple[Data, list[Data]]:
    """Return the words of the x axes that charts over updates can have, and for each run their
    values at updates.

    clock: of the runs, "virtual" or "wall". The values are exact at evaluations; a page
    interpolates between.
    """
    tables = [_clocks(run) for run in runs]
    seconds = "real" if clock == "wall" else "simulated"
    words = {
        "update": updates_axis(runs),
        "time": clock_axis(runs).replace("run clock (s)", f"{seconds} seconds"),
        "bytes": "bytes sent, up and down",
        "epsilon": _spent_words(runs) if any("epsilon" in table for table in tables) else "",
    }
    moving = [key for key in words if any(any(table.get(key) or ()) for table in tables)]
    return {key: words[key] for key in moving}, tables


def _clocks(run: RunView) -> Data:
    service, seen = run.rows["service"], judged(run)
    last = max(metrics.updates(service), int(seen.round.max(initial=0)))
    at = np.unique(np.concatenate([np.linspace(0, last, _KNOTS).astype(np.int64), seen.round]))
    rounds = np.concatenate([array(service.column("round")), seen.round])
    times = np.concatenate([array(service.column("served")), seen.time])
    order = np.argsort(rounds, kind="stable")
    latest = np.concatenate([[0.0], np.maximum.accumulate(times[order])])
    sent, up, down = metrics.bytes_by_round(run.rows["message"])
    total = np.concatenate([[0], up + down])[np.searchsorted(sent, at, "right")]
    found = {
        "update": numbers(at),
        "time": numbers(latest[np.searchsorted(rounds[order], at, "right")]),
        "bytes": numbers(total),
    }
    if spent := _spent(run):
        values = np.concatenate([[0.0], spent.values])[np.searchsorted(spent.round, at, "right")]
        found["epsilon"] = numbers(np.maximum.accumulate(values))
    return found


def _spent(run: RunView) -> SpentEpsilon | None:
    """Return the ε that is proved against a client so far, else the paper's; None without a finite
    one with terms.
    """
    series = {found.kind: found for found in run_plots.spent([run])}
    kept = [series[kind] for kind in ("client", "paper") if kind in series]
    return next(
        (one for one in kept if len(one.round) and len(one.finite[0]) == len(one.round)), None
    )


def _spent_words(runs: Sequence[RunView]) -> str:
    """Say whose ε the axis has, of each run where they differ."""
    found = {run.label: series.name for run in runs if (series := _spent(run))}
    names = list(dict.fromkeys(found.values()))
    whose = (
        names[0] if len(names) == 1 else "; ".join(f"{run}: {name}" for run, name in found.items())
    )
    return f"ε spent so far, {whose}"


def _lanes(client: Array, run: RunView) -> tuple[Array, list[str]]:
    """Return the lane of each row's client, and the lanes' names: clients that took part, several
    to a lane if many.
    """
    there, rank = np.unique(client, return_inverse=True)
    width = -(-len(there) // _MOST_LANES)
    names = [
        label(int(part[0]), run.party_names) + (f" to {int(part[-1])}" if len(part) > 1 else "")
        for part in np.split(there, range(width, len(there), width))
    ]
    return rank // width, names


def heat(run: RunView, title: str) -> Data | None:
    """Return the mean staleness of each client in each span of updates; None without rows of it."""
    table = run.rows["sync" if run.horizontal else "staleness"]
    if not table.num_rows:
        return None
    rounds = array(table.column("round"))
    if run.horizontal:
        weight, total = np.ones(len(rounds)), array(table.column("lag")).astype(float)
    else:
        weight = (array(table.column("rows")) - array(table.column("missing"))).astype(float)
        total = array(table.column("age_sum")).astype(float)
    if not total.any():
        return None
    lane, names = _lanes(array(table.column("client")), run)
    last = int(rounds.max())
    spans = min(_MOST_SPANS, last)
    cell = lane * spans + (rounds - 1).clip(0) * spans // last
    sums, weights = (np.bincount(cell, values, len(names) * spans) for values in (total, weight))
    mean = np.divide(sums, weights, out=np.full(len(sums), np.nan), where=weights > 0)
    return {
        "kind": "heat",
        "id": "staleness_over_updates",
        "title": title,
        "caption": (
            "Updates made between a client's reading of the model and its own."
            if run.horizontal
            else (
                "Server rounds since a client's cached embeddings were refreshed, when they were "
                "used."
            )
        ),
        "words": "mean lag (updates)" if run.horizontal else "mean age of used embeddings (rounds)",
        "lanes": names,
        "spans": spans,
        "last": last,
        "mean": [float(f"{v:.4g}") if np.isfinite(v) else None for v in mean.tolist()],
    }


def timeline(run: RunView, title: str, runs: int) -> Data | None:
    """Return every round trip of a run, or joined ones; None if its clock never moved. runs: of the
    page.
    """
    service = run.rows["service"]
    if not service.num_rows or not array(service.column("served")).max() > 0:
        return None
    lane, names = _lanes(array(service.column("client")), run)
    woke, served, applied = (array(service.column(n)) for n in ("woke", "served", "applied"))
    sent, arrived = _uploads(run.rows["message"], service)
    end = np.where(np.isnan(applied), served, applied)
    late, most = array(service.column("late")), max(_TRIPS // runs, 4 * len(names))
    order, joined = np.lexsort((woke, lane)), len(lane) > most
    columns: dict[str, Array] = {
        "lane": lane, "woke": woke, "work": sent - woke, "upload": arrived - sent, "serve": served - arrived,
        "reply": end - served, "late": late.astype(int), "count": np.ones(len(lane), int),
    }  # fmt: skip
    columns = {name: values[order] for name, values in columns.items()}
    if joined:
        columns = _joined(columns, end[order], most // len(names))
    return {
        "kind": "timeline",
        "id": "timeline",
        "title": title,
        "caption": (
            f"Every client from waking to the end of its round trip. {_JOINED if joined else ''}".strip()
        ),
        "words": clock_axis([run]),
        "lanes": names,
        "end": float(end.max()),
        **{name: numbers(values) for name, values in columns.items()},
    }


def _joined(columns: Mapping[str, Array], end: Array, buckets: int) -> dict[str, Array]:
    """Join trips of a lane that start in the same of so many stretches of time; work is from the
    first to the last.
    """
    bucket = (columns["woke"] / (end.max() or 1.0) * buckets).astype(int)
    _, starts = np.unique(columns["lane"] * (buckets + 1) + bucket, return_index=True)
    stop = np.maximum.reduceat(end, starts)
    nothing = np.zeros(len(starts))
    return {
        "lane": columns["lane"][starts],
        "woke": columns["woke"][starts],
        "work": stop - columns["woke"][starts],
        **dict.fromkeys(("upload", "serve", "reply"), nothing),
        "late": np.maximum.reduceat(columns["late"], starts),
        "count": np.add.reduceat(columns["count"], starts),
    }


def _uploads(message: pa.Table, service: pa.Table) -> tuple[Array, Array]:
    """Return when the upload of each service was sent and arrived: when it woke and was served
    where no row says it.
    """
    up = message.filter(equal(message.column("direction"), "up"))
    keys = [
        array(table.column("round")).astype(np.int64) << 32
        | array(table.column("client")).astype(np.int64)
        for table in (up, service)
    ]
    woke, served = (array(service.column(n)) for n in ("woke", "served"))
    if not len(keys[0]):
        return served, served
    order = np.argsort(keys[0], kind="stable")
    at = order[np.searchsorted(keys[0], keys[1], "right", sorter=order) - 1]
    known = keys[0][at] == keys[1]
    sent, arrived = (np.where(known, array(up.column(n))[at], served) for n in ("sent", "arrived"))
    return np.clip(sent, woke, served), np.clip(arrived, np.clip(sent, woke, served), served)


def thinning_words(found: Sequence[Data]) -> str:
    """Return what a page leaves out of its curves, in a sentence; "" if it shows every row."""
    stretches = max((chart.get("thinned", 0) for chart in found), default=0)
    return (
        f"Long curves show the lowest and the highest row of each of {stretches} stretches."
        if stretches
        else ""
    )
