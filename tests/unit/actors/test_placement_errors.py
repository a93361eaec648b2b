import re

import pytest

from actors.machines import Machine
from actors.packing import packed
from actors.placement_errors import Lack, busy, lack, refusal
from actors.shares import Plan, Share

SMALL, LARGE = Machine({"CPU": 2.0}), Machine({"CPU": 4.0, "GPU": 1.0})
IN_A = Machine({"CPU": 2.0}, {"zone": "a", "ray.io/node-id": "c0ffee"})
IN_B = Machine({"CPU": 8.0}, {"zone": "b", "ray.io/node-id": "decade"})


def three(placement: str, cpus: float = 1.0, gpus: float = 0.0, **zones: str) -> Plan:
    """A server and two clients' actors."""
    labels = {who: {"zone": zone} for who, zone in zones.items()}
    return Plan(Share(cpus, 0.0), (Share(cpus, gpus),) * 2, ((0,), (1,)), placement, labels=labels)


@pytest.mark.parametrize(
    ("plan", "machines"),
    [
        (three("pack", 2.0), [SMALL, LARGE]),
        (three("pack", gpus=0.5), [SMALL, LARGE]),
        (three("spread", 2.0), [SMALL, LARGE]),
        (three("strict_pack"), [SMALL, LARGE]),
        (three("strict_spread"), [SMALL] * 3),
        (three("pack", server="a", clients="b"), [IN_A, IN_B]),
        (three("strict_spread", clients="!a"), [IN_A, IN_B, SMALL]),
        (three("strict_pack", server="in(b, c)", clients="b"), [IN_A, IN_B]),
    ],
)
def test_a_plan_that_fits_lacks_nothing(plan, machines):
    assert lack(plan, machines) is None


@pytest.mark.parametrize(
    ("plan", "machines", "asked", "missing"),
    [
        (
            three("pack", 3.0),
            [SMALL, LARGE],
            "ask 9 CPU in all .* the cluster has 6; lower",
            "3 CPU",
        ),
        (
            three("pack", 3.0),
            [SMALL] * 5,
            "3 CPU and 0 GPU asked on one machine for the server, machines for it have 2 CPU and 0 "
            "GPU; lower",
            "a machine with 3 CPU and 0 GPU",
        ),
        (
            three("strict_pack", 2.0),
            [SMALL, LARGE],
            "6 CPU .* for all 3 actors, .* have 2 CPU and 0 GPU, or 4 CPU .* set "
            'resources.placement = "pack"',
            "a machine with 6 CPU and 0 GPU",
        ),
        (
            three("strict_spread"),
            [SMALL, LARGE],
            "asks a machine for each of 3 actors, the cluster has 2; set resources.placement",
            "1 machine",
        ),
        (
            three("spread", gpus=2.0),
            [LARGE] * 4,
            "1 CPU and 2 GPU asked on one machine for clients, .* have 4 CPU and 1 GPU; ",
            "a machine with 1 CPU and 2 GPU",
        ),
        (
            three("pack", clients="c"),
            [IN_A, IN_B, SMALL],
            "labels ask zone = c for clients, which no machine carries; labels there are zone = a "
            "or b; correct",
            "a machine with zone = c",
        ),
        (
            three("pack", server="in(c, d)"),
            [SMALL],
            "there are none;",
            "a machine with zone = in(c, d)",
        ),
        (
            three("pack", 1.5, clients="a"),
            [IN_A, IN_B],
            "3 CPU and 0 GPU asked for clients, the machines with zone = a have 2 CPU and 0 GPU; "
            "lower",
            "machines with zone = a that have 3 CPU and 0 GPU",
        ),
        (
            three("strict_pack", server="a", clients="b"),
            [IN_A, IN_B],
            "for all 3 actors, machines for it have not all labels",
            "a machine with 3 CPU and 0 GPU",
        ),
        (
            three("strict_spread", clients="!in(a, c)"),
            [IN_A, IN_A, IN_B],
            r"each of 2 actors, the cluster has 1 with zone = !in\(a, c\);",
            "1 machine with zone = !in(a, c)",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_with_the_arithmetic(plan, machines, asked, missing):
    found = lack(plan, machines)
    assert found.missing == missing
    assert re.search(asked, str(found))


def test_memory_is_reported_in_gib():
    gib = 2**30
    plan = Plan(Share(0.5, 0.0, gib), (Share(0.5, 0.0, 2 * gib),) * 2, ((0,), (1,)))
    large, small = (Machine({"CPU": 4.0, "memory": n * gib}) for n in (4, 1.5))
    assert lack(plan, [large, large]) is None
    found = lack(plan, [large])
    assert found.missing == "1.00 GiB of memory"
    assert str(found) == (
        "resources: 3 actors ask 5.00 GiB of memory in all (server 1.00, clients 4.00), the "
        "cluster has 4.00; lower client_actors"
    )
    found = lack(plan, [small] * 4)
    assert found.missing == "a machine with 0.5 CPU and 0 GPU and 2.00 GiB of memory"


def test_labels_of_no_actor_are_not_missed():
    alone = Plan(Share(1.0, 0.0), (), (), labels={"clients": {"zone": "c"}})
    assert lack(alone, [IN_A]) is None
    assert isinstance(lack(three("pack", clients="c"), [IN_A]), Lack)


def test_shares_that_fit_in_sums_and_not_between_the_ends_of_machines_are_refused_with_a_table():
    two = [
        Machine({"CPU": 2.0}, free={"CPU": 2.0}, name="10.0.0.1"),
        Machine({"CPU": 2.0}, free={"CPU": 0.5}, name="10.0.0.2"),
        Machine({"CPU": 0.0}, name="10.0.0.3"),
        Machine({"CPU": 0.0}, name="10.0.0.4"),
    ]
    plan = three("pack", 1.2)
    found = lack(plan, two)
    assert re.search("1 of 3 actors have no room, since a share lies on one machine", str(found))
    assert found.missing == "a machine with 1.2 CPU and 0 GPU free"
    error = refusal(plan, two, packed(plan, two), found, " (waited 3 s)")
    assert str(error) == f"{found} (waited 3 s)"
    assert error.__notes__ == [
        "machine              free          asked\n"
        "10.0.0.1             2 CPU         server: 1.2 CPU\n"
        "10.0.0.2             0.5 of 2 CPU  1 client: 1.2 CPU\n"
        "10.0.0.3 and 1 more  0 CPU         nothing\n"
        "no machine                         1 client: 1.2 CPU"
    ]


def test_a_gpu_fraction_that_fits_no_single_gpu_is_refused():
    plan = Plan(Share(1.0, 0.0), (Share(0.1, 0.6),) * 3, ((0,), (1,), (2,)))
    found = lack(plan, [Machine({"CPU": 4.0, "GPU": 2.0})])
    assert "1 of 4 actors have no room" in str(found)
    assert "a GPU's fraction on one GPU: 0.1 CPU and 0.6 GPU asked" in str(found)


def test_a_busy_cluster_is_no_lasting_lack():
    used = [Machine({"CPU": 3.0}, free={"CPU": 1.0})]
    assert lack(three("pack"), used) is None
    found = busy(three("pack"), packed(three("pack"), [used[0].now()]))
    assert not found.lasts
    assert "2 of 3 actors wait for resources that others use" in str(found)
