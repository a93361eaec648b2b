"""Clients that pull when they wake, under the wall clock: as under the virtual one, but for real pauses."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.privacy.release import UNACCOUNTED, PrivacyLoss
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.secure.attempts import Attempt
from raydpzv.sim import pull
from raydpzv.sim.arrivals import Poisson, Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import GroupExecutor
from raydpzv.sim.interfaces import Budget, NoPrivacyFilter
from raydpzv.sim.pull import HostShare, PullLoop, PullRun, PullServerLoop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import Scoring, Timing
from raydpzv.wire.network import Network
from tests.helpers import seed_parties as toy
from tests.helpers.pull_runs import HOW, NOTHING, Scribe, column, run, timing


class FastClock:
    """A clock that a pause moves on, so that a test of an hour takes a moment."""

    def __init__(self) -> None:
        self.time = -0.5

    def now(self) -> float:
        return self.time

    def pause(self, stopping: threading.Event, seconds: float) -> None:
        self.time += max(0.0, seconds)


def live(
    when: Timing, budget: Budget, clock: FastClock, client_group: Any = None
) -> tuple[Rows, Ledger, ServerLoop]:
    ledger, recorder = toy.ledger(HOW), Recorder()
    server_loop = ServerLoop(toy.pull_server(ledger, HOW), NoPrivacyFilter(), recorder, budget)
    PullLoop(client_group or Scribe(), PullServerLoop(server_loop, clock), when, clock).run()
    return recorder.drain(), ledger, server_loop


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FastClock:
    fast = FastClock()
    monkeypatch.setattr(pull, "pause", fast.pause)
    return fast


@pytest.mark.parametrize("compute", [0.0, 0.1, 0.8])
def test_with_exact_pauses_the_wall_clock_is_the_virtual_one(clock: FastClock, compute: float) -> None:
    when = timing(compute=compute, network=Network([0.01] * 6, [3000.0] * 6, [4000.0] * 6))
    wall, ledger, server_loop = live(when, Budget(updates=120), clock)
    rows, other, _ = run(when, Budget(updates=120))
    assert ledger.digest == other.digest
    assert server_loop.stop_reason == "120 updates done"
    for name in ("read", "lag", "missed", "client"):
        assert column(wall, "sync", name) == column(rows, "sync", name)
    for name in ("due", "woke", "served"):
        assert column(wall, "service", name) == pytest.approx(column(rows, "service", name), abs=1e-9)
    assert column(wall, "service", "late") == column(rows, "service", "late")
    assert any(column(wall, "service", "late"))


def test_an_executor_that_computes_is_late_for_other_epochs(clock: FastClock) -> None:
    class Slow(Scribe):
        def process(self, orders: Sequence[Order]) -> list[Upload]:
            clock.time += 0.5
            return super().process(orders)

    rows, _, server_loop = live(
        timing(Trace({0: [1.0], 1: [1.2], 2: [3.0]})), Budget(updates=9), clock, Slow()
    )
    assert column(rows, "service", "woke") == pytest.approx([1.0, 1.5, 3.0])
    assert column(rows, "service", "late") == [False, True, False]
    assert server_loop.updates == 3
    uplinks = [r["sent"] for r in rows["message"].to_pylist() if r["kind"] == "SeededScalars"]
    assert uplinks == pytest.approx([1.5, 2.0, 3.5])


def test_an_executor_leaves_when_the_run_is_over(clock: FastClock) -> None:
    ledger = toy.ledger(HOW)
    server_loop = ServerLoop(toy.pull_server(ledger, HOW), NoPrivacyFilter(), Recorder(), Budget(updates=50))
    port = PullServerLoop(server_loop, clock)
    loop = PullLoop(Scribe(), port, timing(compute=0.1), clock)
    port.stop("enough")
    loop.run()
    assert ledger.version == 0
    assert port.wake(1) is None
    stopped = PullLoop(
        Scribe(),
        PullServerLoop(
            ServerLoop(toy.pull_server(ledger, HOW), NoPrivacyFilter(), Recorder(), Budget()), clock
        ),
        timing(),
        clock,
    )
    stopped.stop()
    stopped.run()
    assert ledger.version == 0


def test_executors_side_by_side_lose_nothing() -> None:
    """Two threads with real pauses: every update is whole, in the ledger's order, and replays to one model."""
    ledger, recorder = toy.ledger(HOW), Recorder()
    server_loop = ServerLoop(toy.pull_server(ledger, HOW), NoPrivacyFilter(), recorder, Budget(updates=300))
    clock = WallClock.starting_in(0.05)
    port, when = PullServerLoop(server_loop, clock), timing(Poisson([200.0] * 6, Key(1)), compute=0.001)
    pool = [toy.shared(ledger, HOW) for _ in range(2)]
    loops = [
        PullLoop(client_group, port, when, clock, HostShare(part, 2))
        for part, client_group in enumerate(pool)
    ]
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    port.evaluate(lambda version: NOTHING)
    for thread in threads:
        thread.join(30)
    rows = recorder.drain()
    assert ledger.version == 300
    assert set(column(rows, "service", "client")) == set(range(6))
    lags = column(rows, "sync", "lag")
    assert lags == [r - 1 - read for r, read in enumerate(column(rows, "sync", "read"), 1)]
    assert max(lags) > 0
    slow = toy.SlowModel(HOW)
    for seeds, scalars, _ in ledger.since(0).steps():
        slow.update(seeds[:1], scalars[None])
    assert {toy.bits(client_group.state(300)[0]) for client_group in pool} == {toy.bits(slow.x)}


class Counting(NoPrivacyFilter):
    """Counts whose releases are charged."""

    of_uploads = True

    def __init__(self) -> None:
        self.charged: list[int] = []

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        self.charged.append(client)
        return UNACCOUNTED


class Releasing(Scribe):
    """Clients that release by uploading."""

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        receipt = Receipt("discrete gaussian", "seeded", 1.0, 2.0, 1.0, 1, 1, 0)
        return [u._replace(releases=(Release(0, math.nan, receipt),)) for u in super().process(orders)]


def test_what_was_sent_when_the_run_was_over_is_charged_under_both_clocks(clock: FastClock) -> None:
    """Links so slow that uploads are on their way at the end: anyone who sees them has what they release."""
    when, budget = timing(network=Network([0.9] * 6, [3000.0] * 6, [4000.0] * 6)), Budget(updates=20)
    wall, virtual = Counting(), Counting()
    server = PullServerLoop(
        ServerLoop(toy.pull_server(toy.ledger(HOW), HOW), wall, Recorder(), budget), clock
    )
    PullLoop(Releasing(), server, when, clock).run()
    server_loop = ServerLoop(toy.pull_server(toy.ledger(HOW), HOW), virtual, Recorder(), budget)
    PullRun(server_loop, GroupExecutor(Releasing()), when, Scoring(lambda: NOTHING, 10**9)).run()
    assert wall.charged == virtual.charged
    assert len(wall.charged) > 20
