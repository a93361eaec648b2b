"""Moments and absences as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from raydpzv.engine.split_model import Metrics
from raydpzv.ledger.entries import SHARED
from raydpzv.report.text import percent
from raydpzv.timetravel.history import Moment
from raydpzv.timetravel.what_if import Absence

_MOST = 8
"""Clients or scalars that a line lists."""


def lines_of(
    moment: Moment, updates: int, metrics: Metrics | None, known: str = ""
) -> Iterator[str]:
    """Yield what happened in one of `updates` updates; metrics: of the model after it; known: terms
    said before.
    """
    when = f", {moment.time:.4g} s" if math.isfinite(moment.time) and moment.time > 0 else ""
    yield f"update {moment.update:,} of {updates:,}{when}"
    if moment.clients:
        yield f"  clients    {_some([str(client) for client in moment.clients])}"
    place = 0
    for party, scalars in moment.released:
        whom, first = "to all" if party == SHARED else f"client {party}", moment.seeds[place]
        pairs = (
            f"{whom}; step size {moment.lr:.3g}; {'first ' if len(scalars) > 1 else ''}seed "
            f"{first:x}"
        )
        yield f"  released   {_some([f'{value:.4g}' for value in scalars])} ({pairs})"
        place += len(scalars)
    for party_name, length in moment.moved.items():
        yield (
            f"  moved      {'the model' if party_name == 'shared' else party_name} by {length:.4g}"
        )
    if moment.staleness:
        yield (
            f"  staleness  {moment.staleness} {'update' if moment.staleness == 1 else 'updates'} at"
            " most"
        )
    if moment.clipped is not None:
        yield f"  clipped    {moment.clipped} {'record' if moment.clipped == 1 else 'records'}"
    if math.isfinite(moment.loss):
        yield f"  loss       {moment.loss:.4f} on the batches"
    if metrics:
        yield f"  held out   {result(metrics)}"
    if moment.evaluated and not math.isnan(moment.evaluated[1]):  # numbers and times have none
        update, accuracy = moment.evaluated
        yield f"  recorded   accuracy {percent(accuracy)} after update {update}"
    if moment.epsilon is not None:
        terms = terms_of(moment)
        yield (
            "  so far     "
            f"{moment.epsilon[1].removesuffix(terms)}{'terms as above' if terms == known else terms}"
        )


def terms_of(moment: Moment) -> str:
    """Return what stands behind the ε so far; "" without one."""
    return moment.epsilon[1].partition(", ")[2] if moment.epsilon else ""


def result(metrics: Metrics) -> str:
    """Return accuracy, if there is one, and loss."""
    accuracy = "" if math.isnan(metrics.accuracy) else f"accuracy {percent(metrics.accuracy)}, "
    return f"{accuracy}loss {metrics.loss:.4f}"


def absence_line(absence: Absence) -> str:
    """Return what the run's end would have been without a client."""
    change = f"{abs(absence.change):.4f} {'lower' if absence.change < 0 else 'higher'} loss"
    if math.isnan(absence.change):
        change = "no finite loss to compare"
    return f"without client {absence.client}: {result(absence.metrics)} ({change})"


def ranking_lines(ranked: Sequence[Absence], most: int | None) -> Iterator[str]:
    """Yield a ranking's lines, of long ones the first and the last `most` (None: all)."""
    if most is None or (left_out := len(ranked) - 2 * most) <= 0:
        yield from map(absence_line, ranked)
        return
    yield from map(absence_line, ranked[:most])
    yield f"... {left_out} more: --all lists them, --csv writes a table"
    yield from map(absence_line, ranked[-most:])


def ranking_table(ranked: Sequence[Absence]) -> Iterator[tuple[object, ...]]:
    """Yield a ranking's head and rows, for CSV."""
    yield "place", "client", "change", "loss", "accuracy"
    for place, absence in enumerate(ranked, 1):
        yield place, absence.client, absence.change, absence.metrics.loss, absence.metrics.accuracy


def _some(values: Sequence[str]) -> str:
    more = f", and {len(values) - _MOST} more" if len(values) > _MOST else ""
    return ", ".join(values[:_MOST]) + more
