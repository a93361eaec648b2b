"""What each client of a vertical run did: uploads, bytes, activations per second (asked, achieved), staleness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.text import Text

from raydpzv.records import traffic
from raydpzv.records.store import Rows
from raydpzv.report import horizontal, text
from raydpzv.report.head_table import HeadTable
from raydpzv.settings.party_names import label

CLIENT_HEAD = (
    "client", "uploads", "up", "down", "rate asked", "achieved", "mean age", "max age", "mean delay", "max delay",
    "late",
)  # fmt: skip
CLIENT_NOTE = (
    "Rates: activations per second of the run's clock. Age: of the client's cached embeddings when they were used, in "
    "server rounds. Delay: rounds served between the client's reading its model and changing it. Late: share of the "
    "activations that fell into a running round trip."
)
_MOST = 20


def rates_asked(kind: str, rate: float | Sequence[float], clients: int) -> list[float]:
    """Return each client's rate as `[arrivals]` asks for it; NaN where its kind has none (a trace, "immediate")."""
    if kind not in ("poisson", "constant"):
        return [math.nan] * clients
    return [float(r) for r in rate] if isinstance(rate, Sequence) else [float(rate)] * clients


def client_table_rows(
    summary: Mapping[str, Any], rows: Rows, scenario: Mapping[str, Any]
) -> list[tuple[str, ...]]:
    """Return one row per client under CLIENT_HEAD; none for horizontal runs, whose clients are summed up.

    scenario: the run's settings as a tree; without its [arrivals] no rate was asked for.
    """
    stated = (summary.get("staleness") or {}).get("clients") or ()
    if horizontal.is_horizontal(summary) or not stated:
        return []
    count, seconds = len(stated), summary.get("simulated_seconds") or math.nan
    up, down = traffic.bytes_by_client(rows["message"], count)
    uploads = np.bincount(rows["service"].column("client").to_numpy(), minlength=count)
    asked, names = _asked(scenario, count), summary.get("parties") or ()
    return [
        (
            label(c["client"], names).removeprefix("client "),
            f"{uploads[m]:,}",
            text.size(int(up[m])),
            text.size(int(down[m])),
            text.number(asked[m], 3),
            text.number(uploads[m] / seconds, 3),
            *(text.number(c.get(k), 3) for k in ("mean", "max", "delay_mean", "delay_max")),
            text.NONE if c.get("late_share") is None else f"{c['late_share']:.1%}",
        )
        for m, c in enumerate(stated)
    ]


def client_table(rows: Sequence[tuple[str, ...]]) -> HeadTable:
    """Return the rows as a console table of at most 20 clients, those with the oldest embeddings among more."""
    table = HeadTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for head in CLIENT_HEAD:
        table.add_column(head.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in sorted(sorted(rows, key=_age, reverse=True)[:_MOST], key=rows.index):
        table.add_row(*map(Text, row))
    if len(rows) > _MOST:
        table.caption = f"of {len(rows)} clients the {_MOST} with the oldest embeddings; all: raydpzv report"
    return table


def _asked(scenario: Mapping[str, Any], clients: int) -> list[float]:
    arrivals = scenario.get("arrivals") or {}
    kind, rate = arrivals.get("kind", ""), arrivals.get("rate", math.nan)
    found = rates_asked(kind, rate, clients)
    return found if len(found) == clients else [math.nan] * clients


def _age(row: tuple[str, ...]) -> float:
    shown = row[CLIENT_HEAD.index("mean age")].replace(",", "")
    return -1.0 if shown == text.NONE else float(shown)
