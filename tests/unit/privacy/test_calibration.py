import itertools
import math

import pytest

from raydpzv.errors import InputError
from raydpzv.privacy.calibration import (
    expected_participations,
    largest_count,
    paper_epsilon,
    paper_sigma,
    planned_participations,
)
from raydpzv.privacy.gdp import delta_of

PLAN = {"clip": 10.0, "rows": 60_000, "delta": 1e-3}


def test_sigma_is_the_papers_and_gives_back_its_target() -> None:
    sigma = paper_sigma(epsilon=1.0, releases=93_750, **PLAN)
    mu = 2 * 10.0 * math.sqrt(93_750) / (60_000 * sigma)  # Theorem VI.5 read backwards
    assert delta_of(1.0, mu) == pytest.approx(1e-3, rel=1e-9)
    assert paper_epsilon(93_750, sigma=sigma, **PLAN) == pytest.approx(1.0, rel=1e-9)
    assert paper_epsilon(93_750, sigma=sigma / 2, **PLAN) > 1.5


def test_the_lambda_form_has_the_same_epsilon() -> None:
    ours = paper_sigma(epsilon=1.0, delta=1e-3, clip=5.0, releases=100, rows=1000)
    papers = paper_sigma(epsilon=1.0, delta=1e-3, clip=10.0, releases=100, rows=1000)
    assert papers == pytest.approx(2 * ours)


def test_claimed_epsilon_grows_as_the_root_of_the_releases() -> None:
    sigma = paper_sigma(epsilon=5.0, releases=400, **PLAN)
    assert paper_epsilon(0, sigma=sigma, **PLAN) == 0.0
    quarter = paper_epsilon(100, sigma=sigma, **PLAN)
    assert quarter == pytest.approx(paper_epsilon(400, sigma=2 * sigma, **PLAN))
    assert paper_epsilon(1, sigma=0.0, **PLAN) == math.inf


@pytest.mark.parametrize(("epsilon", "delta"), [(math.inf, 1e-3), (1.0, 0.0), (1.0, 1.0)])
def test_an_unreachable_target_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InputError, match="no noise level"):
        paper_sigma(epsilon=epsilon, delta=delta, clip=1.0, releases=10, rows=10)


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_shuffle_bound_is_exactly_the_worst_split(passes: int, clients: int) -> None:
    for updates in range(1, 11):
        splits = (
            s for s in itertools.product(range(updates + 1), repeat=clients) if sum(s) == updates
        )
        worst = max(sum(math.ceil(s / passes) for s in split) for split in splits)
        bound = planned_participations(
            batches="shuffle",
            releases=updates,
            rows=7 * passes + min(6, passes),
            batch=7,
            clients=clients,
        )
        assert bound == worst
        assert bound <= math.ceil(updates / passes) + clients - 1


def test_perturbations_multiply_participation() -> None:
    plan = {"batches": "shuffle", "rows": 100, "batch": 10, "clients": 2}
    assert planned_participations(
        releases=60, perturbations=3, **plan
    ) == 3 * planned_participations(releases=20, **plan)


@pytest.mark.parametrize("batches", ["uniform", "poisson"])
def test_a_drawn_batch_may_hold_a_record_every_time(batches: str) -> None:
    assert (
        planned_participations(batches=batches, releases=500, rows=100, batch=10, clients=1) == 500
    )
    assert expected_participations(releases=500, rows=100, batch=10) == 50


def test_unknown_batches_are_named_with_the_nearest() -> None:
    with pytest.raises(InputError, match='Did you mean "poisson"'):
        planned_participations(batches="poison", releases=1, rows=10, batch=1, clients=1)
    with pytest.raises(InputError, match="choose a smaller batch"):
        planned_participations(batches="shuffle", releases=1, rows=10, batch=11, clients=1)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 63, 64, 65, 10**6 + 1, 2**61, 2**62])
def test_the_largest_count_is_found(limit: int) -> None:
    assert largest_count(lambda count: count <= limit) == limit


def test_a_budget_without_an_end_has_no_largest_count() -> None:
    assert largest_count(lambda count: True) == 2**62
