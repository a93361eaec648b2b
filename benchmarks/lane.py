"""Sockets between actors against Ray's calls: round trips of messages of several sizes.

One actor hands in uploads of 1 to 400 KB to another, which answers 4 bytes: milliseconds from call to
answer (p50, p99), and CPU milliseconds of both. The frames are the same on both ways.

Ways take turns within one run of this script, and a figure is held against the calls' in the same
turn: a ratio of two seconds that lie beside one another means something on a shared machine,
neither of them alone does.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from common import environment, median, options, show, verdict, write

from actors.transport import frames
from actors.transport.clients import ClientConnection, ClientConversation
from actors.transport.port import TransportPort
from actors.transport.sockets import TransportAddress
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer
from raydpzv.wire.messages import Embeddings, Slopes, Start

LANES = ("ray", "socket")
KILOBYTES = (1, 10, 100, 400)
TIMEOUT = 60.0
P50, P99 = 2.0, 8.0
"""Milliseconds at most, on a machine with little else to do."""


class Answering(TransportPort):
    """An actor that answers every upload with 4 bytes, by calls and on sockets."""

    def __init__(self) -> None:
        talk = partial(ClientConversation, lambda warm_up: self)
        super().__init__(talk, TIMEOUT)
        self._called = talk(frames.TransportRequest(frames.HELLO))

    def ask(self, frame: Sequence[bytes]) -> Sequence[bytes]:
        """Answer a frame of the peer that calls."""
        return self._called.answer(memoryview(b"".join(frame)))

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


class Calling:
    """A connection whose frames are arguments and results of Ray calls."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def ask(self, frame: Sequence[bytes], awaited: str) -> memoryview:
        """Send a frame and return the answer's."""
        import ray

        return memoryview(b"".join(ray.get(self._server.ask.remote(tuple(frame)))))


class Asking:
    """An actor that hands in uploads and measures how long the answers take."""

    def __init__(self, server: Any, address: TransportAddress) -> None:
        self._ways = {lane: ClientConnection(address, TIMEOUT) for lane in LANES}
        for way in self._ways.values():
            way.first(0)
        self._ways["ray"].close()
        self._ways["ray"]._connections[0] = Calling(server)  # type: ignore[assignment]

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
    address = ray.get(server.open_transport.remote("", secrets.token_bytes(32), 2))
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
    repeats = chosen.repeats or (1 if chosen.quick else 5)
    before = environment()
    # Ray's workers are nice to others by default, which on a shared machine decides
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    from actors.cluster import connected

    ray.cloudpickle.register_pickle_by_value(
        sys.modules[__name__]
    )  # actors cannot import from this folder
    with connected(reuse=True):
        trips = round_trips(repeats, 20 if chosen.quick else 300)
        _print_trips(trips)
    write("lane", {"round_trips": trips, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
