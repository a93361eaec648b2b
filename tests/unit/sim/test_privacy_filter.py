"""Accounts of records: rows that wait for a gathered release count when it comes; what is proved in
midst of a run.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raydpzv.methods.roles import Upload
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.integers import IntegerReleasePlan
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.sim.privacy_filter import PlanFilter
from raydpzv.wire.messages import Embeddings

SETTING = IntegerReleasePlan(
    rows=40, batch=10, delta=1e-3, clip=0.1, gather=2, clients=2, updates=8, noise_multiplier=5.0
)


def upload(client: int, first: int) -> Upload:
    ids = np.arange(first, first + 10, dtype=np.int32)
    return Upload(client, 0, Embeddings(ids, np.zeros((10, 2), np.float32)))


@pytest.mark.parametrize(("allowed", "refused"), [(1, True), (2, False)])
def test_rows_that_wait_for_their_release_are_looked_at_again_with_its_last_upload(
    allowed, refused
):
    limit = epsilon_of(SETTING.clients_mu(allowed), SETTING.delta)
    account = PlanFilter(SETTING, limit)
    assert account.refuses(upload(0, 0)) is None
    for first in (0, 10):
        assert account.refuses(upload(1, first)) is None
    account.charge(1, np.arange(20), 3)
    said = account.refuses(upload(0, 20))
    assert (said is not None) == refused, (
        "rows 0 to 9 would be released a second time, rows 20 to 29 a first"
    )


def test_what_was_released_waits_no_longer():
    limit = epsilon_of(SETTING.clients_mu(1), SETTING.delta)
    account = PlanFilter(SETTING, limit)
    for first in (0, 10):
        assert account.refuses(upload(0, first)) is None
    account.charge(0, np.arange(20), 3)
    assert account.refuses(upload(0, 20)) is None
    assert account.refuses(upload(0, 0)) is not None


@pytest.mark.parametrize(
    ("changed", "proved"),
    [
        ({}, True),
        ({"fitted": ("scaled",)}, False),
        ({"fitted": ("scaled",), "server": "sgd"}, True),
    ],
    ids=["plain", "scaled by all rows", "with hidden state, whose bound needs nothing of them"],
)
def test_what_supposes_more_than_is_so_is_not_proved_while_the_run_continues(
    changed: dict[str, Any], proved: bool
) -> None:
    setting = MeanReleasePlan(
        rows=20,
        batch=5,
        releases=60,
        clip=1.0,
        sigma=4.0,
        delta=1e-5,
        server="frozen",
        planned=False,
    )
    account = PlanFilter(replace(setting, **changed))
    loss = account.charge(0, np.arange(5), 1)
    assert math.isfinite(loss.client) == proved
    assert math.isfinite(loss.paper), "which claims it all the same"


def test_the_largest_batch_is_counted_and_kept_in_checkpoints():
    """With hidden state a bound depends on it."""
    plan = MeanReleasePlan(
        rows=23,
        batch=5,
        releases=60,
        clip=1.0,
        sigma=4.0,
        delta=1e-5,
        server="sgd",
        batches="poisson",
    )
    account, again = PlanFilter(plan), PlanFilter(plan)
    for size, largest in ((3, 3), (7, 7), (7, 7), (5, 7)):
        account.charge(0, np.arange(size), 2)
        assert account.spent().largest_batch == largest
    again.restore(account.state(), lost=True)
    again.charge(0, np.arange(2), 2)
    assert again.spent().largest_batch == 7
    assert plan.as_made(again.spent(), done=True).load == 7 / 5


def test_without_an_account_only_a_plan_that_nothing_went_beyond_bounds_what_was_released():
    assert SETTING.as_made(None, done=True) is not None
    assert SETTING.as_made(None, done=True, beyond_plan=True) is None
    assert replace(SETTING, planned=False).as_made(None, done=True) is None
