"""What interrupted a run under the wall clock, folded from rows: its legs, and for how long each client was silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MOST_CLIENTS = 64
"""Clients up to which the summary says of each how long it was silent."""


def leg_summary(leg: pa.Table) -> dict[str, Any]:
    """Return the `legs` block of summary.json, {} of a run that was never interrupted.

    count: legs in all; gaps: real seconds before the second, the third, ... (None: nobody knows), which no clock of the
    run counts; recovered: updates that only the ledger had then, which were served again.
    """
    rows = leg.to_pylist()
    if not rows:
        return {}
    gaps = [None if row["gap"] != row["gap"] else row["gap"] for row in rows]
    recovered = sum(row["recovered"] for row in rows)
    return {"legs": {"count": rows[-1]["leg"], "gaps": gaps, "recovered": recovered}}


def leg_begins(leg: pa.Table) -> NDArray[np.float64]:
    """Return when the second, the third, ... leg began, on the run's clock."""
    times: NDArray[np.float64] = leg.column("time").to_numpy()
    return times


def presence(service: pa.Table, clients: int) -> list[dict[str, Any]]:
    """Return of each client its share of the updates, and the longest time in which none of its uploads was served.

    That is in seconds of the run's clock, from its start to the last service of any client.
    """
    client, served = service.column("client").to_numpy(), service.column("served").to_numpy()
    end = float(served.max(initial=0.0))
    found = []
    for m in range(clients):
        mine = np.sort(served[client == m])
        pauses = np.diff(np.concatenate([[0.0], mine, [end]]))
        share = len(mine) / len(client) if len(client) else 0.0
        found.append({"client": m, "share": share, "longest_silence": float(pauses.max(initial=0.0))})
    return found
