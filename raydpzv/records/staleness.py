"""What horizontal clients missed and how old the models were that they worked at, folded from `sync` rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class MissedUpdates:
    """Updates that clients missed, per activation, in consecutive windows of updates.

    round: the last update of each window with activations; mean, high: mean and 90th percentile over them.
    """

    round: NDArray[np.int64]
    mean: NDArray[np.float64]
    high: NDArray[np.float64]


def lag_summary(sync: pa.Table, service: pa.Table) -> dict[str, Any]:
    """Return the `staleness` block of summary.json for a horizontal run; a number that does not exist is None.

    mean, max: updates between reading the model and the update made of it (0 in synchronous rounds); missed: updates
    that a client replayed before it worked; pairs: (seed, scalar) pairs it got for them; pulled: share of
    activations at which it took the whole model instead; late_share: activations that began after their epoch;
    clients: how many took part.
    """
    late = service.column("late").to_numpy() if service.num_rows else None
    found: dict[str, Any] = {"late_share": None if late is None else float(np.mean(late))}
    if sync.num_rows == 0:
        return {"mean": None, "max": None, **found}
    lag, missed, pairs = (sync.column(name).to_numpy() for name in ("lag", "missed", "pairs"))
    pulled = sync.column("pulled").to_numpy()
    return {
        "mean": float(lag.mean()),
        "max": int(lag.max()),
        "missed_mean": float(missed.mean()),
        "missed_max": int(missed.max()),
        "pairs_mean": float(pairs.mean()),
        "pulled_share": float(pulled.mean()),
        "clients": len(np.unique(sync.column("client").to_numpy())),
        **found,
    }


def catch_up(sync: pa.Table, windows: int = 60) -> MissedUpdates:
    """Return what was missed over time, in at most `windows` windows of equally many updates."""
    round, missed = sync.column("round").to_numpy(), sync.column("missed").to_numpy()
    order = np.argsort(round, kind="stable")
    round, missed = round[order], missed[order]
    width = -(-int(round.max(initial=0)) // windows) or 1
    lasts, starts = np.unique((round - 1) // width, return_index=True)
    parts = np.split(missed, starts[1:]) if len(lasts) else []
    return MissedUpdates(
        np.minimum((lasts + 1) * width, round.max(initial=0)),
        np.array([part.mean() for part in parts]),
        np.array([np.percentile(part, 90) for part in parts]),
    )


def lag_counts(sync: pa.Table) -> NDArray[np.int64]:
    """Return how many uploads had lag 0, 1, 2, ...: updates made while they were computed; empty without uploads."""
    return np.bincount(sync.column("lag").to_numpy()) if sync.num_rows else np.zeros(0, np.int64)
