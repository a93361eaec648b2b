import math
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.privacy.release import UNACCOUNTED, PrivacyLoss
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows, digest
from raydpzv.secure.attempts import Attempt
from raydpzv.sim import pull
from raydpzv.sim.arrivals import Constant, Poisson, Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import GroupExecutor
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.pull import HostShare, PullLoop, PullRun, PullServerLoop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import NOBODY_WAKES, LoopHooks, Scoring, Timing
from raydpzv.wire.network import Network
from tests.helpers import seed_parties as toy
from tests.helpers.pull_runs import HOW, NOTHING, RATES, Scribe, column, run, timing

# --- the order of events
# ---------------------------------------------------------------------------------------


def rederived(
    when: Timing, epochs: Iterator[tuple[float, int]], count: int
) -> list[dict[str, Any]]:
    """The same run as a table of trips, without a heap: always the request or upload that arrives
    first is served.

    A request is 8 bytes, a version; it and its answer pay their link both ways.
    """
    upcoming, waiting, trips = next(epochs), defaultdict(list), dict[int, dict[str, Any]]()
    made, free, versions, works = [], 0.0, defaultdict(int), defaultdict(int)
    requests: dict[int, dict[str, Any]] = {}

    def ask(client: int, due: float, now: float) -> None:
        requests[client] = {
            "due": due,
            "woke": now,
            "arrived": now + when.network.uplink(client, 8),
        }

    def begin(client: int, due: float, woke: float, now: float) -> None:
        sent_down = max(now, free)
        body = (8 + 4 * HOW.width(1)) * (len(made) - versions[client])
        read, versions[client] = len(made), len(made)
        arrived = sent_down + when.network.downlink(client, body)
        sent = arrived + when.compute.of(client, works[client])
        works[client] += 1
        trips[client] = {
            "due": due,
            "woke": woke,
            "asked": now,
            "late": due < woke,
            "read": read,
            "sent": sent,
            "arrived": sent + when.network.uplink(client, (8 + 4 * HOW.width(1))),
        }

    while len(made) < count:
        first = min(trips, key=lambda c: trips[c]["arrived"], default=None)
        asking = min(requests, key=lambda c: requests[c]["arrived"], default=None)
        soonest = min(
            [t[c]["arrived"] for t, c in ((trips, first), (requests, asking)) if c is not None],
            default=1e9,
        )
        if asking is not None and requests[asking]["arrived"] == soonest:
            request = requests.pop(asking)
            begin(asking, request["due"], request["woke"], request["arrived"])
            continue
        if first is None or upcoming[0] <= soonest:
            time, client = upcoming
            upcoming = next(epochs)
            if client in trips or client in requests:
                waiting[client].append(time)
            else:
                ask(client, time, time)
            continue
        trip = trips.pop(first)
        free = max(trip["arrived"], free) + when.service.of(0, len(made))
        made.append(trip | {"client": first, "served": free, "lag": len(made) - trip["read"]})
        if waiting[first]:
            ask(first, waiting[first].pop(0), free)
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
    rows, ledger, server_loop = run(when, Budget(updates=count))
    expected = rederived(when, when.arrivals.merged(), count)
    assert server_loop.stop_reason == "300 updates done"
    for name in ("client", "due", "woke", "late", "served"):
        assert column(rows, "service", name) == [trip[name] for trip in expected]
    for name in ("client", "read", "lag"):
        assert column(rows, "sync", name) == [trip[name] for trip in expected]
    assert column(rows, "sync", "round") == list(range(1, count + 1))
    entries = ledger.since(0)
    assert entries.party[::2].tolist() == [trip["client"] for trip in expected]
    assert entries.read[::2].tolist() == [trip["read"] for trip in expected]
    messages = rows["message"].to_pylist()
    uplinks = [r for r in messages if r["kind"] == "SeededScalars"]
    assert [(r["sent"], r["arrived"]) for r in uplinks] == [
        (t["sent"], t["arrived"]) for t in expected
    ]
    requests = {(r["client"], r["sent"]): r for r in messages if r["kind"] == "PullRequest"}
    assert {r["bytes"] for r in requests.values()} == {8}
    assert [requests[t["client"], t["woke"]]["arrived"] for t in expected] == [
        t["asked"] for t in expected
    ]


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
    rows, ledger, _ = run(timing(), Budget(updates=80))
    assert set(column(rows, "sync", "lag")) == {0}
    assert not any(column(rows, "service", "late"))
    alone = toy.ledger(HOW)
    server, client_group = toy.pull_server(alone, HOW), Scribe()
    for _, client in islice(Poisson(RATES, Key(1)).merged(), 80):
        server.receive(client_group.process([server.wake(client)])[0])
    assert alone.digest == ledger.digest
    late, _, _ = run(timing(compute=0.3), Budget(updates=80))
    assert max(column(late, "sync", "lag")) > 2


def test_epochs_that_fall_into_a_round_trip_are_served_late_and_none_is_lost() -> None:
    when = timing(Trace({0: [1.0, 2.0, 3.0, 9.0], 1: [2.5]}), compute=2.25)
    rows, _, server_loop = run(when, Budget(updates=99))
    mine = [r for r in rows["service"].to_pylist() if r["client"] == 0]
    assert [r["due"] for r in mine] == [1.0, 2.0, 3.0, 9.0]
    assert [r["woke"] for r in mine] == [1.0, 3.25, 5.5, 9.0]
    assert [r["late"] for r in mine] == [False, True, True, False]
    assert [r["served"] for r in mine] == [3.25, 5.5, 7.75, 11.25]
    assert server_loop.status().late == 2
    assert server_loop.stop_reason == NOBODY_WAKES


@pytest.mark.parametrize("service", [0.0, 0.07])
def test_the_budgets_end_the_run(service: float) -> None:
    when = timing(compute=0.05, service=service)
    rows, ledger, server_loop = run(when, Budget(seconds=3.0))
    assert max(column(rows, "service", "served")) <= 3.0
    assert server_loop.status().time == 3.0
    longer, _, _ = run(when, Budget(seconds=6.0))
    assert column(longer, "service", "served")[: ledger.version] == column(
        rows, "service", "served"
    )
    assert column(longer, "service", "served")[ledger.version] > 3.0
    _, _, server_loop = run(when, Budget(bytes=4000))
    status = server_loop.status()
    assert 4000 <= status.bytes_up + status.bytes_down < 4000 + 24 * 200
    stop = threading.Event()
    stop.set()
    halted = ServerLoop(
        toy.pull_server(toy.ledger(HOW), HOW), PrivacyFilter(), Recorder(), Budget(updates=9)
    )
    PullRun(
        halted, GroupExecutor(Scribe()), when, Scoring(lambda: NOTHING, 9), LoopHooks(stop)
    ).run()
    assert halted.stop_reason == "stopped by the user"


def test_a_run_is_evaluated_before_at_every_so_many_updates_and_after() -> None:
    rows, _, _ = run(timing(compute=0.1), Budget(updates=25), every=10)
    assert column(rows, "evaluation", "round") == [0, 10, 20, 25]


# --- executors
# -----------------------------------------------------------------------------------------------------


class Dealer:
    """Hosts that hold every second client each, as in a run on several machines."""

    def __init__(self, pool: Sequence[Any]) -> None:
        self.executors = [GroupExecutor(client_group) for client_group in pool]

    def submit(self, order: Order) -> tuple[int, int]:
        at = order.client % len(self.executors)
        return at, self.executors[at].submit(order)

    def result(self, handle: tuple[int, int]) -> Upload:
        return self.executors[handle[0]].result(handle[1])


@pytest.mark.parametrize("compute", [0.0, 0.4])
def test_the_number_of_executors_moves_no_bits(compute: float) -> None:
    when, digests = timing(compute=compute, law="exponential"), []
    for executors in (1, 2, 3):
        ledger = toy.ledger(HOW)
        executor = Dealer([toy.shared(ledger, HOW) for _ in range(executors)])
        rows, _, _ = run(when, Budget(updates=70), executor=executor, ledger=ledger, every=20)
        digests.append((digest(rows), ledger.digest))
    assert digests[0] == digests[1] == digests[2]
    # the literal clients, from messages alone
    ledger = toy.ledger(HOW)
    executor = GroupExecutor(toy.separate(toy.Silence(), HOW))
    rows, _, _ = run(when, Budget(updates=70), executor=executor, ledger=ledger, every=20)
    assert (digest(rows), ledger.digest) == digests[0]
    # the control: at the newest model in place of the one that was read, the bits are others
    if compute:

        class Hasty:
            """Works when its upload is wanted, at whatever the model then is."""

            def __init__(self, ledger: Ledger) -> None:
                self._ledger_control, self._client_group = ledger, toy.shared(ledger, HOW)

            def process(self, orders: Sequence[Order]) -> list[Upload]:
                done = []
                for order in orders:
                    self._client_group._replica.go_to(
                        self._ledger_control.version, self._ledger_control
                    )
                    done += self._client_group._local.work([order], self._client_group._replica)
                return done

        ledger = toy.ledger(HOW)
        _, other, _ = run(
            when, Budget(updates=70), executor=GroupExecutor(Hasty(ledger)), ledger=ledger, every=20
        )
        assert other.digest != digests[0][1]


# Clients that pull when they wake, under the wall clock: as under the virtual one, but for real
# pauses.


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
    server_loop = ServerLoop(toy.pull_server(ledger, HOW), PrivacyFilter(), recorder, budget)
    PullLoop(client_group or Scribe(), PullServerLoop(server_loop, clock), when, clock).run()
    return recorder.drain(), ledger, server_loop


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FastClock:
    fast = FastClock()
    monkeypatch.setattr(pull, "pause", fast.pause)
    return fast


@pytest.mark.parametrize("compute", [0.0, 0.1, 0.8])
def test_with_exact_pauses_the_wall_clock_is_the_virtual_one(
    clock: FastClock, compute: float
) -> None:
    when = timing(compute=compute, network=Network([0.01] * 6, [3000.0] * 6, [4000.0] * 6))
    wall, ledger, server_loop = live(when, Budget(updates=120), clock)
    rows, other, _ = run(when, Budget(updates=120))
    assert ledger.digest == other.digest
    assert server_loop.stop_reason == "120 updates done"
    for name in ("read", "lag", "missed", "client"):
        assert column(wall, "sync", name) == column(rows, "sync", name)
    for name in ("due", "woke", "served"):
        assert column(wall, "service", name) == pytest.approx(
            column(rows, "service", name), abs=1e-9
        )
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
    server_loop = ServerLoop(
        toy.pull_server(ledger, HOW), PrivacyFilter(), Recorder(), Budget(updates=50)
    )
    port = PullServerLoop(server_loop, clock)
    loop = PullLoop(Scribe(), port, timing(compute=0.1), clock)
    port.stop("enough")
    loop.run()
    assert ledger.version == 0
    assert port.wake(1) is None
    stopped = PullLoop(
        Scribe(),
        PullServerLoop(
            ServerLoop(toy.pull_server(ledger, HOW), PrivacyFilter(), Recorder(), Budget()), clock
        ),
        timing(),
        clock,
    )
    stopped.stop()
    stopped.run()
    assert ledger.version == 0


def test_executors_side_by_side_lose_nothing() -> None:
    """Two threads with real pauses: every update is whole, in the ledger's order, and replays to
    one model.
    """
    ledger, recorder = toy.ledger(HOW), Recorder()
    server_loop = ServerLoop(
        toy.pull_server(ledger, HOW), PrivacyFilter(), recorder, Budget(updates=300)
    )
    clock = WallClock.starting_in(0.05)
    port, when = (
        PullServerLoop(server_loop, clock),
        timing(Poisson([200.0] * 6, Key(1)), compute=0.001),
    )
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


class Counting(PrivacyFilter):
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
        return [
            u._replace(releases=(Release(0, math.nan, receipt),)) for u in super().process(orders)
        ]


def test_what_was_sent_when_the_run_was_over_is_charged_under_both_clocks(clock: FastClock) -> None:
    """Links so slow that uploads are on their way at the end: anyone who sees them has what they
    release.
    """
    when, budget = (
        timing(network=Network([0.9] * 6, [3000.0] * 6, [4000.0] * 6)),
        Budget(updates=20),
    )
    wall, virtual = Counting(), Counting()
    server = PullServerLoop(
        ServerLoop(toy.pull_server(toy.ledger(HOW), HOW), wall, Recorder(), budget), clock
    )
    PullLoop(Releasing(), server, when, clock).run()
    server_loop = ServerLoop(toy.pull_server(toy.ledger(HOW), HOW), virtual, Recorder(), budget)
    PullRun(server_loop, GroupExecutor(Releasing()), when, Scoring(lambda: NOTHING, 10**9)).run()
    assert wall.charged == virtual.charged
    assert len(wall.charged) > 20
