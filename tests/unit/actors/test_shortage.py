"""What is said of clusters that lack something, without a Ray."""

from __future__ import annotations

import re

import pytest

from actors.shares import Plan, Share
from actors.shortage import lack

SMALL, LARGE = {"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}


def three(placement: str, cpus: float = 1.0, gpus: float = 0.0) -> Plan:
    """A server and two clients' actors."""
    return Plan(Share(cpus, 0.0), (Share(cpus, gpus),) * 2, ((0,), (1,)), placement)


@pytest.mark.parametrize(
    ("plan", "machines"),
    [
        (three("pack", 2.0), [SMALL, LARGE]),
        (three("pack", gpus=0.5), [SMALL, LARGE]),
        (three("spread", 2.0), [SMALL, LARGE]),
        (three("strict_pack"), [SMALL, LARGE]),
        (three("strict_spread"), [SMALL] * 3),
    ],
)
def test_what_fits_lacks_nothing(plan, machines):
    assert lack(plan, machines) is None


@pytest.mark.parametrize(
    ("plan", "machines", "asked", "missing"),
    [
        (three("pack", 3.0), [SMALL, LARGE], "ask 9 CPU in all .* the cluster has 6; lower", "3 CPU"),
        (
            three("pack", 3.0),
            [SMALL] * 5,
            "the server: 3 CPU and 0 GPU asked on one machine, the cluster's have 2 CPU and 0 GPU; lower",
            "a machine with 3 CPU and 0 GPU",
        ),
        (
            three("strict_pack", 2.0),
            [SMALL, LARGE],
            'all 3 actors together: 6 CPU .* 0 GPU, or 4 CPU .* set resources.placement = "pack"',
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
            "a client: 1 CPU and 2 GPU asked on one machine, .* have 4 CPU and 1 GPU; ",
            "a machine with 1 CPU and 2 GPU",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_the_arithmetic(plan, machines, asked, missing):
    found = lack(plan, machines)
    assert found is not None
    assert found.missing == missing
    assert re.search(asked, str(found))
