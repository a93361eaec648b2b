from collections import Counter
from itertools import product

import numpy as np
import pytest

from actors.machines import Machine
from actors.packing import SLACK, Room, packed
from actors.shares import Plan, Share
from raydpzv.keys import Key


def machines(*cpus, home=None, **more):
    return [Machine({"CPU": float(c), **more}, home=n == home) for n, c in enumerate(cpus)]


def plan(cpus, *members, placement="pack", **labels):
    """Return a plan of shares of CPUs, or of CPUs and GPUs."""
    shares = [Share(*share) if isinstance(share, tuple) else Share(share, 0.0) for share in members]
    return Plan(Share(cpus, 0.0), tuple(shares), ((),) * len(shares), placement, labels=labels)


def test_the_server_is_beside_the_driver_where_that_has_room():
    assert packed(plan(1.0, 1.0, 1.0), machines(2, 2, home=1)).places == [1, 1, 0]
    assert packed(plan(1.0, 1.0), machines(2, 0, home=1)).places == [0, 0]
    assert packed(plan(1.0, 4.0), machines(4, 2, home=0)).places == [1, 0], "else nobody fits"


def test_hosts_fill_machines_or_lie_on_as_many_as_can_be():
    four = plan(0.5, *[0.5] * 4)
    assert packed(four, machines(2, 2, 2)).places == [0, 0, 0, 0, 1]
    spread = packed(plan(0.5, *[0.5] * 4, placement="spread"), machines(2, 2, 2)).places
    assert sorted(Counter(spread).values()) == [1, 2, 2]


def test_all_on_one_machine_and_one_on_each():
    assert packed(plan(1.0, 1.0, placement="strict_pack"), machines(1, 1, 2)).places == [2, 2]
    assert packed(plan(1.0, 1.0, placement="strict_pack"), machines(1, 1)).missing == 1
    each = packed(plan(1.0, 2.0, 1.0, placement="strict_spread"), machines(2, 1, 1))
    assert each.places[1] == 0
    assert sorted(each.places) == [0, 1, 2]
    assert packed(plan(1.0, 1.0, 1.0, placement="strict_spread"), machines(2, 8)).missing == 1


def test_labels_choose_the_machines():
    zones = [Machine({"CPU": 2.0}, {"zone": zone}) for zone in "ab"]
    apart = plan(0.5, 0.5, server={"zone": "b"}, clients={"zone": "a"})
    assert packed(apart, zones).places == [1, 0]
    assert packed(plan(0.5, 0.5, server={"zone": "c"}), zones).places == [None, None]


@pytest.mark.parametrize(
    ("share", "gpus", "fit"),
    [(0.5, 2.0, 4), (0.6, 2.0, 2), (0.34, 2.0, 4), (1.0, 2.3, 2), (2.0, 5.0, 2), (0.3, 1.3, 4)],
)
def test_no_gpu_fraction_lies_on_two_gpus(share, gpus, fit):
    asked = Share(0.0, share).bundle()
    room = Room({"CPU": 8.0, "GPU": gpus})
    assert room.fits(asked, 100) == fit
    room.take(asked, fit)
    assert room.fits(asked, 100) == 0


def test_a_smaller_fraction_goes_where_a_larger_one_left_room():
    found = packed(plan(0.1, *[(0.1, 0.4)] * 2, *[(0.1, 0.6)] * 2), machines(4, GPU=2.0))
    assert found.missing == 0
    assert packed(plan(0.1, *[(0.1, 0.6)] * 2, (0.1, 0.5)), machines(4, GPU=1.0)).missing == 2


def test_memory_is_packed_too():
    shares = tuple(Share(0.1, 0.0, memory=3) for _ in range(4))
    small = [Machine({"CPU": 4.0, "memory": 7.0})] * 2
    assert packed(Plan(shares[0], shares[1:], ()), small).missing == 0
    assert packed(Plan(shares[0], shares, ()), small).missing == 1


def test_a_packing_keeps_within_every_machine_and_finds_room_as_a_search_does():
    """Shares that are alike, as the default ones: a packing is found if and only if there is one."""
    draw = (Key(3) / "packing").generator()
    for _ in range(200):
        cpus = [float(c) for c in draw.integers(0, 5, size=draw.integers(1, 4))]
        share = float(draw.choice([0.3, 0.5, 0.8, 1.0, 1.5]))
        count = int(draw.integers(1, 7))
        there = machines(*cpus, home=0)
        found = packed(plan(share, *[share] * (count - 1)), there)
        used = Counter(found.places)
        assert all(used[n] * share <= c + SLACK for n, c in enumerate(cpus))
        exists = any(
            all(places.count(n) * share <= c + SLACK for n, c in enumerate(cpus))
            for places in product(range(len(cpus)), repeat=count)
        )
        assert (found.missing == 0) == exists, (cpus, share, count)


def test_a_thousand_hosts_on_a_hundred_machines_are_packed_at_once():
    found = packed(plan(1.0, *np.full(1000, 0.9).tolist()), machines(*[16] * 100, home=7))
    assert found.missing == 0
    assert found.places[0] == 7
