import itertools
import math

import numpy as np
import pytest

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.records import metrics
from raydpzv.sim.arrivals import Immediate
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.interfaces import Budget
from raydpzv.sim.virtual import Timing
from raydpzv.wire.network import Network, instant
from tests.helpers.toy_parties import ToyServer, live_toy, run_toy, timing


def immediate(compute, law="constant", **options):
    return Timing(
        Immediate(),
        DelayModel(compute, law, Key(1), 0.25 if law == "poisson" else None),
        DelayModel([options.get("service", 0.0)], "constant", Key(1)),
        options.get("network") or instant(len(compute)),
    )


def services(rows):
    return rows["service"].sort_by("round").to_pylist()


def test_a_client_begins_when_its_answer_is_there_and_is_never_late():
    network = Network([0.25], up=[24.0], down=[16.0])
    rows, *_ = run_toy(immediate([1.0], service=2.0, network=network), Budget(updates=3), clients=1)
    # 0.25 s for an order without bytes, then 1 s of compute, 0.25 + 12/24 s up, 2 s service, 0.25 +
    # 4/16 s down
    trips = services(rows)
    assert [t["woke"] for t in trips] == [0.25, 4.5, 8.75]
    assert all(t["due"] == t["woke"] for t in trips)
    assert not any(t["late"] for t in trips)
    open_loop, *_ = run_toy(timing([1.0], compute=1.0, service=2.0), Budget(updates=30), clients=1)
    assert any(t["late"] for t in services(open_loop))


def test_delays_alone_set_the_pace():
    """Client m makes one upload in its mean delay; the control has equal shares."""
    means = [0.25, 0.5, 1.0]
    for law in ("exponential", "poisson"):
        rows, server_loop, *_ = run_toy(immediate(means, law), Budget(updates=7000), clients=3)
        counts = np.bincount(rows["service"].column("client").to_numpy(), minlength=3)
        assert counts / 7000 == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.02)
        assert server_loop.status().time == pytest.approx(1000, rel=0.05)
        assert np.abs(counts / 7000 - 1 / 3).max() > 0.1


def test_a_barrier_waits_for_the_slowest():
    rows, server_loop, *_ = run_toy(
        immediate([1.0, 2.0, 4.0]), Budget(updates=9), clients=3, server=ToyServer(3, barrier=3)
    )
    assert [t["served"] for t in services(rows)] == [1, 2, 4, 5, 6, 8, 9, 10, 12]
    assert server_loop.status().late == 0


def test_without_delays_another_budget_ends_the_run():
    _, server_loop, *_ = run_toy(immediate([0.0, 0.0]), Budget(updates=50, seconds=1.0), clients=2)
    assert (server_loop.stop_reason, server_loop.status().time) == ("50 updates done", 0.0)


def test_under_the_wall_clock_a_client_begins_at_once():
    rows, server_loop, roles = live_toy(immediate([0.02, 0.2]), ToyServer(2), Budget(updates=30))
    assert server_loop.updates == 30
    trips = services(rows)
    assert metrics.late_share(rows["service"], 2).tolist() == [0.0, 0.0]
    fast = [t for t in trips if t["client"] == 0]
    assert len(fast) > 20
    for before, after in itertools.pairwise(fast):
        assert before["applied"] <= after["due"] <= after["woke"]
        assert after["served"] >= after["woke"] + 0.02
    assert sum(len(role.applied) for role in roles) == sum(
        not math.isnan(t["applied"]) for t in trips
    )


def test_there_are_no_epochs_to_merge():
    with pytest.raises(SpecError, match=r'arrivals\.kind: "immediate" has no epochs'):
        Immediate().merged()
