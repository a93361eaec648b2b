import threading

import numpy as np
import pytest
from scipy import stats

from raydpzv.errors import RunError
from raydpzv.records import metrics
from raydpzv.records.store import digest
from raydpzv.sim.arrivals import Trace
from raydpzv.sim.interfaces import Budget
from raydpzv.wire.network import Network
from tests.helpers.toy_parties import (
    ORDER_BYTES,
    UPLOAD_BYTES,
    ToyServer,
    constant,
    run_toy,
    timing,
)


def services(rows):
    return sorted(rows["service"].to_pylist(), key=lambda row: row["round"])


def geometric_p_value(gaps, share):
    """Chi-square of observed gaps against the geometric law, tail pooled."""
    last = 1
    while len(gaps) * (1 - share) ** last > 20:
        last += 1
    observed = [np.sum(gaps == k) for k in range(1, last)] + [np.sum(gaps >= last)]
    expected = [share * (1 - share) ** (k - 1) for k in range(1, last)] + [
        (1 - share) ** (last - 1)
    ]
    return stats.chisquare(observed, np.array(expected) * len(gaps)).pvalue


def test_rounds_since_a_clients_last_upload_are_geometric_with_its_share_of_the_rates():
    rates = [1.0, 2.0, 3.0, 4.0]
    rows, *_ = run_toy(timing(rates), Budget(updates=20_000), clients=4)
    for gaps, rate in zip(metrics.gaps(rows["service"], 4), rates, strict=True):
        share = rate / sum(rates)
        assert geometric_p_value(gaps, share) > 0.005
        assert geometric_p_value(gaps, 1.15 * share) < 1e-6


def test_a_round_trip_takes_what_its_parts_take():
    network = Network([0.25], up=[24.0], down=[16.0])
    when = timing([0.1], arrivals=constant([0.1]), compute=1.0, service=2.0, network=network)
    rows, *_ = run_toy(when, Budget(updates=2), clients=1)
    first, second = services(rows)
    # epoch 10, 1 s of compute, 0.25 s latency + 12 bytes at 24 B/s, 2 s service, 0.25 s + 4 bytes
    # at 16 B/s
    assert (first["due"], first["woke"], first["late"]) == (10.0, 10.0, False)
    assert first["served"] == pytest.approx(10 + 1 + 0.25 + 0.5 + 2)
    assert first["applied"] == pytest.approx(13.75 + 0.25 + 0.25)
    assert second["due"] == 20.0
    up = [m for m in rows["message"].to_pylist() if m["direction"] == "up"]
    assert up[0]["sent"] == 11.0
    assert up[0]["arrived"] == pytest.approx(11.75)


def test_an_epoch_inside_a_round_trip_is_served_at_its_end_and_counted_late():
    when = timing([1.0], arrivals=constant([1.0]), compute=1.5)
    rows, *_ = run_toy(when, Budget(updates=4), clients=1)
    trips = services(rows)
    assert [t["due"] for t in trips] == [1.0, 2.0, 3.0, 4.0]
    assert [t["woke"] for t in trips] == [1.0, 2.5, 4.0, 5.5]
    assert [t["late"] for t in trips] == [False, True, True, True]


def test_uploads_queue_at_the_server_in_arrival_order():
    when = timing([1.0] * 3, arrivals=Trace({0: [1.0], 1: [1.1], 2: [1.0]}), service=1.0)
    rows, _, _, server = run_toy(when, Budget(), clients=3)
    assert [client for client, _ in server.served] == [0, 2, 1]
    assert [t["served"] for t in services(rows)] == [2.0, 3.0, 4.0]


def test_ties_are_served_in_the_order_of_the_clients():
    _rows, _, _, server = run_toy(
        timing([1.0] * 5, arrivals=constant([1.0] * 5)), Budget(updates=10), clients=5
    )
    assert [client for client, _ in server.served] == [0, 1, 2, 3, 4] * 2


def test_a_barrier_answers_when_it_is_full_and_at_once_orders_need_no_epoch():
    when = timing([1.0] * 3, arrivals=Trace({}), compute=1.0)
    rows, _server_loop, roles, server = run_toy(
        when, Budget(updates=9), clients=3, server=ToyServer(3, barrier=3, start_immediately=True)
    )
    assert [client for client, _ in server.served] == [0, 1, 2] * 3
    assert [t["served"] for t in services(rows)] == [1.0] * 3 + [2.0] * 3 + [3.0] * 3
    assert all(role.applied == [3, 6, 9] for role in roles)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(updates=50), "50 updates done"),
        (Budget(seconds=10.0), "the budget of 10 seconds is spent"),
        (Budget(bytes=700), "the budget of 700 bytes is spent"),
    ],
)
def test_each_budget_ends_the_run(budget, reason):
    rows, server_loop, *_ = run_toy(timing([1.0, 1.0]), budget, clients=2)
    assert server_loop.stop_reason == reason
    status = server_loop.status()
    assert status.updates == rows["service"].num_rows
    assert status.bytes_up == UPLOAD_BYTES * status.updates == metrics.bytes_up(rows["message"])
    assert status.bytes_down == ORDER_BYTES * status.updates == metrics.bytes_down(rows["message"])
    if budget.updates:
        assert status.updates == 50
    if budget.seconds:
        assert services(rows)[-1]["served"] <= 10.0 == status.time
    if budget.bytes:
        assert 700 <= status.bytes_up + status.bytes_down < 700 + UPLOAD_BYTES + ORDER_BYTES


def test_a_stop_from_outside_ends_after_the_event_in_progress():
    stop = threading.Event()
    seen = []

    def tick():
        seen.append(1)
        if len(seen) == 7:
            stop.set()

    rows, server_loop, roles, _server = run_toy(
        timing([1.0, 1.0]), Budget(), clients=2, stop=stop, tick=tick
    )
    assert server_loop.stop_reason == "stopped by the user"
    assert rows["service"].num_rows == 7
    assert (
        sum(len(role.applied) for role in roles) == 7
    )  # every answer that was sent has been applied


def test_a_run_whose_arrivals_end_says_so():
    _, server_loop, *_ = run_toy(
        timing([1.0], arrivals=Trace({0: [1.0, 2.0]})), Budget(), clients=1
    )
    assert server_loop.stop_reason == "no client wakes any more: the arrivals have ended"
    assert server_loop.updates == 2


def test_evaluations_happen_before_between_and_after():
    rows, *_ = run_toy(timing([1.0]), Budget(updates=25), clients=1, every=10)
    assert rows["evaluation"].column("round").to_pylist() == [0, 10, 20, 25]


def test_an_upload_of_another_size_than_promised_fails_the_run():
    server = ToyServer(1)
    server.upload_bytes = UPLOAD_BYTES + 1
    with pytest.raises(RunError, match="promised 13"):
        run_toy(timing([1.0]), Budget(updates=1), clients=1, server=server)


def test_a_size_that_is_drawn_decides_the_arrival_all_the_same():
    network = Network([0.0], up=[12.0], down=[np.inf])
    when = timing([1.0], arrivals=constant([0.1]), network=network)
    known, *_ = run_toy(when, Budget(updates=3), clients=1)
    drawn, *_ = run_toy(when, Budget(updates=3), clients=1, server=ToyServer(1, fixed=False))
    assert digest(known) == digest(drawn)
    assert services(known)[0]["served"] == 11.0


def test_the_delay_of_an_update_counts_the_rounds_between_read_and_apply():
    network = Network([5.0, 0.0], up=[np.inf] * 2, down=[np.inf] * 2)
    when = timing(
        [1.0, 1.0], arrivals=Trace({0: [6.0], 1: [7.0, 8.0, 9.0, 10.0, 20.0]}), network=network
    )
    rows, *_ = run_toy(when, Budget(), clients=2)
    slow, fast = metrics.delays(rows["service"], 2)
    assert slow.tolist() == [4]  # read at 6, applied at 16: the rounds served at 7, 8, 9 and 10
    assert fast.tolist() == [0, 0, 0, 0, 0]


def test_nothing_happens_after_the_time_is_over():
    slow = timing([1e-6], network=Network([0.0], up=[np.inf], down=[np.inf]))
    rows, server_loop, *_ = run_toy(slow, Budget(seconds=10.0), clients=1)
    assert (server_loop.updates, server_loop.status().time) == (0, 10.0)
    assert rows["service"].num_rows == 0
    late = timing([1.0], arrivals=constant([1.0]), service=3.0)
    rows, server_loop, *_ = run_toy(late, Budget(seconds=6.0), clients=1)
    assert [t["served"] for t in services(rows)] == [4.0]  # the second would have been served at 7
