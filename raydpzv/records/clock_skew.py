"""What is said of machines whose clocks are too far from the server's for times in rows to be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.records.store import Rows
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections import ArrivalsSection

APART = 0.1
"""Of the mean time between a client's activations, how far its clock may be from the server's."""
_LISTED = 8


def clock_warnings(arrivals: ArrivalsSection, clients: int, rows: Rows) -> list[str]:
    """Return one sentence for each machine whose clock is further off than that, and than it could be measured."""
    measured = rows["clock"].to_pylist()
    gaps = _gaps(arrivals, clients, rows["service"]) if measured else []
    found = dict[str, list[tuple[dict[str, Any], float]]]()
    for row in measured:
        kind, number = row["party"].split()
        gap = float(gaps[int(number)] if kind == "client" else min(gaps))  # any client may be a host's
        if abs(row["offset"]) > max(APART * gap, row["error"]):
            found.setdefault(row["node"], []).append((row, gap))
    return [_sentence(apart) for apart in found.values()]


def _sentence(apart: Sequence[tuple[dict[str, Any], float]]) -> str:
    worst = max((row for row, _ in apart), key=lambda row: abs(row["offset"]))
    parties, gap = list(dict.fromkeys(row["party"] for row, _ in apart)), min(gap for _, gap in apart)
    more = f" and {len(parties) - _LISTED} more" if len(parties) > _LISTED else ""
    way = "ahead of" if worst["offset"] > 0 else "behind"
    return (
        f"the clock of the machine of {', '.join(parties[:_LISTED])}{more} is {abs(worst['offset']):.3g} s "
        f"(± {worst['error']:.1g} s) {way} the server's, more than a tenth of "
        f"the {gap:.3g} s between two activations: their times in rows cannot be compared more closely; have both "
        "machines' clocks set by one source (NTP)"
    )


def _gaps(arrivals: ArrivalsSection, clients: int, service: pa.Table) -> Sequence[float]:
    """Return each client's mean seconds between two activations: those asked for, else those there were."""
    if arrivals.kind in ("poisson", "constant"):
        return [1 / rate for rate in per_client(arrivals.rate, clients)]
    woke = service.column("woke").to_numpy()
    span = float(np.ptp(woke)) if woke.size else math.inf
    return [span / max(n, 1) for n in np.bincount(service.column("client"), minlength=clients).tolist()]
