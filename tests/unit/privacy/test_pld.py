import math

import pytest

from raydpzv.errors import InputError
from raydpzv.privacy import pld
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.mean import participation_epsilon, whole_mean_epsilon
from raydpzv.privacy.pld import poisson_epsilon, poisson_releases
from tests.helpers.rdp import poisson_epsilon_rdp

D, C, DELTA = 60_000, 10.0, 1e-3

# B, T, claimed ε; secret Poisson (replace, add/remove); the client that chose the batch (replace,
# add/remove)
TABLE = [
    (64, 93_750, 0.5, 0.50, 0.23, 41.8, 15.1),
    (64, 93_750, 1.0, 1.01, 0.49, 106.6, 35.3),
    (64, 93_750, 5.0, 21.4, 15.9, 1121, 314),
    (64, 93_750, 10.0, 278, 234, 3075, 826),
    (256, 23_438, 1.0, 1.00, 0.45, 35.3, 12.9),
    (256, 23_438, 10.0, 23.7, 16.7, 826, 235),
]


@pytest.mark.parametrize("row", TABLE)
def test_the_published_table(row: tuple[int, int, float, float, float, float, float]) -> None:
    batch, releases, claimed, *expected = row
    sigma = paper_sigma(epsilon=claimed, delta=DELTA, clip=C, releases=releases, rows=D)
    found = [
        poisson_epsilon(
            noise_multiplier=sigma * batch / C,
            rate=batch / D,
            releases=releases,
            delta=DELTA,
            relation=r,
        )
        for r in ("replace", "add_remove")
    ]
    found += [
        participation_epsilon(
            participations=round(releases * batch / D),
            sensitivity=s * C / batch,
            sigma=sigma,
            delta=DELTA,
        )
        for s in (2, 1)
    ]
    assert found == pytest.approx(expected, rel=0.02)


def test_renyi_is_a_looser_second_opinion() -> None:
    plan = {"noise_multiplier": 1.1, "rate": 0.01, "releases": 1000, "delta": 1e-5}
    tight = poisson_epsilon(relation="add_remove", **plan)
    assert tight < poisson_epsilon_rdp(**plan) < 1.25 * tight


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_full_rate_is_the_plain_gaussian(relation: str) -> None:
    sampled = pld._sampled_epsilon(2.0, 1.0, 9, 1e-5, relation)
    closed = epsilon_of(math.sqrt(9) * (2 if relation == "replace" else 1) / 2.0, 1e-5)
    assert sampled == pytest.approx(closed, rel=1e-3)
    assert poisson_epsilon(
        noise_multiplier=2.0, rate=1.0, releases=9, delta=1e-5, relation=relation
    ) == pytest.approx(closed)


def test_sampling_never_counts_for_more_than_none() -> None:
    plain = participation_epsilon(participations=10, sensitivity=2, sigma=0.02, delta=1e-5)
    assert poisson_epsilon(noise_multiplier=0.02, rate=0.5, releases=10, delta=1e-5) <= plain
    assert poisson_epsilon(noise_multiplier=0.001, rate=0.5, releases=10, delta=1e-5) < math.inf
    assert poisson_epsilon(noise_multiplier=1.0, rate=0.5, releases=0, delta=1e-5) == 0.0


def test_whole_mean_is_d_times_the_papers_mu() -> None:
    sigma = paper_sigma(epsilon=1.0, delta=DELTA, clip=C, releases=500, rows=D)
    bound = whole_mean_epsilon(releases=500, clip=C, sigma=sigma, delta=DELTA)
    assert bound == pytest.approx(epsilon_of(D * mu_of(1.0, DELTA), DELTA), rel=1e-9)
    assert whole_mean_epsilon(releases=500, clip=C, sigma=sigma, delta=DELTA, load=2.0) > 3 * bound


@pytest.mark.parametrize(
    ("z", "rate", "budget", "relation"),
    [(1.7, 0.01, 1.0, "replace"), (0.6, 0.02, 8.0, "add_remove"), (3.0, 0.3, 1.0, "replace")],
)
def test_poisson_releases_end_at_the_budget(
    z: float, rate: float, budget: float, relation: str
) -> None:
    most = poisson_releases(
        noise_multiplier=z, rate=rate, delta=1e-5, budget=budget, relation=relation
    )

    def spent(n: int) -> float:
        return poisson_epsilon(
            noise_multiplier=z, rate=rate, releases=n, delta=1e-5, relation=relation
        )

    assert spent(most) <= budget * (1 + 1e-9)
    assert spent(most + max(1, most // 1000)) > budget


def test_a_rate_above_one_is_refused() -> None:
    with pytest.raises(InputError, match="rate"):
        poisson_epsilon(noise_multiplier=1.0, rate=1.5, releases=1, delta=0.1)
