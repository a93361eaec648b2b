"""Roles that do nothing, so that a test of the runtime sees the runtime alone."""

import threading
import time
from collections.abc import Sequence

import numpy as np

from raydpzv.keys import Key
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.sim.arrivals import Arrivals, Constant, Poisson
from raydpzv.sim.clock import WallClock
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.executor import LocalExecutor, split_score
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import LoopHooks, Scoring, Timing, VirtualRun
from raydpzv.sim.wall import ClientLoop, LockedServerLoop, WallPace
from raydpzv.wire.messages import Embeddings, Evaluate, Start, TestEmbeddings
from raydpzv.wire.messages import Rows as RowIds
from raydpzv.wire.network import Network, instant

UPLOAD_BYTES = 4 * 1 + 4 * 2
ORDER_BYTES = 4


class ToyClient:
    """Uploads 12 bytes; counts what it applied."""

    def __init__(self, client: int) -> None:
        self.client, self.step, self.applied = client, 0, []

    def process(self, order: Order) -> Upload:
        if isinstance(order.body, Evaluate):
            return self.evaluate()
        self.apply(order)
        return self.work()

    def apply(self, order: Order) -> None:
        if not isinstance(order.body, Start):
            self.applied.append(order.round)

    def work(self) -> Upload:
        self.step += 1
        body = Embeddings(np.array([self.client], np.int32), np.zeros((1, 2), np.float32))
        return Upload(self.client, self.step - 1, body)

    def evaluate(self) -> Upload:
        return Upload(self.client, self.step, TestEmbeddings(np.zeros((1, 1), np.float32)))


class ToyServer:
    """Answers every upload with 4 bytes, at once or when `barrier` uploads have come."""

    answers = True

    @property
    def updates(self) -> int:
        return self.round

    def __init__(
        self, clients: int, barrier: int = 1, start_immediately: bool = False, fixed: bool = True
    ) -> None:
        self.clients, self.barrier, self.start_immediately, self.round = (
            clients,
            barrier,
            start_immediately,
            0,
        )
        self.upload_bytes = UPLOAD_BYTES if fixed else None
        self.served: list[tuple[int, int]] = []
        self.waiting: list[int] = []

    def first_orders(self) -> Sequence[Order]:
        return [self._order(m, Start()) for m in range(self.clients)]

    def receive(self, upload: Upload) -> Sequence[Order]:
        self.round += 1
        self.served.append((upload.client, upload.step))
        self.waiting.append(upload.client)
        if len(self.waiting) < self.barrier:
            return ()
        ready, self.waiting = sorted(self.waiting), []
        return [self._order(m, RowIds(np.zeros(1, np.int32))) for m in ready]

    def evaluate(self, embeddings: Sequence[np.ndarray]) -> Metrics:
        assert len(embeddings) == self.clients
        return Metrics(0.5, 1.0, 0.5)

    def _order(self, client: int, body) -> Order:
        return Order(
            client,
            body,
            self.round,
            start_immediately=self.start_immediately,
            upload_bytes=self.upload_bytes,
        )


def timing(
    rates: Sequence[float],
    *,
    arrivals: Arrivals | None = None,
    compute: float = 0.0,
    service: float = 0.0,
    network: Network | None = None,
    seed: int = 1,
) -> Timing:
    key = Key(seed)
    return Timing(
        arrivals or Poisson(rates, key),
        DelayModel([compute] * len(rates), "constant", key),
        DelayModel([service], "constant", key),
        network or instant(len(rates)),
    )


def constant(rates: Sequence[float]) -> Constant:
    return Constant(rates)


def run_toy(
    when: Timing,
    budget: Budget,
    *,
    clients: int,
    server: ToyServer | None = None,
    every: int = 10**9,
    **options,
) -> tuple[Rows, ServerLoop, list[ToyClient], ToyServer]:
    server = server or ToyServer(clients)
    roles = [ToyClient(m) for m in range(clients)]
    recorder = Recorder()
    server_loop = ServerLoop(server, PrivacyFilter(), recorder, budget)
    executor = LocalExecutor(roles)
    score = split_score(server, executor, clients)
    VirtualRun(server_loop, executor, when, Scoring(score, every), LoopHooks(**options)).run()
    return recorder.drain(), server_loop, roles, server


def live_toy(when, server, budget, timeout=30.0, seconds=20.0):
    """Run toy clients in threads until the server loop says stop."""
    clients = server.clients
    recorder = Recorder()
    server_loop = ServerLoop(server, PrivacyFilter(), recorder, budget)
    clock = WallClock.starting_in(0.05)
    wall = LockedServerLoop(server_loop, clock, when.service_seconds, clients)
    roles = [ToyClient(m) for m in range(clients)]
    loops = [
        ClientLoop(m, role, wall, WallPace(when, clock, timeout)) for m, role in enumerate(roles)
    ]
    threads = [threading.Thread(target=loop.run, daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + seconds
    while any(t.is_alive() for t in threads) and time.monotonic() < limit:
        if wall.status().stop_reason:
            for loop in loops:
                loop.stop()
        time.sleep(0.005)
    assert not any(t.is_alive() for t in threads)
    wall.close()
    return recorder.drain(), server_loop, roles
