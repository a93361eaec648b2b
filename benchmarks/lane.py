"""The lane between actors against Ray's calls: whole runs, and round trips of messages of several
sizes.

runs          digits_dpzv, 4 clients in an actor each, over sockets and by calls: updates per second
and CPU
              milliseconds per update by process, steady state; under the wall clock at a rate that
              keeps every client busy, and under the virtual clock; horizontal scenarios with two
              hosts, whose updates are rounds, or single clients' where they are asynchronous
round trips   one actor hands in uploads of 1 to 400 KB to another, which answers 4 bytes:
milliseconds from call to
              answer (p50, p99), and CPU milliseconds of both

Ways take turns within one run of this script, and a figure is held against the calls' in the same
turn: a ratio of two seconds that lie beside one another means something on a shared machine,
neither of them alone does.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, median, options, show, verdict, write
from processes import GROUPS
from watch import Pace, Watch

from actors.transport.clients import ClientConnection, ClientConversation
from actors.transport.port import TransportPort
from actors.transport.sockets import TransportAddress
from raydpzv.config.toml import load
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer
from raydpzv.wire.messages import Embeddings, Slopes, Start

SCENARIOS = Path(__file__).parents[1] / "scenarios"
LANES = ("ray", "socket")
KILOBYTES = (1, 10, 100, 400)
TIMEOUT = 60.0
RATIO = {"digits_dpzv, wall clock": 3.0, "digits_dpzv, virtual clock": 2.0}
"""Least updates/s against calls."""
P50, P99 = 2.0, 8.0
"""Milliseconds at most, on a machine with little else to do."""
CASES = {
    "digits_dpzv, wall clock": (16_000, ("clock.kind=wall", "arrivals.rate=1e6")),
    "digits_dpzv, virtual clock": (16_000, ()),
    "digits_decomfl, 2 hosts": (1000, ("resources.hosts=2",)),
    "decomfl_async, 2 hosts": (3000, ("resources.hosts=2",)),
    "digits_users_zo, 2 hosts": (600, ("resources.hosts=2",)),
    "digits_users, 2 hosts": (150, ("resources.hosts=2",)),
}
"""Updates and settings of a scenario that keeps its actors busy."""


def run_over(lane: str, case: str, shorter: int) -> Pace:
    """Return the steady state of a run, of a fraction of its updates."""
    from actors.runner import run_on_ray

    updates, settings = CASES[case][0] // shorter, CASES[case][1]
    watch = Watch(updates // 5, updates)
    more = "evaluate.every=1000000000", f"budget.updates={updates}", f"resources.lane={lane}"
    spec = load(SCENARIOS / f"{case.split(',')[0]}.toml", (*settings, *more))
    run_on_ray(prepare(spec), RunOptions(progress=watch))
    return watch.pace()


class Answering(TransportPort):
    """An actor that answers every upload with 4 bytes, by calls and on sockets."""

    def __init__(self) -> None:
        super().__init__(partial(ClientConversation, lambda warm_up: self), TIMEOUT)

    def cpu(self) -> float:
        """Return the CPU seconds of this process."""
        return time.process_time()

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        """Answer an upload."""
        return Answer(Order(upload.client, Slopes(np.ones(1, np.float32)), upload.step), False)

    def first(self, client: int) -> Answer:
        """Answer who begins."""
        return Answer(Order(client, Start()), False)

    def wait(self, client: int, seconds: float) -> Answer:
        """Answer who waits."""
        return Answer(None, False)

    def finish(self, client: int, applied: float) -> None:
        """Let a client go."""


class Asking:
    """An actor that hands in uploads and measures how long the answers take."""

    def __init__(self, server: Any, address: TransportAddress) -> None:
        addresses = {"socket": address, "ray": None}
        self._ways = {lane: ClientConnection(server, addresses[lane], TIMEOUT) for lane in LANES}
        for way in self._ways.values():
            way.first(0)

    def trips(self, lane: str, kilobytes: int, count: int) -> tuple[list[float], float]:
        """Return seconds of each round trip, and the CPU seconds of this process for all."""
        rows = kilobytes * 1024 // 260  # an id of 4 bytes and 64 floats
        values = np.ones((rows, 64), np.float32)
        upload, how = (
            Upload(0, 0, Embeddings(np.arange(rows, dtype=np.int32), values)),
            Activation(0, 0, False, 0),
        )
        found, cpu = [], time.process_time()
        for _ in range(count):
            began = time.perf_counter()
            answer = self._ways[lane].exchange(upload, how, 0.0).order
            assert answer is not None
            assert answer.body.wire_bytes == 4
            found.append(time.perf_counter() - began)
        return found, time.process_time() - cpu


def round_trips(repeats: int, count: int) -> list[dict[str, Any]]:
    """Return figures by size and way."""
    import ray

    from actors.actor_process import remote_class

    server = remote_class(Answering, {}, {}).options(num_cpus=0).remote()
    ray.get(server.make.remote(Answering))
    address = ray.get(server.open_transport.remote("", secrets.token_bytes(32), 1))
    client = remote_class(Asking, {}, {}).options(num_cpus=0).remote()
    ray.get(client.make.remote(Asking, server, address))
    seconds: dict[tuple[int, str], list[float]] = {}
    cpu: dict[tuple[int, str], list[float]] = {}
    for turn in range(repeats + 1):
        for kilobytes in KILOBYTES:
            for lane in LANES:
                before = ray.get(server.cpu.remote())
                trips, here = ray.get(client.trips.remote(lane, kilobytes, count if turn else 20))
                there = ray.get(server.cpu.remote()) - before
                if turn:  # the first turn warms up
                    seconds.setdefault((kilobytes, lane), []).extend(trips)
                    cpu.setdefault((kilobytes, lane), []).append((here + there) / count)
    return [
        {
            "kilobytes": kilobytes,
            "lane": lane,
            "p50_ms": 1000 * float(np.percentile(trips, 50)),
            "p99_ms": 1000 * float(np.percentile(trips, 99)),
            "cpu_ms": 1000 * median(cpu[kilobytes, lane]),
        }
        for (kilobytes, lane), trips in seconds.items()
    ]


def _print_runs(case: str, paces: dict[str, list[Pace]]) -> dict[str, Any]:
    rows, found = [], {}
    for lane, runs in paces.items():
        turns = list(zip(runs, paces["ray"], strict=True))
        found[lane] = {
            "updates_per_second": median([pace.rate for pace in runs]),
            "over_calls": median([pace.rate / call.rate for pace, call in turns]),
            "cpu_ms_per_update": {
                g: 1000 * median([p.cpu.get(g, 0.0) for p in runs]) for g in GROUPS
            },
            "cpu_over_calls": median([pace.total / call.total for pace, call in turns]),
        }
        rows.append(
            [
                lane,
                f"{found[lane]['updates_per_second']:.0f}",
                f"{found[lane]['over_calls']:.2f}",
                verdict(found[lane]["over_calls"], RATIO.get(case) if lane == "socket" else None),
                *(f"{found[lane]['cpu_ms_per_update'][g]:.2f}" for g in GROUPS),
                f"{found[lane]['cpu_over_calls']:.2f}",
            ]
        )
    columns = [
        "lane",
        "updates/s",
        "/ calls",
        "target",
        *(f"{g} ms" for g in GROUPS),
        "CPU / calls",
    ]
    show(f"{case}; CPU milliseconds per update by process", columns, rows)
    return found


def _print_trips(found: list[dict[str, Any]]) -> None:
    rows = [
        [
            f"{f['kilobytes']} KB, {f['lane']}",
            f"{f['p50_ms']:.2f}",
            f"{f['p99_ms']:.2f}",
            f"{f['cpu_ms']:.2f}",
            verdict(f["p50_ms"], P50 if f["lane"] == "socket" else None, at_most=True),
            verdict(f["p99_ms"], P99 if f["lane"] == "socket" else None, at_most=True),
        ]
        for f in found
    ]
    show("Round trips", ["message, lane", "p50 ms", "p99 ms", "CPU ms", "p50", "p99"], rows)


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    repeats, shorter, count, cases = (
        chosen.repeats or (1 if chosen.quick else 5),
        1,
        300,
        list(CASES),
    )
    if chosen.quick:
        shorter, count, cases = 3, 20, cases[:3]
    before = environment()
    # Ray's workers are nice to others by default, which on a shared machine decides
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    from actors.cluster import connected

    ray.cloudpickle.register_pickle_by_value(
        sys.modules[__name__]
    )  # actors cannot import from this folder
    with connected(reuse=True):
        paces: dict[str, dict[str, list[Pace]]] = {
            case: {lane: [] for lane in LANES} for case in cases
        }
        for _ in range(repeats):
            for case, by_lane in paces.items():
                for lane, found in by_lane.items():
                    found.append(run_over(lane, case, shorter))
                    print(
                        f"{case}, {lane}: {found[-1].rate:.0f} updates/s",
                        file=sys.stderr,
                        flush=True,
                    )
        runs = {case: _print_runs(case, by_lane) for case, by_lane in paces.items()}
        trips = round_trips(repeats, count)
        _print_trips(trips)
    write("lane", {"runs": runs, "round_trips": trips, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
