"""Builds run folders with plausible rows: M clients on Poisson clocks, one server, one upload at a
time.
"""

import heapq
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.keys import Key
from raydpzv.records import metrics
from raydpzv.records.schema import AGE_BINS, SCHEMAS
from raydpzv.records.store import append_rows, read_all
from raydpzv.records.summary_fields import SUMMARY_FORMAT

BATCH = 64
SCENARIO = 'name = "synthetic <b>"\n\n[method]\nname = "dpzv"\nsigma = 2.5\n'
MECHANISM = "floating-point Gaussian, σ=2.5, system noise"
SCOPE = "400 releases of a clipped batch mean, C=10, B=64 of D=5,000 records; unit: one record"
SHARED = {"delta": 1e-5, "mechanism": MECHANISM, "scope": SCOPE}
TERMS = SHARED | {"sensitivity": 0.3125, "relation": "replace", "direct_only": None, "note": ""}
PROVED = (
    "Proved against the clients: ε = 8.25 at δ = 1e-05 (replace one record; closed form (GDP))."
)
NO_NOISE = "NOT PRIVATE: no noise is added to the releases."
CLOSED = "closed form (GDP)"
CLAIMS: list[dict[str, Any]] = [
    TERMS
    | {"adversary": "paper", "epsilon": 1.0, "accountant": CLOSED, "holds": False}
    | {
        "note": "as claimed by the paper (Theorem VI.5); NOT proved: a client knows its batches <i>"
    },
    TERMS | {"adversary": "client", "epsilon": 8.25, "accountant": CLOSED, "holds": True},
    TERMS
    | {"adversary": "client", "epsilon": 3.75, "accountant": CLOSED, "holds": True}
    | {"relation": "add_remove", "sensitivity": 0.15625},
    TERMS
    | {
        "adversary": "external",
        "epsilon": 1.01,
        "accountant": "PLD (dp-accounting), Poisson sampling",
    }
    | {"holds": True, "note": "valid while batch ids and the run's seed stay secret"},
    TERMS
    | {"adversary": "server", "epsilon": "infinity", "accountant": "none", "holds": False}
    | {"mechanism": "none", "sensitivity": None}
    | {"note": "trusted: it holds the labels and sees every value before the noise"},
]


def trips(clients: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Serve `rounds` uploads; client m is woken about every 0.15 * (1 + m) seconds and works 20 to
    120 ms.
    """
    draws = [(Key(seed) / "synthetic" / m).generator() for m in range(clients)]
    events = [(float(d.exponential(0.15 * (1 + m))), m) for m, d in enumerate(draws)]
    woken = [(due, due, m, 0) for due, m in events]
    heapq.heapify(woken)
    free = 0.0
    out: list[dict[str, Any]] = []
    while len(out) < rounds:
        woke, due, m, step = heapq.heappop(woken)
        free = max(free, woke + float(draws[m].uniform(0.02, 0.12))) + 0.004
        applied = free + 0.01
        row = {
            "round": len(out) + 1,
            "client": m,
            "step": step,
            "due": due,
            "woke": woke,
            "late": woke > due,
        }
        loss = 2.3 * math.exp(-len(out) / 150) + 0.2 + 0.15 * abs(float(draws[m].normal()))
        out.append(row | {"served": free, "applied": applied, "loss": loss})
        due += float(draws[m].exponential(0.15 * (1 + m)))
        heapq.heappush(woken, (max(due, applied), due, m, step + 1))
    out[-1]["applied"] = math.nan
    return out


def messages(trip: dict[str, Any]) -> list[dict[str, Any]]:
    up = {
        "direction": "up",
        "kind": "Embeddings",
        "sent": trip["woke"],
        "arrived": trip["served"],
        "bytes": 2 * BATCH * 64,
    }
    down = {
        "direction": "down",
        "kind": "Scalar",
        "sent": trip["served"],
        "arrived": trip["applied"],
        "bytes": 4,
    }
    return [{"round": trip["round"], "client": trip["client"]} | m for m in (up, down)]


def ages(trip: dict[str, Any], clients: int, draw: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for m in range(clients):
        if m == trip["client"]:
            continue
        missing = BATCH if trip["round"] < 5 else 0
        age = np.minimum(draw.geometric(1 / (20 * (1 + m)), BATCH - missing), trip["round"])
        bins = np.bincount(np.ceil(np.log2(age + 1)).astype(int), minlength=AGE_BINS)
        counts = {
            "rows": BATCH,
            "missing": missing,
            "age_sum": int(age.sum()),
            "age_max": int(age.max(initial=0)),
        }
        rows.append({"round": trip["round"], "client": m, "age_bins": bins.tolist()} | counts)
    return rows


def release(trip: dict[str, Any], rounds: int, private: bool) -> dict[str, Any]:
    share = math.sqrt(trip["round"] / rounds)
    spent = {"epsilon_paper": 1.0 * share, "epsilon_client": 8.25 * share}
    none = {"epsilon_paper": math.nan, "epsilon_client": math.inf}
    noise = {
        "mechanism": "gaussian" if private else "none",
        "source": "system" if private else "none",
    }
    fixed = {
        "step": 0,
        "perturbation": 0,
        "value": 0.1,
        "sigma": 2.5 * private,
        "batch": BATCH,
        "nonfinite": 0,
    }
    sensitivity = {"sensitivity_replace": 0.3, "sensitivity_add_remove": 0.15}
    where = {"round": trip["round"], "client": trip["client"]}
    return where | noise | fixed | sensitivity | (spent if private else none)


def evaluation(trip: dict[str, Any], level: float) -> dict[str, Any]:
    accuracy = 0.1 + (level - 0.1) * (1 - math.exp(-trip["round"] / 120))
    return {
        "round": trip["round"],
        "time": trip["served"],
        "part": "test",
        "accuracy": accuracy,
    } | {
        "loss": 2.3 * (1 - accuracy),
        "top_share": 0.2,
    }


def build_run(
    folder: Path,
    *,
    clients: int = 4,
    rounds: int = 400,
    seed: int = 1,
    method: str = "dpzv",
    private: bool = True,
) -> Path:
    """Write a complete run folder and return it."""
    folder.mkdir(parents=True)
    served = trips(clients, rounds, seed)
    draw = (Key(seed) / "ages").generator()
    rows = {
        "message": [m for t in served for m in messages(t)],
        "service": served,
        "staleness": [a for t in served for a in ages(t, clients, draw)],
        "release": [release(t, rounds, private) for t in served],
        "evaluation": [
            evaluation(t, 0.9 if private else 0.95)
            for t in served
            if t["round"] % 20 == 0 or t["round"] == rounds
        ],
    }
    append_rows(
        folder, {name: pa.Table.from_pylist(r, schema=SCHEMAS[name]) for name, r in rows.items()}
    )
    (folder / "scenario.toml").write_text(SCENARIO)
    (folder / "environment.json").write_text(
        json.dumps({"device": "cpu", "threads": 2, "torch": {"cuda": None}})
    )
    (folder / "summary.json").write_text(
        json.dumps(summary(folder, clients, seed, method, private))
    )
    return folder


def summary(folder: Path, clients: int, seed: int, method: str, private: bool) -> dict[str, Any]:
    """Return what a run writes to summary.json, computed from its rows."""
    rows = read_all(folder)
    last = rows["service"].column("served").to_pylist()[-1]
    nothing = {
        "epsilon": "infinity",
        "mechanism": "none",
        "holds": False,
        "note": "nothing is noised",
    }
    return {
        "scenario": "synthetic <b>",
        "method": method,
        "seed": seed,
        "status": "done",
        "stopped_by": "updates",
        "accuracy": rows["evaluation"].column("accuracy").to_pylist()[-1],
        "best_accuracy": None,
        "best_update": None,
        "validation_accuracy": None,
        "peak_accuracy": metrics.peak_accuracy(rows["evaluation"]),
        "loss": 0.31,
        "updates": rows["service"].num_rows,
        "bytes_up": metrics.bytes_up(rows["message"]),
        "bytes_down": metrics.bytes_down(rows["message"]),
        "seconds": 1.75,
        "simulated_seconds": last,
        "staleness": metrics.staleness_summary(rows["staleness"], rows["service"], clients),
        "epsilon": CLAIMS if private else [CLAIMS[1] | nothing],
        "format": SUMMARY_FORMAT,
        "private": private,
        "private_reason": None if private else NO_NOISE,
        "privacy_verdict": PROVED if private else NO_NOISE,
        "digest": "0f" * 32,
        "model_digest": "a1" * 32,
        "versions": {"raydpzv": "0.1.0", "torch": "2.13"},
    }
