"""Clients that pull when they wake: the order of events, staleness, lateness, hosts, both clocks."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import seed_parties as toy

from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.decomfl import client_seeds
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows, digest
from raydpzv.sim import pull
from raydpzv.sim.arrivals import Arrivals, Constant, Delays, Poisson, Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.desk import Desk
from raydpzv.sim.host import CrewHost
from raydpzv.sim.pull import PullDesk, PullLoop, PullRun, Queue
from raydpzv.sim.terms import Budget, FreeGuard
from raydpzv.sim.virtual import NOBODY_WAKES, Timing
from raydpzv.wire.network import Network, instant
from raydpzv.wire.seeds import SeededScalars

HOW = toy.settings()
RATES = [3.0, 1.0, 0.3, 5.0, 2.0, 1.0]
NOTHING = Metrics(0.5, 1.0, 0.5)


class Scribe:
    """A crew that answers without computing."""

    def perform(self, orders: Sequence[Order]) -> list[Upload]:
        return [self._answer(order) for order in orders]

    def _answer(self, order: Order) -> Upload:
        seeds = client_seeds(HOW, order.client, order.round - 1)
        return Upload(order.client, 0, SeededScalars(seeds, np.full(len(seeds), 0.1, np.float32)))


class Dealer:
    """Hosts that hold every second client each, as in a run on several machines."""

    def __init__(self, crews: Sequence[Any]) -> None:
        self.hosts = [CrewHost(crew) for crew in crews]

    def perform(self, order: Order) -> tuple[int, int]:
        at = order.client % len(self.hosts)
        return at, self.hosts[at].perform(order)

    def take(self, handle: tuple[int, int]) -> Upload:
        return self.hosts[handle[0]].take(handle[1])


def timing(
    arrivals: Arrivals | None = None,
    *,
    compute: float = 0.0,
    law: Any = "constant",
    service: float = 0.0,
    network: Network | None = None,
) -> Timing:
    clients = len(RATES)
    return Timing(
        arrivals or Poisson(RATES, Key(1)),
        Delays([compute * (1 + m) for m in range(clients)], law, Key(2) / "compute"),
        Delays([service], law, Key(2) / "service"),
        network or instant(clients),
    )


def run(
    when: Timing, budget: Budget, *, host: Any = None, book: Ledger | None = None, every: int = 10**9
) -> tuple[Rows, Ledger, Desk]:
    book = book or toy.ledger(HOW)
    recorder = Recorder()
    desk = Desk(toy.pull_server(book, HOW), FreeGuard(), recorder, budget)
    PullRun(desk, host or CrewHost(Scribe()), when, score=lambda: NOTHING, evaluate_every=every).run()
    return recorder.drain(), book, desk


def column(rows: Rows, kind: str, name: str) -> list[Any]:
    return rows[kind].column(name).to_pylist()


# --- the order of events ---------------------------------------------------------------------------------------


def rederived(when: Timing, epochs: Iterator[tuple[float, int]], count: int) -> list[dict[str, Any]]:
    """The same run as a table of trips, without a heap: always the trip whose upload arrives first is served."""
    upcoming, waiting, trips = next(epochs), defaultdict(list), dict[int, dict[str, Any]]()
    made, free, versions, works = [], 0.0, defaultdict(int), defaultdict(int)

    def begin(client: int, due: float, now: float) -> None:
        sent_down = max(now, free)
        body = 12 * HOW.width(1) * (len(made) - versions[client])
        read, versions[client] = len(made), len(made)
        arrived = sent_down + when.network.downlink(client, body)
        sent = arrived + when.compute.of(client, works[client])
        works[client] += 1
        trips[client] = {
            "due": due,
            "woke": now,
            "late": due < now,
            "read": read,
            "sent": sent,
            "arrived": sent + when.network.uplink(client, 12 * HOW.width(1)),
        }

    while len(made) < count:
        first = min(trips, key=lambda c: trips[c]["arrived"], default=None)
        if first is None or upcoming[0] <= trips[first]["arrived"]:
            time, client = upcoming
            upcoming = next(epochs)
            if client in trips:
                waiting[client].append(time)
            else:
                begin(client, time, time)
            continue
        trip = trips.pop(first)
        free = max(trip["arrived"], free) + when.service.of(0, len(made))
        made.append(trip | {"client": first, "served": free, "lag": len(made) - trip["read"]})
        if waiting[first]:
            begin(first, waiting[first].pop(0), free)
    return made


@pytest.mark.parametrize(
    "when",
    [
        timing(),
        timing(compute=0.1, law="exponential"),
        timing(compute=0.3, law="exponential", service=0.05),
        timing(
            compute=0.05,
            service=0.12,
            network=Network(
                [0.01 * (1 + m) for m in range(6)],
                [500.0 + m for m in range(6)],
                [900.0 + m for m in range(6)],
            ),
        ),
        timing(Constant([1.01, 0.97, 0.5, 2.03, 1.4, 0.71]), compute=0.4),
    ],
    ids=["at once", "compute", "service", "network", "constant"],
)
def test_events_are_those_of_a_slow_rederivation(when: Timing) -> None:
    count = 300
    rows, book, desk = run(when, Budget(updates=count))
    expected = rederived(when, when.arrivals.merged(), count)
    assert desk.stop_reason == "300 updates done"
    for name in ("client", "due", "woke", "late", "served"):
        assert column(rows, "service", name) == [trip[name] for trip in expected]
    for name in ("client", "read", "lag"):
        assert column(rows, "sync", name) == [trip[name] for trip in expected]
    assert column(rows, "sync", "round") == list(range(1, count + 1))
    entries = book.since(0)
    assert entries.party[::2].tolist() == [trip["client"] for trip in expected]
    assert entries.read[::2].tolist() == [trip["read"] for trip in expected]
    uplinks = [r for r in rows["message"].to_pylist() if r["direction"] == "up"]
    assert [(r["sent"], r["arrived"]) for r in uplinks] == [(t["sent"], t["arrived"]) for t in expected]


def test_no_answer_leaves_before_the_updates_that_it_holds_are_done() -> None:
    when = timing(compute=0.02, law="exponential", service=0.2)
    rows, _, _ = run(when, Budget(updates=200))
    served = column(rows, "service", "served")
    down = [r for r in rows["message"].to_pylist() if r["direction"] == "down"]
    assert len(down) >= 200
    busy = 0
    for row in down:
        read = row["round"] - 1
        assert read == 0 or served[read - 1] <= row["sent"]
        busy += read > 0 and served[read - 1] == row["sent"]
    assert busy > 50


def test_without_delays_it_is_sequential() -> None:
    rows, book, _ = run(timing(), Budget(updates=80))
    assert set(column(rows, "sync", "lag")) == {0}
    assert not any(column(rows, "service", "late"))
    alone = toy.ledger(HOW)
    server, crew = toy.pull_server(alone, HOW), Scribe()
    for _, client in islice(Poisson(RATES, Key(1)).merged(), 80):
        server.receive(crew.perform([server.wake(client)])[0])
    assert alone.digest == book.digest
    late, _, _ = run(timing(compute=0.3), Budget(updates=80))
    assert max(column(late, "sync", "lag")) > 2


def test_epochs_that_fall_into_a_round_trip_are_served_late_and_none_is_lost() -> None:
    when = timing(Trace({0: [1.0, 2.0, 3.0, 9.0], 1: [2.5]}), compute=2.25)
    rows, _, desk = run(when, Budget(updates=99))
    mine = [r for r in rows["service"].to_pylist() if r["client"] == 0]
    assert [r["due"] for r in mine] == [1.0, 2.0, 3.0, 9.0]
    assert [r["woke"] for r in mine] == [1.0, 3.25, 5.5, 9.0]
    assert [r["late"] for r in mine] == [False, True, True, False]
    assert [r["served"] for r in mine] == [3.25, 5.5, 7.75, 11.25]
    assert desk.status().late == 2
    assert desk.stop_reason == NOBODY_WAKES


def test_a_queue_keeps_what_it_got() -> None:
    queue = Queue()
    assert queue.enters(3, 1.0)
    assert [queue.enters(3, due) for due in (2.0, 3.0)] == [False, False]
    assert queue.enters(4, 2.5)
    assert [queue.leaves(3) for _ in range(3)] == [2.0, 3.0, None]
    assert queue.enters(3, 4.0)
    assert queue.leaves(4) is None


@pytest.mark.parametrize("service", [0.0, 0.07])
def test_the_budgets_end_the_run(service: float) -> None:
    when = timing(compute=0.05, service=service)
    rows, book, desk = run(when, Budget(seconds=3.0))
    assert max(column(rows, "service", "served")) <= 3.0
    assert desk.status().time == 3.0
    longer, _, _ = run(when, Budget(seconds=6.0))
    assert column(longer, "service", "served")[: book.version] == column(rows, "service", "served")
    assert column(longer, "service", "served")[book.version] > 3.0
    _, _, desk = run(when, Budget(bytes=4000))
    status = desk.status()
    assert 4000 <= status.bytes_up + status.bytes_down < 4000 + 24 * 200
    stop = threading.Event()
    stop.set()
    halted = Desk(toy.pull_server(toy.ledger(HOW), HOW), FreeGuard(), Recorder(), Budget(updates=9))
    PullRun(halted, CrewHost(Scribe()), when, score=lambda: NOTHING, evaluate_every=9, stop=stop).run()
    assert halted.stop_reason == "stopped by the user"


def test_a_run_is_evaluated_before_at_every_so_many_updates_and_after() -> None:
    rows, _, _ = run(timing(compute=0.1), Budget(updates=25), every=10)
    assert column(rows, "evaluation", "round") == [0, 10, 20, 25]


# --- hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", [0.0, 0.4])
def test_the_number_of_hosts_moves_no_bits(compute: float) -> None:
    when, digests = timing(compute=compute, law="exponential"), []
    for hosts in (1, 2, 3):
        book = toy.ledger(HOW)
        host = Dealer([toy.shared(book, HOW) for _ in range(hosts)])
        rows, _, _ = run(when, Budget(updates=70), host=host, book=book, every=20)
        digests.append((digest(rows), book.digest))
    assert digests[0] == digests[1] == digests[2]
    # the literal clients, from messages alone
    book = toy.ledger(HOW)
    host = CrewHost(toy.separate(toy.Silence(), HOW))
    rows, _, _ = run(when, Budget(updates=70), host=host, book=book, every=20)
    assert (digest(rows), book.digest) == digests[0]
    # the control: at the newest model in place of the one that was read, the bits are others
    if compute:

        class Hasty:
            """Works when its upload is wanted, at whatever the model then is."""

            def __init__(self, book: Ledger) -> None:
                self._book, self._crew = book, toy.shared(book, HOW)

            def perform(self, orders: Sequence[Order]) -> list[Upload]:
                done = []
                for order in orders:
                    self._crew._replica.go_to(self._book.version, self._book)
                    done += self._crew._local.work([order], self._crew._replica)
                return done

        book = toy.ledger(HOW)
        _, other, _ = run(when, Budget(updates=70), host=CrewHost(Hasty(book)), book=book, every=20)
        assert other.digest != digests[0][1]


# --- the wall clock --------------------------------------------------------------------------------------------


class FastClock:
    """A clock that a pause moves on, so that a test of an hour takes a moment."""

    def __init__(self) -> None:
        self.time = -0.5

    def now(self) -> float:
        return self.time

    def pause(self, stopping: threading.Event, seconds: float) -> None:
        self.time += max(0.0, seconds)


def live(when: Timing, budget: Budget, clock: FastClock, crew: Any = None) -> tuple[Rows, Ledger, Desk]:
    book, recorder = toy.ledger(HOW), Recorder()
    desk = Desk(toy.pull_server(book, HOW), FreeGuard(), recorder, budget)
    PullLoop(crew or Scribe(), PullDesk(desk, clock), when, clock).run()
    return recorder.drain(), book, desk


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FastClock:
    fast = FastClock()
    monkeypatch.setattr(pull, "pause", fast.pause)
    return fast


@pytest.mark.parametrize("compute", [0.0, 0.1, 0.8])
def test_with_exact_pauses_the_wall_clock_is_the_virtual_one(clock: FastClock, compute: float) -> None:
    when = timing(compute=compute, network=Network([0.01] * 6, [3000.0] * 6, [4000.0] * 6))
    wall, book, desk = live(when, Budget(updates=120), clock)
    rows, other, _ = run(when, Budget(updates=120))
    assert book.digest == other.digest
    assert desk.stop_reason == "120 updates done"
    for name in ("read", "lag", "missed", "client"):
        assert column(wall, "sync", name) == column(rows, "sync", name)
    for name in ("due", "woke", "served"):
        assert column(wall, "service", name) == pytest.approx(column(rows, "service", name), abs=1e-9)
    assert column(wall, "service", "late") == column(rows, "service", "late")
    assert any(column(wall, "service", "late"))


def test_a_host_that_computes_is_late_for_other_epochs(clock: FastClock) -> None:
    class Slow(Scribe):
        def perform(self, orders: Sequence[Order]) -> list[Upload]:
            clock.time += 0.5
            return super().perform(orders)

    rows, _, desk = live(timing(Trace({0: [1.0], 1: [1.2], 2: [3.0]})), Budget(updates=9), clock, Slow())
    assert column(rows, "service", "woke") == pytest.approx([1.0, 1.5, 3.0])
    assert column(rows, "service", "late") == [False, True, False]
    assert desk.updates == 3
    uplinks = [r["sent"] for r in rows["message"].to_pylist() if r["direction"] == "up"]
    assert uplinks == pytest.approx([1.5, 2.0, 3.5])


def test_a_host_leaves_when_the_run_is_over(clock: FastClock) -> None:
    book = toy.ledger(HOW)
    desk = Desk(toy.pull_server(book, HOW), FreeGuard(), Recorder(), Budget(updates=50))
    port = PullDesk(desk, clock)
    loop = PullLoop(Scribe(), port, timing(compute=0.1), clock)
    port.stop("enough")
    loop.run()
    assert book.version == 0
    assert port.wake(1) is None
    stopped = PullLoop(
        Scribe(),
        PullDesk(Desk(toy.pull_server(book, HOW), FreeGuard(), Recorder(), Budget()), clock),
        timing(),
        clock,
    )
    stopped.stop()
    stopped.run()
    assert book.version == 0


def test_hosts_side_by_side_lose_nothing() -> None:
    """Two threads with real pauses: every update is whole, in the ledger's order, and replays to one model."""
    book, recorder = toy.ledger(HOW), Recorder()
    desk = Desk(toy.pull_server(book, HOW), FreeGuard(), recorder, Budget(updates=300))
    clock = WallClock.starting_in(0.05)
    port, when = PullDesk(desk, clock), timing(Poisson([200.0] * 6, Key(1)), compute=0.001)
    crews = [toy.shared(book, HOW) for _ in range(2)]
    loops = [PullLoop(crew, port, when, clock, part=part, parts=2) for part, crew in enumerate(crews)]
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    port.evaluate(lambda version: NOTHING)
    for thread in threads:
        thread.join(30)
    rows = recorder.drain()
    assert book.version == 300
    assert set(column(rows, "service", "client")) == set(range(6))
    lags = column(rows, "sync", "lag")
    assert lags == [r - 1 - read for r, read in enumerate(column(rows, "sync", "read"), 1)]
    assert max(lags) > 0
    slow = toy.SlowModel(HOW)
    for seeds, scalars, _ in book.since(0).steps():
        slow.update(seeds[None], scalars[None])
    assert {toy.bits(crew.state(300)[0]) for crew in crews} == {toy.bits(slow.x)}
