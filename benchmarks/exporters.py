"""What it costs to watch a run: updates per CPU second with every log and metric on, against none.

one process   digits_dpzv on the compiled engine, whose updates are the shortest there are: CPU
seconds of the whole run on Ray        digits_dpzv, 4 clients in an actor each: CPU seconds of all
processes, steady state

Both write their run folder. Ways take turns within one run of this script, and each is held against
the other in the same turn; on a machine that does much else such ratios lie far apart, so that they
judge nothing finer than their
spread. The share does: CPU seconds within the callbacks (and in one process those of the threads
that they have) over those of the same run, of which as many fewer updates follow.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
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
EVENTS = ("start", "status", "rows", "evaluation", "fault", "end")


class Meter:
    """Counts the CPU seconds of the thread within callbacks."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self.seconds = 0.0
        for callback in callbacks:
            for event in EVENTS:
                setattr(callback, event, self._timed(getattr(callback, event)))

    def _timed(self, event: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(what: Any) -> None:
            began = time.thread_time()
            event(what)
            self.seconds += time.thread_time() - began

        return timed


_FILES = ("csv", "tensorboard", "json")
"""The logs that need no tracker's own program."""


def _logs(way: str) -> list[Callback]:
    return [LOGS[name]() for name in _FILES] if way == "all on" else []


def local(way: str, updates: int) -> tuple[float, float]:
    """Return updates per CPU second of a run in this process, and the callbacks' share of these."""
    prepared = prepare(
        raydpzv.load("digits_dpzv", [f"budget.updates={updates}", "model.engine=compiled"])
    )
    callbacks = _logs(way)
    meter = Meter(callbacks)
    with tempfile.TemporaryDirectory() as folder:
        began, here = time.process_time(), time.thread_time()
        run_local(prepared, RunOptions(Path(folder) / "run", callbacks=callbacks))
        cpu, here = time.process_time() - began, time.thread_time() - here
    return updates / cpu, (meter.seconds + (cpu - here if callbacks else 0.0)) / cpu


def on_ray(way: str, updates: int) -> tuple[float, float]:
    """Return updates per CPU second of all processes of a run on actors, and the callbacks' share
    of these.
    """
    from actors.ray_metrics import RayMetrics
    from actors.vertical.driver import run_vertical

    prepared = prepare(raydpzv.load("digits_dpzv", [f"budget.updates={updates}"]))
    watch = Watch(updates // 5, updates)
    callbacks = [*_logs(way), *([RayMetrics(private=False)] if way == "all on" else [])]
    meter = Meter(callbacks)
    with tempfile.TemporaryDirectory() as folder:
        run_vertical(
            prepared, RunOptions(Path(folder) / "run", progress=watch, callbacks=callbacks)
        )
    cpu = watch.pace().total
    return 1 / cpu, meter.seconds / updates / cpu


def _turns(
    measure: Callable[[str, int], tuple[float, float]], updates: int, repeats: int
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for turn in range(repeats + 1):
        for way in WAYS if turn % 2 else reversed(WAYS):
            rate, share = measure(way, updates)
            line = (
                f"{measure.__name__}, {way}: {rate:.0f} updates per CPU second, {share:.2%} in "
                "callbacks"
            )
            print(line, file=sys.stderr, flush=True)
            if turn:  # the first turn imports and compiles
                found[way].append((rate, share))
    return found


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    repeats = chosen.repeats or (1 if chosen.quick else 5)
    before = environment()
    os.environ.setdefault("RAY_worker_niceness", "0")
    from actors.cluster import connected

    found = {"one process": _turns(local, 6000, repeats)}
    with connected(reuse=True):
        found["on Ray"] = _turns(on_ray, 3000, repeats)
    rows, figures = [], {}
    for where, turns in found.items():
        rates = {way: [rate for rate, _ in turns[way]] for way in WAYS}
        ratios = [on / off for off, on in zip(*(rates[way] for way in WAYS), strict=True)]
        share = median([share for _, share in turns["all on"]])
        rows.append(
            [
                where,
                *(f"{median(rates[way]):.0f}" for way in WAYS),
                f"{median(ratios):.3f}",
                f"{spread(ratios):.1%}",
                f"{share:.2%}",
                verdict(1 - share, TARGET),
            ]
        )
        figures[where] = {"updates_per_cpu_second": rates, "ratios": ratios, "share": share}
    columns = [
        "updates per CPU second",
        *WAYS,
        "ratio",
        "spread",
        "share in callbacks",
        "1 - share",
    ]
    show("Watching a run", columns, rows)
    write("exporters", {"figures": figures, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
