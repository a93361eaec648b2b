"""What it costs to watch a run: updates per CPU second with every log and metric on, against none.

one process   digits_dpzv on the compiled engine, whose updates are the shortest there are: CPU seconds of the whole run
on Ray        digits_dpzv, 4 clients in an actor each: CPU seconds of all processes, steady state

Both write their run folder. Ways take turns within one run of this script, and each is held against the other in the
same turn: many short runs tell more than few long ones, since what else the machine does changes within seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import environment, median, options, show, spread, verdict, write
from watch import Watch

import raydpzv
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local
from raydpzv.records.callbacks import Callback
from raydpzv.registry import LOGS

TARGET = 0.98
"""Updates per CPU second, of those without anything on."""
WAYS = ("nothing on", "all on")


def _logs(way: str) -> list[Callback]:
    return [make() for make in LOGS.values()] if way == "all on" else []


def local(way: str, updates: int) -> float:
    """Return updates per CPU second of a run in this process."""
    prepared = prepare(raydpzv.load("digits_dpzv", [f"budget.updates={updates}", "model.engine=compiled"]))
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        run_local(prepared, RunOptions(Path(folder) / "run", callbacks=_logs(way)))
        return updates / (time.process_time() - began)


def on_ray(way: str, updates: int) -> float:
    """Return updates per CPU second of all processes of a run on actors."""
    from actors.ray_metrics import RayMetrics
    from actors.vertical.driver import run_vertical

    prepared = prepare(raydpzv.load("digits_dpzv", [f"budget.updates={updates}"]))
    watch = Watch(updates // 5, updates)
    callbacks = [*_logs(way), *([RayMetrics()] if way == "all on" else [])]
    with tempfile.TemporaryDirectory() as folder:
        run_vertical(prepared, RunOptions(Path(folder) / "run", progress=watch, callbacks=callbacks))
    return 1 / watch.pace().total


def _turns(measure: Any, updates: int, repeats: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(repeats + 1):
        for way in WAYS if turn % 2 else reversed(WAYS):
            rate = measure(way, updates)
            print(
                f"{measure.__name__}, {way}: {rate:.0f} updates per CPU second", file=sys.stderr, flush=True
            )
            if turn:  # the first turn imports and compiles
                found[way].append(rate)
    return found


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    repeats = chosen.repeats or (1 if chosen.quick else 15)
    before = environment()
    os.environ.setdefault("RAY_worker_niceness", "0")
    from actors.cluster import connected

    found = {"one process": _turns(local, 6000, repeats)}
    with connected(reuse=True):
        found["on Ray"] = _turns(on_ray, 3000, repeats)
    rows, figures = [], {}
    for where, rates in found.items():
        ratios = [on / off for off, on in zip(*(rates[way] for way in WAYS), strict=True)]
        rows.append(
            [
                where,
                *(f"{median(rates[way]):.0f}" for way in WAYS),
                f"{median(ratios):.3f}",
                f"{spread(ratios):.1%}",
                verdict(median(ratios), TARGET),
            ]
        )
        figures[where] = {"updates_per_cpu_second": rates, "ratios": ratios, "ratio": median(ratios)}
    show("Updates per CPU second", ["", *WAYS, "ratio", "spread", "target"], rows)
    write("exporters", {"figures": figures, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
