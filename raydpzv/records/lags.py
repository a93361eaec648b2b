"""What horizontal clients missed and how old the models were that they worked at, folded from `sync` rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def lag_summary(sync: pa.Table, service: pa.Table) -> dict[str, Any]:
    """Return the `staleness` block of summary.json for a horizontal run; a number that does not exist is None.

    mean, max: updates between reading the model and the update made of it (0 in synchronous rounds); missed: updates
    that a client replayed before it worked; pairs: (seed, scalar) pairs it got for them; pulled: share of
    activations at which it took the whole model instead; late_share: activations that began after their epoch.
    """
    late = service.column("late").to_numpy() if service.num_rows else None
    found: dict[str, Any] = {"late_share": None if late is None else float(np.mean(late))}
    if sync.num_rows == 0:
        return {"mean": None, "max": None, **found}
    lag, missed, pairs = (sync.column(name).to_numpy() for name in ("lag", "missed", "pairs"))
    pulled = sync.column("pulled").to_numpy(zero_copy_only=False)
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
