"""What the account of every kind of release promises: one table of kinds, the same tests for
each.
"""

import itertools
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from raydpzv.errors import InputError, RunError, SpecError
from raydpzv.keys import Key
from raydpzv.privacy.integers import IntegerReleasePlan
from raydpzv.privacy.mean import MeanReleasePlan
from raydpzv.privacy.memoized import MemoizedReleasePlan
from raydpzv.privacy.release import PrivacyLoss, ReleaseAccount, ReleaseEvent, ReleasePlan
from raydpzv.privacy.rows import RowReleasePlan
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.sim.privacy_filter import check_first_release
from tests.helpers.accounts import event

ROWS, CLIENTS = 60, 3
MEAN = MeanReleasePlan(
    rows=ROWS,
    batch=6,
    releases=40,
    clip=1.0,
    sigma=1.5,
    delta=1e-5,
    server="frozen",
    per_upload=2,
    clients=CLIENTS,
)
DOWN = RowReleasePlan(
    on="gradient",
    rows=ROWS,
    batch=6,
    updates=20,
    per_upload=2,
    clip=1.0,
    sigma=9.0,
    delta=1e-5,
    shares=(1 / 3,) * 3,
    hidden=True,
    width=2,
)
USERS = UserReleasePlan(
    users=ROWS, silos=CLIENTS, releases=20, clip=1.0, delta=1e-5, multiplier=5.0
)
PLANS: dict[str, ReleasePlan] = {
    "mean": MEAN,
    "mean, hidden state": replace(MEAN, server="sgd", sigma=20.0),
    "rows, gradient": DOWN,
    "rows, sampled": replace(DOWN, calibrated_by="sampled"),
    "rows, embedding": replace(DOWN, on="embedding", hidden=False),
    "integers": IntegerReleasePlan(
        rows=ROWS, batch=6, updates=20, noise_multiplier=5.0, clip=0.1, delta=1e-3, clients=CLIENTS
    ),
    "users": USERS,
    "users, drawn": replace(USERS, sampling=0.5),
    "users, asynchronous": replace(USERS, asynchronous=True),
}
MEMOIZED = MemoizedReleasePlan(
    rows=ROWS, clients=CLIENTS, width=2, clip=1.0, delta=1e-4, noise_multiplier=4.0
)
EVERY = pytest.mark.parametrize("kind", PLANS)


def events(plan: ReleasePlan, count: int) -> list[ReleaseEvent]:
    """Releases on batches of six, to or by any client."""
    generator = (Key(6) / "events").generator()
    rounds = (
        itertools.cycle([0])
        if plan.units[1] == "users"
        else iter(generator.integers(0, CLIENTS, count))
    )
    batches = [generator.choice(ROWS, 6, replace=False) for _ in range(count)]
    return [event(ids, plan.per_upload, int(next(rounds))) for ids in batches]


def charge(account: ReleaseAccount, releases: list[ReleaseEvent]) -> PrivacyLoss:
    return [account.charge(release) for release in releases][-1]


@EVERY
def test_an_account_resumes_where_another_was_and_pickles_whole(kind: str) -> None:
    releases = events(PLANS[kind], 8)
    whole, first, second = (PLANS[kind].account() for _ in range(3))
    loss = charge(whole, releases)
    charge(first, releases[:5])
    second.restore(pickle.loads(pickle.dumps(first.state())))
    for account in (second, pickle.loads(pickle.dumps(first))):
        assert str(charge(account, releases[5:])) == str(loss)
        assert account.spent() == whole.spent()
        assert str(account.state()) == str(whole.state())


@pytest.mark.parametrize(
    "kind", [kind for kind in PLANS if kind not in ("users", "users, asynchronous")]
)
@pytest.mark.parametrize("ids", [[5, 6, 5], [3, ROWS], [-1, 4]])
def test_rows_that_would_be_miscounted_are_refused(kind: str, ids: list[int]) -> None:
    account = PLANS[kind].account()
    with pytest.raises(InputError):
        account.charge(event(ids))
    assert (account.spent().releases, account.spent().counted) == (0, 0)


@pytest.mark.parametrize("lacking", ["unstated", "fitted"])
@pytest.mark.parametrize("kind", [kind for kind in PLANS if kind != "integers"])
def test_an_account_proves_nothing_where_a_premise_is_missing(kind: str, lacking: str) -> None:
    plan = PLANS[kind]
    short = replace(plan, **{lacking: ("your own model may mix the records of a batch",)})
    if lacking == "unstated" or plan.premises() != short.premises():
        loss = short.account().charge(short.first_event())
        assert loss.epsilon("client") == math.inf
        assert not any(math.isfinite(loss.epsilon(whose)) for whose in ("external", "server"))


STATED = [
    (kind, adversary)
    for kind, plan in PLANS.items()
    for adversary in ("paper", "client", "external", "server")
    if math.isfinite(plan.account().charge(plan.first_event()).epsilon(adversary))
]
"""Whose ε each running account states."""


def test_the_running_accounts_state_whom_they_are_for() -> None:
    stated = {kind: {who for name, who in STATED if name == kind} for kind in PLANS}
    assert (
        stated["mean"]
        == stated["mean, hidden state"]
        == stated["rows, gradient"]
        == {"paper", "client"}
    )
    assert (stated["integers"], stated["rows, embedding"]) == ({"client"}, {"paper"})
    assert stated["users"] == stated["users, drawn"] == {"client", "external", "server"}


@pytest.mark.parametrize(("kind", "adversary"), STATED)
def test_a_budget_is_foreseen_exactly(kind: str, adversary: str) -> None:
    """A limit that releases meet to the last bit lets them all pass, and not one more."""
    releases = [PLANS[kind].first_event()] * 6
    limit = charge(PLANS[kind].account(), releases[:5]).epsilon(adversary)
    account = PLANS[kind].account()
    for release in releases[:5]:
        assert not account.would_exceed(release, limit, adversary)
        account.charge(release)
    assert account.would_exceed(releases[5], limit, adversary)
    assert account.spent().releases == 5 * PLANS[kind].per_upload, "asking counts nothing"


@EVERY
def test_the_table_of_a_finished_run_states_what_its_account_charged(kind: str) -> None:
    plan = PLANS[kind]
    account = plan.account()
    loss = charge(account, events(plan, 12))
    made = plan.as_made(account.spent(), done=True)
    relation = "add_remove" if plan.units[1] == "users" else "replace"
    stated = {c.adversary: c.epsilon for c in made.claims() if c.relation == relation}
    for adversary in (who for name, who in STATED if name == kind):
        assert loss.epsilon(adversary) == pytest.approx(stated[adversary], rel=1e-9), adversary


@EVERY
def test_a_budget_that_not_one_release_fits_into_is_refused_before_anything_runs(kind: str) -> None:
    plan = PLANS[kind]
    adversary = "paper" if kind == "rows, embedding" else plan.adversary
    check_first_release(plan, None)
    check_first_release(plan, 1e6, adversary)
    with pytest.raises(
        SpecError, match=r"budget.epsilon: not one (release|round) fits into ε=1e-09.*δ="
    ):
        check_first_release(plan, 1e-9, adversary)


def test_rows_that_are_noised_once_are_charged_once_and_resume_from_no_checkpoint() -> None:
    account = MEMOIZED.account()
    loss = account.charge(event(range(9), client=1))
    assert loss.epsilon("client") == pytest.approx(MEMOIZED.epsilon)
    account.charge(event(range(9), client=2))
    with pytest.raises(RunError, match="client 1 noised a row a second time"):
        account.charge(event([3], client=1))
    with pytest.raises(RunError, match="start a new run"):
        MEMOIZED.account().restore(account.state())
    assert np.isfinite(MEMOIZED.epsilon)
