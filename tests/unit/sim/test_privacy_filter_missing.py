"""Updates that a lost machine may have made: charged against everybody, once, and within the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydpzv.errors import NotRecomputable
from raydpzv.keys import Key
from raydpzv.methods.roles import Upload
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.integers import IntegerReleasePlan
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.privacy.user_mechanism import user_epsilon
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.sim.privacy_filter import PlanFilter
from raydpzv.wire.messages import Embeddings

ROWS, BATCH, CLIENTS = 23, 5, 3
MEAN = MeanReleasePlan(
    rows=ROWS,
    batch=BATCH,
    releases=60,
    clip=1.0,
    sigma=4.0,
    delta=1e-5,
    server="frozen",
    clients=CLIENTS,
    per_upload=2,
)
INTEGERS = IntegerReleasePlan(
    rows=ROWS, batch=BATCH, delta=1e-3, clip=0.1, clients=CLIENTS, updates=60, noise_multiplier=9.0
)
USERS = UserReleasePlan(users=7, silos=2, releases=30, clip=1.0, delta=1e-5, multiplier=9.0)
PLANS = {"mean": MEAN, "integers": INTEGERS, "users": USERS}


def batches(generator, updates):
    """(client, rows) of a run whose clients wake in any order and pass through shuffled rows."""
    left = {m: [] for m in range(CLIENTS)}
    for client in generator.integers(0, CLIENTS, updates):
        if not left[client]:
            order = generator.permutation(ROWS)[: ROWS // BATCH * BATCH]
            left[client] = list(order.reshape(-1, BATCH))
        yield int(client), left[client].pop()


@pytest.mark.parametrize(("kind", "each"), [("mean", 2), ("integers", 1)])
@pytest.mark.parametrize("missing", [1, 4, 11, 37])
def test_what_is_charged_bounds_releases_that_were_made_twice(kind, each, missing):
    """The truth: releases before the loss, those that were lost, and these and all others once more."""
    tightest = []
    for trial in range(40):
        generator = (Key(3) / missing / trial).generator()
        made, at = list(batches(generator, 60)), int(generator.integers(0, 60 - missing))
        before = PlanFilter(PLANS[kind], missing=0)
        for client, ids in made[:at]:
            before.charge(client, ids, each)
        account = PlanFilter(PLANS[kind], missing=missing)
        account.restore(before.state(), lost=True)
        for client, ids in made[at:]:
            account.charge(client, ids, each)
        truth = np.zeros(ROWS, int)
        for _, ids in [*made, *made[at : at + missing]]:
            truth[ids] += each
        assert account.spent().counted >= truth.max()
        assert account.spent().releases == each * (60 + missing)
        tightest.append(account.spent().counted - truth.max())
    # from one more than a pass's for each client; all of them charged would be as many as are missing
    assert min(tightest) <= each * (CLIENTS + 1)


@pytest.mark.parametrize("kind", PLANS)
def test_a_checkpoint_after_the_loss_has_the_charge_and_one_before_has_not(kind):
    def counts(account):
        spent = account.spent()
        return spent.releases, spent.counted, spent.missing

    ids = np.arange(BATCH)
    account = PlanFilter(PLANS[kind], missing=4)
    account.charge(0, ids, 1)
    again = PlanFilter(PLANS[kind], missing=4)
    again.restore(account.state(), lost=False)
    assert counts(again) == counts(account)
    more = PlanFilter(PLANS[kind], missing=6)  # a second loss, after that checkpoint
    more.restore(account.state(), lost=False)
    fresh = PlanFilter(PLANS[kind], missing=6)
    fresh.charge(0, ids, 1)
    assert counts(more)[0] == counts(fresh)[0]
    assert counts(more)[1] >= counts(account)[1]
    assert more.spent().missing == 6


def test_all_are_charged_where_a_release_is_of_all_rows():
    full = replace(INTEGERS, batch=ROWS)
    account = PlanFilter(full, missing=5)
    for _ in range(3):
        account.charge(0, np.arange(ROWS), 1)
    assert account.spent().counted == 8


@pytest.mark.parametrize("kind", ["mean", "integers"])
def test_a_budget_bounds_what_was_lost_too(kind):
    def until_refused(missing):
        account, made = PlanFilter(PLANS[kind], limit, missing=missing), 0
        upload = Upload(0, 0, Embeddings(np.arange(BATCH, dtype=np.int32), np.zeros((BATCH, 2), np.float32)))
        while account.refuses(upload) is None:
            account.charge(0, upload.ids, PLANS[kind].per_upload)
            made += 1
        return made, account.spent().counted

    probe = PlanFilter(PLANS[kind], missing=0)
    for _ in range(20):
        loss = probe.charge(0, np.arange(BATCH), PLANS[kind].per_upload)
    limit = loss.epsilon("client")
    whole, after = until_refused(0), until_refused(4)
    assert (
        probe.refuses(
            Upload(0, 0, Embeddings(np.arange(BATCH, dtype=np.int32), np.zeros((BATCH, 2), np.float32)))
        )
        is None
    )
    assert whole == (20, 20 * (2 if kind == "mean" else 1))
    assert after == (16, whole[1])


def test_a_budget_against_outsiders_is_one_against_clients_where_coins_hide_nobody():
    poisson = replace(MEAN, batches="poisson")
    upload = Upload(0, 0, Embeddings(np.arange(BATCH, dtype=np.int32), np.zeros((BATCH, 2), np.float32)))

    def made(adversary, missing):
        account = PlanFilter(poisson, 2.0, adversary, missing=missing)
        count = 0
        while count < 1000 and account.refuses(upload) is None:
            account.charge(0, upload.ids, MEAN.per_upload)
            count += 1
        return count

    assert made("external", 0) > made("client", 0) > 4
    assert made("external", 4) == made("client", 4)
    assert made("paper", 4) == made("paper", 0) - 4 > made("client", 4), "whose claim has no coins"


def test_the_largest_batch_is_counted_and_may_be_all_rows_where_it_was_lost():
    """With hidden state a bound hangs on it."""
    poisson = replace(MEAN, batches="poisson")
    account = PlanFilter(poisson)
    for size, largest in ((3, 3), (7, 7), (7, 7), (5, 7)):
        account.charge(0, np.arange(size), 2)
        assert account.spent().largest_batch == largest
    again = PlanFilter(poisson)
    again.restore(account.state(), lost=False)
    again.charge(0, np.arange(2), 2)
    assert again.spent().largest_batch == 7
    for setting, largest in ((poisson, ROWS), (MEAN, 7)):  # of equal batches none was larger
        lost = PlanFilter(setting, missing=1)
        lost.restore(account.state(), lost=False)
        assert lost.spent().largest_batch == largest
    final = replace(poisson, server="sgd").as_made(again.spent(), done=True)
    assert final.load == 7 / BATCH


def test_users_of_all_rounds_that_were_lost_are_charged():
    account = PlanFilter(USERS, missing=4)
    assert account.spent().releases == 4
    assert account.spent().remade == 0, (
        "coins, which hide nobody then, were not drawn on by a kill of this machine"
    )
    account.restore({"releases": 9}, lost=True)
    assert account.spent().releases == 9 + 4 + 1
    assert account.spent().remade == 1


def test_coins_hide_nobody_whose_releases_were_made_twice_on_the_same_rows():
    poisson = replace(INTEGERS, batches="poisson", adversary="external")
    account = PlanFilter(poisson, missing=3)
    account.charge(0, np.arange(BATCH), 1)
    final = poisson.as_made(account.spent(), done=True)
    assert "made again on the same rows" in final.premise
    assert final.external_epsilon() == epsilon_of(final.clients_mu(4), final.delta)
    assert not poisson.as_made(PlanFilter(poisson).spent(), done=True).premise
    users = replace(USERS, sampling=0.5)
    ids = np.arange(1)
    hidden, exposed = (PlanFilter(users, missing=missing) for missing in (0, 1))
    for account, kind in ((hidden, users), (exposed, replace(users, exposed="made twice"))):
        made = replace(kind, releases=account.spent().releases + 1, counted=account.spent().counted + 1)
        assert account.charge(0, ids, 1).epsilon("external") == pytest.approx(user_epsilon(made))


def test_without_an_account_the_plan_bounds_nothing_that_was_lost():
    assert INTEGERS.as_made(None, done=True) is not None
    assert INTEGERS.as_made(None, done=True, beyond_plan=True) is None


def test_sampled_records_that_the_same_coins_draw_again_are_refused():
    with pytest.raises(NotRecomputable, match="start a new run"):
        PlanFilter(replace(USERS, kind="group", rate=0.1, steps=3), missing=1)
    assert PlanFilter(replace(USERS, kind="group", steps=3), missing=1).spent().releases == 1
