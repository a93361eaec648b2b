"""Canary against integer releases: what an attacker measures must not exceed what is claimed of who
sees what.

R runs, T releases. The lower bound is Clopper-Pearson's on a threshold test (99.9 %), the threshold
fixed in advance. Each test carries a control that must exceed the claim.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.privacy.integers import IntegerReleasePlan, solve
from raydpzv.privacy.rounded_gaussian import rounded_gaussian
from tests.helpers.canary import audited_epsilon

RUNS, ROWS, BATCH, GRID, DELTA = 100_000, 64, 8, 4096, 1e-5


def setting(epsilon: float, updates: int, **changes: Any) -> IntegerReleasePlan:
    shared = {"updates": updates, "noise_multiplier": 1.0, "grid": GRID}
    plan = IntegerReleasePlan(rows=ROWS, batch=BATCH, delta=DELTA, clip=0.1, **shared, **changes)
    return solve(plan, epsilon=epsilon, updates=updates)


def claimed(found: IntegerReleasePlan, adversary: str) -> float:
    (row,) = (c for c in found.table() if (c.adversary, c.relation) == (adversary, found.relation))
    assert row.holds
    return row.epsilon


def released(scale: float, part: int, takes_part: np.ndarray, name: str) -> np.ndarray:
    """Releases [R, T] of one coordinate to which the record adds its integer where it takes
    part.
    """
    source = (Key(12) / "canary" / name).generator().bytes
    noise = rounded_gaussian(scale, takes_part.size, source).reshape(takes_part.shape)
    return part * takes_part + noise


@pytest.mark.parametrize(("relation", "other"), [("replace", -GRID), ("add_remove", 0)])
def test_the_clients_claim_survives_the_best_attack_and_less_noise_does_not(
    relation: str, other: int
) -> None:
    """They know which releases the record is in, and add those up."""
    found = setting(1.0, 24, relation=relation)
    n = found.participations
    assert n == 3
    part = np.ones((RUNS, n), np.int64)

    def attack(scale: float) -> float:
        inside, outside = (released(scale, k, part, str(k)).sum(1) for k in (GRID, other))
        return audited_epsilon(inside, outside, 2.0 * scale * math.sqrt(n) + n * other, DELTA)

    assert attack(found.scale) <= claimed(found, "all_clients") == pytest.approx(1.0)
    assert attack(found.scale / 2) > 1.0
    assert attack(found.scale / 4) > 1.5


@pytest.mark.slow
def test_whoever_enumerates_the_seed_breaks_the_outsiders_claim_and_secret_coins_keep_it() -> None:
    """Coins by the program's own addresses. Known, they say which releases to add up; the row
    states another ε then.
    """
    releases = 16
    found = setting(1.0, releases, batches="poisson", adversary="external")
    outside_claim = claimed(found, "external")
    assert outside_claim == pytest.approx(1.0, rel=0.01)

    def coins(seed: int) -> np.ndarray:
        """Is record 0 in the batch of each of client 0's steps?"""
        where = (Key(seed) / "batches" / 0 / "poisson" / step for step in range(releases))
        return np.array([place.generator().random(ROWS)[0] < BATCH / ROWS for place in where])

    # a seed for which the record takes part often; attackers look for their best victim
    n = int(next(c for c in map(coins, range(100)) if c.sum() >= 5).sum())
    part = np.ones((RUNS, n), np.int64)
    inside, outside = (released(found.scale, k, part, f"seed {k}").sum(1) for k in (GRID, -GRID))
    known = audited_epsilon(inside, outside, 2.0 * found.scale * math.sqrt(n) - n * GRID, DELTA)
    assert known > outside_claim

    exposed = replace(found, exposed="coins from the seed", adversary="client", target=None)
    stated = solve(exposed, noise_multiplier=found.noise_multiplier, updates=releases)
    assert known <= claimed(stated, "external") == claimed(stated, "all_clients")

    secret = (Key(13) / "coins").generator().random((2, RUNS, releases)) < BATCH / ROWS
    sums = [
        released(found.scale, k, s.astype(np.int64), f"secret {k}").sum(1)
        for k, s in zip((GRID, -GRID), secret, strict=True)
    ]
    assert audited_epsilon(*sums, 2.0 * found.scale * math.sqrt(releases), DELTA) <= outside_claim
