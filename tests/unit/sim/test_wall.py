import itertools
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from raydpzv.errors import Stalled
from raydpzv.methods.roles import Metrics, Order
from raydpzv.records import metrics
from raydpzv.records.recorder import Recorder
from raydpzv.sim.arrivals import Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.pull import PullServerLoop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import (
    Answer,
    ClientLoop,
    EvaluationSchedule,
    LockedServerLoop,
    Resumption,
    WallPace,
)
from raydpzv.wire.messages import Acknowledged, Rows, Start
from raydpzv.wire.network import Network
from tests.helpers.toy_parties import ToyClient, ToyServer, live_toy, timing


def test_every_answer_is_applied_once_and_in_order():
    rows, server_loop, roles = live_toy(timing([200.0] * 3), ToyServer(3), Budget(updates=120))
    assert server_loop.stop_reason == "120 updates done"
    for client, role in enumerate(roles):
        mine = (
            rows["service"]
            .filter(folds_mask(rows, client))
            .sort_by("round")
            .column("round")
            .to_pylist()
        )
        assert role.applied == mine
    applied = rows["service"].column("applied").to_pylist()
    assert not any(math.isnan(t) for t in applied)


def folds_mask(rows, client):
    import pyarrow.compute as pc

    return pc.equal(rows["service"].column("client"), client)


@pytest.mark.parametrize(("now", "on_record"), [(-0.3, 0.0), (0.0, 0.0), (1.5, 1.5)])
def test_what_is_done_before_t_0_counts_as_done_then(now, on_record):
    """First orders, the first evaluation and the first checkpoint are of the head start."""
    recorder, clock = Recorder(), SimpleNamespace(now=lambda: now)
    server_loop = ServerLoop(ToyServer(1), PrivacyFilter(), recorder, Budget(updates=5))
    orders = [Order(0, Rows(np.zeros(1, np.int32)), 0)]
    server = LockedServerLoop(
        server_loop, clock, lambda which: 0.0, 1, resumed=Resumption(orders, {})
    )
    server.first(0)
    server.evaluate([ToyClient(0).evaluate()])
    with server.halted() as under_way:
        assert under_way.time == on_record
    PullServerLoop(server_loop, clock).evaluate(lambda version: Metrics(0.5, 1.0, 0.5))
    rows = recorder.drain()
    assert rows["evaluation"]["time"].to_pylist() == [on_record] * 2
    assert rows["message"]["sent"].to_pylist() == [on_record]


def test_epochs_come_from_the_clock_and_late_ones_are_counted():
    """0.1 s of work at epochs 0.02 s apart: the first is on time, the others fall into the trip
    before.

    The first epoch lies a second ahead, so that a busy machine has started the loop by then.
    """
    due = [1.0, 1.02, 1.04, 1.06, 1.08]
    when = timing([50.0], arrivals=Trace({0: due}), compute=0.1)
    rows, *_ = live_toy(when, ToyServer(1), Budget(updates=5))
    trips = rows["service"].sort_by("round").to_pylist()
    assert [t["due"] for t in trips] == pytest.approx(due)
    assert [t["late"] for t in trips] == [False, True, True, True, True]
    assert metrics.late_share(rows["service"], 1)[0] == 0.8
    assert all(b["woke"] >= a["applied"] for a, b in itertools.pairwise(trips))


def test_times_are_in_the_order_of_a_round_trip_and_links_delay():
    network = Network([0.03], up=[math.inf], down=[math.inf])
    rows, *_ = live_toy(timing([20.0], network=network), ToyServer(1), Budget(updates=4))
    for trip in (
        rows["service"].sort_by("round").to_pylist()[:-1]
    ):  # the stop cuts the last pause short
        assert trip["woke"] <= trip["served"] - 0.03
        assert trip["applied"] >= trip["served"] + 0.03


def test_a_barrier_lets_clients_wait_for_their_order():
    _rows, server_loop, roles = live_toy(
        timing([1.0] * 3, arrivals=Trace({})),
        ToyServer(3, barrier=3, start_immediately=True),
        Budget(updates=30),
    )
    assert server_loop.updates == 30
    assert all(role.applied == list(range(3, 31, 3)) for role in roles)


def test_a_client_that_gets_no_order_says_what_it_waited_for():
    server = ToyServer(2, barrier=2, start_immediately=True)
    server_loop = ServerLoop(server, PrivacyFilter(), Recorder(), Budget(updates=10))
    clock = WallClock()
    wall = LockedServerLoop(server_loop, clock, lambda which: 0.0, 2)
    when = WallPace(timing([1.0] * 2, arrivals=Trace({})), clock, timeout=0.1)
    loop = ClientLoop(0, ToyClient(0), wall, when)
    with pytest.raises(Stalled, match=r"client 0 got no order within 0\.1 s"):
        loop.run()


@pytest.mark.parametrize("comes", [True, False])
def test_an_answer_that_never_came_was_never_applied(comes):
    """The run ends while a client waits for the answer to its second upload, or with that
    answer.
    """
    said = []

    class Port:
        def first(self, client):
            return Answer(Order(client, Start()), False)

        def exchange(self, upload, how, applied):
            said.append((how.woke, applied))
            order = Order(upload.client, Acknowledged(), upload.step + 1)
            if upload.step == 0:
                return Answer(order, False)
            return Answer(order if comes else None, comes)

        def wait(self, client, seconds):
            return Answer(None, True)

        def finish(self, client, applied):
            said.append((math.nan, applied))

    ClientLoop(0, ToyClient(0), Port(), WallPace(timing([200.0]), WallClock())).run()
    (_, _), (woke, first), (_, second) = said
    assert first <= woke, "of the first answer, before the client woke again"
    assert second >= woke if comes else math.isnan(second)


def test_stop_wakes_sleeping_clients_at_once(monkeypatch):
    server = ToyServer(1)
    server_loop = ServerLoop(server, PrivacyFilter(), Recorder(), Budget())
    clock = WallClock()
    wall = LockedServerLoop(server_loop, clock, lambda which: 0.0, 1)
    role, began = ToyClient(0), threading.Event()
    monkeypatch.setattr(role, "apply", lambda order: began.set())
    loop = ClientLoop(0, role, wall, WallPace(timing([1.0], arrivals=Trace({0: [3600.0]})), clock))
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    assert began.wait(60)  # its next act is to sleep until the epoch
    wall.stop("enough")
    loop.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert server_loop.stop_reason == "enough"


def test_an_evaluation_is_due_once_for_all_that_were_missed():
    schedule = EvaluationSchedule(10, 20)
    assert [n for n in (5, 20, 29, 30, 30, 61, 65) if schedule.due(n)] == [30, 61]
