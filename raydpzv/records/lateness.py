"""Folds over times: missed updates, model ages, interruptions, silent clients, and clocks that
differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydpzv.arrow_columns import array
from raydpzv.records.store import Rows
from raydpzv.settings.fields import per_client
from raydpzv.settings.sections import ArrivalsSection

MOST_CLIENTS = 64
"""Most clients whose silence the summary lists one by one."""
APART = 0.1
"""How far a client's clock may be from the server's, as a share of the mean time between its
activations.
"""
_LISTED = 8


def lag_summary(sync: pa.Table, service: pa.Table) -> dict[str, Any]:
    """Return the `staleness` block of summary.json for a horizontal run; a number that does not
    exist is None.

    mean, max: updates between reading the model and the update made of it (0 in synchronous
    rounds); missed: updates that a client replayed before it worked; pairs: (seed, scalar) pairs it
    got for them; pulled: share of activations at which it took the whole model instead; late_share:
    activations that began after their epoch;
    clients: how many took part.
    """
    late = array(service.column("late")) if service.num_rows else None
    found: dict[str, Any] = {"late_share": None if late is None else float(np.mean(late))}
    if sync.num_rows == 0:
        return {"mean": None, "max": None, **found}
    lag, missed, pairs = (array(sync.column(name)) for name in ("lag", "missed", "pairs"))
    pulled = array(sync.column("pulled"))
    return {
        "mean": float(lag.mean()),
        "max": int(lag.max()),
        "missed_mean": float(missed.mean()),
        "missed_max": int(missed.max()),
        "pairs_mean": float(pairs.mean()),
        "pulled_share": float(pulled.mean()),
        "clients": len(np.unique(array(sync.column("client")))),
        **found,
    }


def lag_counts(sync: pa.Table) -> NDArray[np.int64]:
    """Return how many uploads had lag 0, 1, 2, ...: updates made while they were computed; empty
    without uploads.
    """
    return np.bincount(array(sync.column("lag"))) if sync.num_rows else np.zeros(0, np.int64)


def leg_summary(leg: pa.Table) -> dict[str, Any]:
    """Return the `legs` block of summary.json, {} of a run that was never interrupted.

    count: segments in all; gaps: real seconds before the second, the third, ... (None: unknown),
    which the run's clock does not count; recovered: updates that only the ledger had, which were
    served again.
    """
    rows = leg.to_pylist()
    if not rows:
        return {}
    gaps = [None if row["gap"] != row["gap"] else row["gap"] for row in rows]
    recovered = sum(row["recovered"] for row in rows)
    return {"legs": {"count": rows[-1]["leg"], "gaps": gaps, "recovered": recovered}}


def leg_begins(leg: pa.Table) -> NDArray[np.float64]:
    """Return the start of the second, the third, ... segment, on the run's clock."""
    return cast("NDArray[np.float64]", array(leg.column("time")))


def presence(service: pa.Table, clients: int) -> list[dict[str, Any]]:
    """Return each client's share of the updates, and the longest time without a service of its
    uploads.

    Times are seconds of the run's clock, from its start to the last service of any client.
    """
    client, served = array(service.column("client")), array(service.column("served"))
    end = float(served.max(initial=0.0))
    found = []
    for m in range(clients):
        mine = np.sort(served[client == m])
        pauses = np.diff(np.concatenate([[0.0], mine, [end]]))
        share = len(mine) / len(client) if len(client) else 0.0
        found.append(
            {"client": m, "share": share, "longest_silence": float(pauses.max(initial=0.0))}
        )
    return found


def clock_warnings(arrivals: ArrivalsSection, clients: int, rows: Rows) -> list[str]:
    """Return one sentence for each machine whose clock differs by more than `APART` and the error
    of measurement.
    """
    measured = rows["clock"].to_pylist()
    gaps = _gaps(arrivals, clients, rows["service"]) if measured else []
    found = dict[str, list[tuple[dict[str, Any], float]]]()
    for row in measured:
        kind, number = row["party"].split()
        gap = float(
            gaps[int(number)] if kind == "client" else min(gaps)
        )  # any client may be a host's
        if abs(row["offset"]) > max(APART * gap, row["error"]):
            found.setdefault(row["node"], []).append((row, gap))
    return [_sentence(apart) for apart in found.values()]


def _sentence(apart: Sequence[tuple[dict[str, Any], float]]) -> str:
    worst = max((row for row, _ in apart), key=lambda row: abs(row["offset"]))
    parties, gap = (
        list(dict.fromkeys(row["party"] for row, _ in apart)),
        min(gap for _, gap in apart),
    )
    more = f" and {len(parties) - _LISTED} more" if len(parties) > _LISTED else ""
    way = "ahead of" if worst["offset"] > 0 else "behind"
    return (
        f"the clock of the machine of {', '.join(parties[:_LISTED])}{more} is "
        f"{abs(worst['offset']):.3g} s (± {worst['error']:.1g} s) {way} the server's, more than a "
        f"tenth of the {gap:.3g} s between two activations: their times in rows cannot be compared "
        "more closely; have both machines' clocks set by one source (NTP)"
    )


def _gaps(arrivals: ArrivalsSection, clients: int, service: pa.Table) -> Sequence[float]:
    """Return each client's mean seconds between two activations: as configured, else as
    measured.
    """
    if arrivals.kind in ("poisson", "constant"):
        return [1 / rate for rate in per_client(arrivals.rate, clients)]
    woke = array(service.column("woke"))
    span = float(np.ptp(woke)) if woke.size else math.inf
    return [
        span / max(n, 1) for n in np.bincount(service.column("client"), minlength=clients).tolist()
    ]
