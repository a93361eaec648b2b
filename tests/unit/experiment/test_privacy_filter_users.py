"""The account of users in a run: one charge a round whatever the silos, second sums, lost releases, the budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from raydpzv.experiment.privacy_filter import UserPrivacyFilter, final_setting
from raydpzv.methods.roles import Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.privacy.user_accountant import user_epsilon
from raydpzv.privacy.user_setting import UserSetting
from raydpzv.wire.messages import Start

RECEIPT = Receipt("discrete gaussian", "system", 1.0, 2.0, 1.0, 1, 3, 0)


def setting(**changed: Any) -> UserSetting:
    usual: dict[str, Any] = {
        "users": 4,
        "silos": 2,
        "releases": 9,
        "clip": 1.0,
        "delta": 1e-5,
        "multiplier": 5.0,
    }
    return UserSetting(**usual | changed)


def upload(silo: int, drawn: list[int] | None = None) -> Upload:
    ids = None if drawn is None else np.array(drawn)
    return Upload(silo, 0, Start(), releases=(Release(0, math.nan, RECEIPT, ids=ids),))


def served(account: UserPrivacyFilter, *uploads: Upload) -> None:
    for made in uploads:
        assert account.refuses(made) is None
        ids = made.releases[0].ids
        account.charge(made.client, made.ids if ids is None else ids, 1)


def releases(account: UserPrivacyFilter) -> int:
    spent = account.spent()
    assert spent is not None
    return spent.releases


def test_a_round_is_one_release_and_a_silos_second_sum_another() -> None:
    account = UserPrivacyFilter(setting(), None)
    served(account, upload(0), upload(1))
    assert releases(account) == 1
    served(account, upload(1), upload(0))
    assert releases(account) == 2
    served(account, upload(0), upload(0))
    assert releases(account) == 4


def test_without_rounds_every_silos_sum_is_a_release() -> None:
    account = UserPrivacyFilter(setting(asynchronous=True), None)
    served(account, upload(0), upload(0), upload(1))
    assert releases(account) == 3


def test_losses_are_those_of_the_accountant() -> None:
    account = UserPrivacyFilter(setting(), None)
    account.charge(0, np.zeros(0, int), 1)
    loss = account.charge(1, np.zeros(0, int), 1)
    one = setting(releases=1)
    found = loss.user_epsilons()
    assert found == pytest.approx([user_epsilon(one, who) for who in ("external", "client", "server")])
    assert loss.epsilons()[1] == pytest.approx(user_epsilon(one, "client"))


@pytest.mark.parametrize("changed", [{"noise": "seeded"}, {"fitted": ("scaled",)}])
def test_what_proves_nothing_states_infinity(changed: dict[str, Any]) -> None:
    account = UserPrivacyFilter(setting(**changed), None)
    assert account.charge(0, np.zeros(0, int), 1).user_epsilons() == (math.inf, math.inf, math.inf)


def test_the_budget_ends_before_the_round_that_would_pass_it() -> None:
    limit = user_epsilon(setting(releases=2))
    account = UserPrivacyFilter(setting(), limit)
    served(account, upload(0), upload(1), upload(0), upload(1))
    assert "the next round would exceed the budget" in str(account.refuses(upload(0)))


def test_participation_is_counted_and_all_are_drawn_where_nothing_says_who() -> None:
    account = UserPrivacyFilter(setting(sampling=0.5), None)
    served(account, upload(0, [1]), upload(1, [1]), upload(0, [2]), upload(1, [2]))
    spent = account.spent()
    assert spent is not None
    assert (spent.releases, spent.counted) == (2, 1)
    served(account, upload(0), upload(1))
    spent = account.spent()
    assert spent is not None
    assert spent.counted == 2
    final = final_setting(setting(sampling=0.5), spent, done=True)
    assert isinstance(final, UserSetting)
    assert (final.releases, final.counted, final.exposed) == (3, 2, "")
    broken = final_setting(setting(sampling=0.5), spent, done=False)
    assert isinstance(broken, UserSetting)
    assert broken.exposed


def test_an_account_goes_on_with_what_was_spent_and_what_may_be_lost() -> None:
    account = UserPrivacyFilter(setting(sampling=0.5), None)
    served(account, upload(0, [1]), upload(1, [1]))
    for lost in (False, True):
        again = UserPrivacyFilter(setting(sampling=0.5), None)
        again.restore(account.state(), lost=lost)
        served(again, upload(0, [1]), upload(1, [1]))
        spent = again.spent()
        assert spent is not None
        assert (spent.releases, spent.counted) == (2 + lost, 2 + lost)
    assert releases(UserPrivacyFilter(setting(), None, lost=1)) == 1
