"""Canary: a record in or out, many runs; what an attacker measures must not exceed what is claimed.

R runs, T releases. The lower bound is Clopper-Pearson's on a threshold test (99.9 %), the threshold
fixed in advance. Each test carries controls with less noise that must fail.
"""

import math

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.mean import MeanReleasePlan
from tests.helpers.canary import audited_epsilon

RUNS, CLIP, BATCH, ROWS, DELTA = 200_000, 2.0, 8, 64, 1e-5


def transcripts(sigma: float, slope: float, label: str, takes_part: np.ndarray) -> np.ndarray:
    """Sums over each run's releases [R]: the record adds its clipped slope to the batches it is in
    [R, T].
    """
    noise = (Key(11) / "canary" / label).generator().standard_normal(takes_part.shape)
    return (np.clip(slope, -CLIP, CLIP) / BATCH * takes_part + sigma * noise).sum(axis=1)


def setting(batches: str, releases: int, sigma: float, server: str = "frozen") -> MeanReleasePlan:
    return MeanReleasePlan(
        rows=ROWS,
        batch=BATCH,
        releases=releases,
        clip=CLIP,
        sigma=sigma,
        delta=DELTA,
        batches=batches,
        server=server,
    )


@pytest.mark.parametrize(
    ("relation", "other"), [("replace", -50.0), ("add_remove", 0.0)], ids=["replace", "add_remove"]
)
def test_client_claim_survives_the_best_attack_and_less_noise_does_not(
    relation: str, other: float
) -> None:
    releases, passes = 24, ROWS // BATCH
    # noise for ε of about 1 against the clients, n = 3: the paper's formula with B for D and n for
    # T
    scale = 1.0 if relation == "replace" else 0.5
    sigma = scale * paper_sigma(epsilon=1.0, delta=DELTA, clip=CLIP, releases=3, rows=BATCH)
    (claim,) = [
        c
        for c in setting("shuffle", releases, sigma).table()
        if (c.adversary, c.relation) == ("client", relation)
    ]
    assert claim.epsilon == pytest.approx(1.0)
    part = np.ones(
        (RUNS, releases // passes)
    )  # the client knows when the record is in, and keeps those

    def attack(noise: float) -> float:
        inside = transcripts(noise, 50.0, "in", part)
        outside = transcripts(noise, other, "out", part)
        level = (
            2.0 * noise * math.sqrt(part.shape[1])
            + part.shape[1] * np.clip(other, -CLIP, CLIP) / BATCH
        )
        return audited_epsilon(inside, outside, level, DELTA)

    assert attack(sigma) <= claim.epsilon
    assert attack(sigma / 2) > claim.epsilon
    assert attack(sigma / 4) > 1.5 * claim.epsilon


def test_the_papers_claim_is_broken_by_a_client_and_not_by_an_outsider() -> None:
    releases = 128
    sigma = paper_sigma(epsilon=1.0, delta=DELTA, clip=CLIP, releases=releases, rows=ROWS)
    table = {(c.adversary, c.relation): c for c in setting("poisson", releases, sigma).table()}
    assert table["paper", "replace"].epsilon == pytest.approx(1.0)
    assert not table["paper", "replace"].holds
    n = releases * BATCH // ROWS
    part = np.ones((RUNS, n))
    inside, outside = (transcripts(sigma, s, str(s), part) for s in (50.0, -50.0))
    level = 2.5 * sigma * math.sqrt(n) - n * CLIP / BATCH
    assert (
        1.0 < audited_epsilon(inside, outside, level, DELTA) <= table["client", "replace"].epsilon
    )


@pytest.mark.slow
def test_external_poisson_claim_survives_and_a_quarter_of_the_noise_does_not() -> None:
    releases = 16
    sigma = 2 * CLIP / BATCH
    table = {(c.adversary, c.relation): c for c in setting("poisson", releases, sigma).table()}
    claimed = table["external", "replace"].epsilon
    assert claimed < table["client", "replace"].epsilon / 2
    coins = (Key(11) / "coins").generator().random((2, RUNS, releases)) < BATCH / ROWS

    def attack(noise: float) -> float:
        inside = transcripts(noise, 50.0, "in", coins[0])
        outside = transcripts(noise, -50.0, "out", coins[1])
        return audited_epsilon(inside, outside, 2.0 * noise * math.sqrt(releases), DELTA)

    assert attack(sigma) <= claimed
    assert attack(sigma / 4) > claimed
