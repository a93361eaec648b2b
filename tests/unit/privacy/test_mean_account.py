"""The account of released means against recounts, closed forms, and what its budget foresees."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.mean import MeanAccount, MeanReleasePlan, participation_epsilon, whole_mean_epsilon
from raydpzv.privacy.pld import poisson_releases
from tests.helpers.accounts import charged, event


def make(**changes: Any) -> MeanAccount:
    setting = {"rows": 100, "batch": 10, "releases": 1, "clip": 1.0, "sigma": 0.5, "delta": 1e-5}
    return MeanReleasePlan(**{**setting, "server": "frozen", **changes}).account()


def batches(count: int, rows: int = 100, size: int = 10) -> list[np.ndarray]:
    rng = (Key(5) / "batches").generator()
    return [rng.choice(rows, size, replace=False) for _ in range(count)]


ONE = event(range(10))


def test_the_fold_equals_a_slow_recount() -> None:
    account, counts = make(), dict.fromkeys(range(100), 0)
    for ids in batches(40):
        loss = account.charge(event(ids, 3))
        for i in ids.tolist():
            counts[i] += 3
        worst = max(counts.values())
        slow = participation_epsilon(participations=worst, sensitivity=0.2, sigma=0.5, delta=1e-5)
        assert loss.epsilon("client") == pytest.approx(slow)
    assert (account.spent().releases, account.spent().counted) == (120, worst)
    assert pickle.loads(pickle.dumps(account)).mu() == account.mu()


def test_hidden_state_charges_every_release_the_whole_range() -> None:
    for ids, releases, load in ((batches(7), 2, 1.0), ([range(20)], 1, 2.0)):
        # a Poisson batch of 20 over the divisor 10 has twice the range
        account = charged(make(server="sgd"), ids[:-1], releases)
        loss = account.charge(event(ids[-1], releases))
        assert loss.epsilon("client") == pytest.approx(
            whole_mean_epsilon(releases=len(ids) * releases, clip=1.0, sigma=0.5, delta=1e-5, load=load)
        )


def test_external_budget_counts_poisson_batches_with_their_perturbations() -> None:
    plan = {"rate": 0.1, "delta": 1e-5, "budget": 2.0}
    account = make(sigma=0.3, batches="poisson")
    most = poisson_releases(noise_multiplier=3.0 / math.sqrt(4), **plan)
    assert 1 < most < poisson_releases(noise_multiplier=3.0, **plan)
    for ids in batches(most):
        assert not account.would_exceed(event(ids, 4), 2.0, "external")
        account.charge(event(ids, 4))
    assert account.would_exceed(event(range(10), 4), 2.0, "external")
    shuffled = charged(make(sigma=0.3), batches(1))
    assert shuffled.would_exceed(ONE, 1.0, "external") == shuffled.would_exceed(ONE, 1.0, "client")


def test_external_sees_a_final_model_that_hidden_state_spoils() -> None:
    assert make(server="sgd", batches="poisson").would_exceed(ONE, 1e12, "external")


@pytest.mark.parametrize("adversary", ["client", "paper", "external"])
def test_without_noise_nothing_is_within_a_budget(adversary: str) -> None:
    account = make(sigma=0.0, batches="poisson")
    assert account.mu() == 0.0
    assert account.would_exceed(ONE, 1e9, adversary)
    assert account.charge(ONE).epsilons() == (math.inf, math.inf)


def test_an_empty_poisson_batch_is_a_release_of_nobody() -> None:
    account = make(batches="poisson")
    assert not account.would_exceed(event([]), 1.0, "client")
    assert account.charge(event([])).epsilon("client") == 0.0
    assert (account.spent().releases, account.spent().counted) == (1, 0)


def test_a_budget_against_nobody_is_refused() -> None:
    with pytest.raises(InputError, match="server"):
        make().would_exceed(event(range(3)), 1.0, "server")


def test_a_run_calibrated_to_its_budget_is_not_cut_short() -> None:
    account = make(sigma=paper_sigma(epsilon=1.0, delta=1e-5, clip=1.0, releases=30, rows=100))
    for ids in batches(30):
        assert not account.would_exceed(event(ids), 1.0, "paper")
        account.charge(event(ids))
    assert account.would_exceed(ONE, 1.0, "paper")
