from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.privacy import mean_accountant
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.privacy.mean_accountant import (
    Spending,
    participation_epsilon,
    poisson_epsilon,
    poisson_epsilon_rdp,
    poisson_releases,
    whole_mean_epsilon,
)

D, C, DELTA = 60_000, 10.0, 1e-3

# B, T, claimed ε; secret Poisson (replace, add/remove); the client that chose the batch (replace, add/remove)
TABLE = [
    (64, 93_750, 0.5, 0.50, 0.23, 41.8, 15.1),
    (64, 93_750, 1.0, 1.01, 0.49, 106.6, 35.3),
    (64, 93_750, 5.0, 21.4, 15.9, 1121, 314),
    (64, 93_750, 10.0, 278, 234, 3075, 826),
    (256, 23_438, 1.0, 1.00, 0.45, 35.3, 12.9),
    (256, 23_438, 10.0, 23.7, 16.7, 826, 235),
]


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE)
def test_the_published_table(row: tuple[int, int, float, float, float, float, float]) -> None:
    batch, releases, claimed, *expected = row
    sigma = paper_sigma(epsilon=claimed, delta=DELTA, clip=C, releases=releases, rows=D)
    found = [
        poisson_epsilon(
            noise_multiplier=sigma * batch / C, rate=batch / D, releases=releases, delta=DELTA, relation=r
        )
        for r in ("replace", "add_remove")
    ]
    found += [
        participation_epsilon(
            participations=round(releases * batch / D), sensitivity=s * C / batch, sigma=sigma, delta=DELTA
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
    sampled = mean_accountant._sampled_epsilon(2.0, 1.0, 9, 1e-5, relation)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "rate", "budget", "relation"),
    [
        (1.7, 0.01, 1.0, "replace"),
        (0.6, 0.02, 8.0, "add_remove"),
        (3.0, 0.3, 1.0, "replace"),
    ],
)
def test_poisson_releases_end_at_the_budget(z: float, rate: float, budget: float, relation: str) -> None:
    most = poisson_releases(noise_multiplier=z, rate=rate, delta=1e-5, budget=budget, relation=relation)

    def spent(n: int) -> float:
        return poisson_epsilon(noise_multiplier=z, rate=rate, releases=n, delta=1e-5, relation=relation)

    assert spent(most) <= budget * (1 + 1e-9)
    assert spent(most + max(1, most // 1000)) > budget


def make(**changes: object) -> Spending:
    setting = {"rows": 100, "batch": 10, "clip": 1.0, "sigma": 0.5, "delta": 1e-5, "hidden_state": False}
    return Spending(**{**setting, **changes})  # type: ignore[arg-type]


def batches(count: int, rows: int = 100, size: int = 10) -> list[np.ndarray]:
    rng = (Key(5) / "batches").generator()
    return [rng.choice(rows, size, replace=False) for _ in range(count)]


def test_the_fold_equals_a_slow_recount() -> None:
    spent, counts = make(), dict.fromkeys(range(100), 0)
    for ids in batches(40):
        spent.add(ids, releases=3)
        for i in ids.tolist():
            counts[i] += 3
        worst = max(counts.values())
        slow = participation_epsilon(participations=worst, sensitivity=0.2, sigma=0.5, delta=1e-5)
        assert spent.epsilon() == pytest.approx(slow)
    assert spent.releases == 120
    assert spent.participations == worst
    assert pickle.loads(pickle.dumps(spent)).epsilon() == spent.epsilon()


def test_hidden_state_charges_every_release_the_whole_range() -> None:
    spent = make(hidden_state=True)
    for ids in batches(7):
        spent.add(ids, releases=2)
    assert spent.epsilon() == pytest.approx(whole_mean_epsilon(releases=14, clip=1.0, sigma=0.5, delta=1e-5))
    wide = make(hidden_state=True)  # a Poisson batch of 20 over the divisor 10 has twice the range
    wide.add(np.arange(20))
    assert wide.epsilon() == pytest.approx(
        whole_mean_epsilon(releases=1, clip=1.0, sigma=0.5, delta=1e-5, load=2.0)
    )


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("adversary", ["client", "paper"])
def test_the_budget_is_foreseen_exactly(adversary: str, hidden: bool) -> None:
    spent, budget, stopped = (
        make(hidden_state=hidden),
        60.0 if hidden and adversary == "client" else 1.5,
        False,
    )
    read = spent.epsilon if adversary == "client" else spent.paper_epsilon
    for ids in batches(2_000):
        foreseen = spent.would_exceed(ids, budget, adversary, releases=2)
        assert read() <= budget * (1 + 1e-6)
        spent.add(ids, releases=2)
        assert foreseen == (read() > budget * (1 + 1e-8))
        if foreseen:
            stopped = True
            break
    assert stopped


def test_a_run_calibrated_to_its_budget_is_not_cut_short() -> None:
    sigma = paper_sigma(epsilon=1.0, delta=1e-5, clip=1.0, releases=30, rows=100)
    spent = make(sigma=sigma)
    for ids in batches(30):
        assert not spent.would_exceed(ids, 1.0, "paper")
        spent.add(ids)
    assert spent.would_exceed(batches(1)[0], 1.0, "paper")


def test_external_budget_counts_poisson_batches_with_their_perturbations() -> None:
    plan = {"rate": 0.1, "delta": 1e-5, "budget": 2.0}
    spent = make(sigma=0.3, batches="poisson")
    most = poisson_releases(noise_multiplier=3.0 / math.sqrt(4), **plan)
    assert 1 < most < poisson_releases(noise_multiplier=3.0, **plan)
    for ids in batches(most):
        assert not spent.would_exceed(ids, 2.0, "external", releases=4)
        spent.add(ids, releases=4)
    assert spent.would_exceed(batches(1)[0], 2.0, "external", releases=4)
    shuffled = make(sigma=0.3)
    shuffled.add(batches(1)[0])
    assert shuffled.would_exceed(batches(1)[0], 1.0, "external") == shuffled.would_exceed(
        batches(1)[0], 1.0, "client"
    )


def test_external_sees_a_final_model_that_hidden_state_spoils() -> None:
    assert make(hidden_state=True, batches="poisson").would_exceed(batches(1)[0], 1e12, "external")


@pytest.mark.parametrize("adversary", ["client", "paper", "external"])
def test_without_noise_nothing_is_within_a_budget(adversary: str) -> None:
    spent = make(sigma=0.0, batches="poisson")
    assert spent.epsilon() == 0.0
    assert spent.would_exceed(batches(1)[0], 1e9, adversary)
    spent.add(batches(1)[0])
    assert spent.epsilon() == spent.paper_epsilon() == math.inf


@pytest.mark.parametrize("ids", [[1, 2, 1], [-1, 4], [3, 100]])
def test_rows_that_would_be_miscounted_are_refused(ids: list[int]) -> None:
    spent = make()
    with pytest.raises(InputError):
        spent.add(np.array(ids))
    assert spent.releases == 0
    assert not spent.counts.any()


def test_an_empty_poisson_batch_is_a_release_of_nobody() -> None:
    spent = make(batches="poisson")
    empty = np.array([], dtype=np.int64)
    assert not spent.would_exceed(empty, 1.0, "client")
    spent.add(empty)
    assert (spent.releases, spent.participations, spent.epsilon()) == (1, 0, 0.0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match='Did you mean "replace"'):
        make(relation="replac")
    with pytest.raises(InputError, match="server"):
        make().would_exceed(np.arange(3), 1.0, "server")
    with pytest.raises(InputError, match="rate"):
        poisson_epsilon(noise_multiplier=1.0, rate=1.5, releases=1, delta=0.1)
