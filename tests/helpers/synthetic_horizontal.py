"""Builds views of horizontal runs with plausible rows: rounds of a cohort, or clients that wake by
themselves.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.keys import Key
from raydpzv.records import metrics
from raydpzv.records.lateness import lag_summary
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import Rows
from raydpzv.records.summary_fields import SUMMARY_FORMAT
from raydpzv.report.run_tables import RunView

NO_NOISE = "NOT PRIVATE: no noise is added in this run, and no ε is claimed."
PAIRS = 5


def prepared(
    label: str = "rounds",
    *,
    method: str = "decomfl",
    updates: int = 60,
    clients: int = 30,
    cohort: int = 3,
    lag: int = 0,
    weights: int = 0,
    pause: float = 0.0,
) -> RunView:
    """Return a run's view: `lag` gives asynchronous updates, `weights` bytes of whole models in
    place of pairs.

    pause: seconds of the run's clock from one update to the next.
    """
    draw = Key(1).generator()
    versions = np.zeros(clients, int)
    rows: dict[str, list[dict[str, Any]]] = {
        "message": [],
        "service": [],
        "sync": [],
        "evaluation": [],
    }
    for update in range(1, updates + 1):
        cohorts = draw.choice(clients, 1 if lag else cohort, replace=False)
        for client in sorted(cohorts.tolist()):
            behind = int(draw.integers(0, lag + 1)) if lag else 0
            read = max(update - 1 - behind, int(versions[client]))
            missed = read - int(versions[client])
            versions[client] = read
            _add_upload(rows, update, client, read, missed, weights, pause)
        if update % 10 == 0 or update == updates:
            rows["evaluation"].append(_score(update, updates, pause))
    tables = {
        name: pa.Table.from_pylist(rows.get(name, []), schema=s) for name, s in SCHEMAS.items()
    }
    return RunView(label, _summary(method, tables, updates, pause), tables)


def _add_upload(
    rows: dict[str, list[dict[str, Any]]],
    update: int,
    client: int,
    read: int,
    missed: int,
    weights: int,
    pause: float,
) -> None:
    served = update * pause
    woke = served - 0.8 * pause
    sent = {"sent": woke, "arrived": served, "kind": "x", "client": client, "round": update}
    rows["message"].append(
        sent | {"direction": "down", "bytes": weights or (8 + 4 * PAIRS) * missed + 8}
    )
    rows["message"].append(sent | {"direction": "up", "bytes": weights or 4 * PAIRS})
    times = {"due": woke, "woke": woke, "late": False, "served": served, "applied": math.nan}
    loss = 2.0 / (1 + update) + 0.01 * client
    rows["service"].append({"round": update, "client": client, "step": 0, "loss": loss} | times)
    if not weights:
        sync = {"read": read, "lag": update - 1 - read, "missed": missed, "pairs": PAIRS * missed}
        rows["sync"].append({"round": update, "client": client, "pulled": False} | sync)


def _score(update: int, updates: int, pause: float) -> dict[str, Any]:
    scores = {"accuracy": 0.9 * update / updates, "loss": 1.0, "top_share": 0.2}
    return {"round": update, "time": update * pause, "part": "test"} | scores


def _summary(method: str, rows: Rows, updates: int, pause: float) -> dict[str, Any]:
    seeded = rows["sync"].num_rows > 0
    ledger = {"updates": updates, "pairs": PAIRS * updates, "bytes": 2048, "digest": "c6" * 32}
    return {
        "scenario": "synthetic",
        "method": method,
        "seed": 0,
        "status": "done",
        "stopped_by": f"{updates} updates done",
        "accuracy": 0.9,
        "peak_accuracy": 0.9,
        "loss": 1.0,
        "updates": updates,
        "uploads": rows["service"].num_rows,
        "bytes_up": metrics.bytes_up(rows["message"]),
        "bytes_down": metrics.bytes_down(rows["message"]),
        "seconds": 1.0,
        "simulated_seconds": updates * pause,
        "throughput": metrics.throughput(rows["service"]) if pause else None,
        "staleness": lag_summary(rows["sync"], rows["service"]),
        "epsilon": [],
        "format": SUMMARY_FORMAT,
        "private": False,
        "private_reason": NO_NOISE,
        "privacy_verdict": NO_NOISE,
        "warnings": [],
    } | ({"ledger": ledger} if seeded else {})
