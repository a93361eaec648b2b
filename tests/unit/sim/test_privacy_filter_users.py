"""The account of users in a run: one charge a round whatever the silos, second sums, lost releases,
the budget.
"""

import math
from typing import Any

import numpy as np
import pytest

from raydpzv.methods.roles import Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.privacy.pld import poisson_epsilon
from raydpzv.privacy.release import Spent
from raydpzv.privacy.user_mechanism import ADVERSARIES, user_epsilon
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.privacy_filter import PlanFilter
from raydpzv.wire.messages import Start

RECEIPT = Receipt("discrete gaussian", "system", 1.0, 2.0, 1.0, 1, 3, 0)


def setting(**changed: Any) -> UserReleasePlan:
    usual: dict[str, Any] = {
        "users": 4,
        "silos": 2,
        "releases": 9,
        "clip": 1.0,
        "delta": 1e-5,
        "multiplier": 5.0,
    }
    return UserReleasePlan(**usual | changed)


def upload(silo: int, drawn: list[int] | None = None) -> Upload:
    ids = None if drawn is None else np.array(drawn)
    return Upload(silo, 0, Start(), releases=(Release(0, math.nan, RECEIPT, ids=ids),))


def served(account: PlanFilter, *uploads: Upload) -> None:
    for made in uploads:
        assert account.refuses(made) is None
        ids = made.releases[0].ids
        account.charge(made.client, made.ids if ids is None else ids, 1)


def spent_by(account: PlanFilter) -> Spent:
    spent = account.spent()
    assert spent is not None
    return spent


def releases(account: PlanFilter) -> int:
    return spent_by(account).releases


def test_a_round_is_one_release_and_a_silos_second_sum_another() -> None:
    account = PlanFilter(setting())
    served(account, upload(0), upload(1))
    assert releases(account) == 1
    served(account, upload(1), upload(0))
    assert releases(account) == 2
    served(account, upload(0), upload(0))
    assert releases(account) == 4


def test_without_rounds_every_silos_sum_is_a_release() -> None:
    account = PlanFilter(setting(asynchronous=True))
    served(account, upload(0), upload(0), upload(1))
    assert releases(account) == 3


def test_losses_are_those_of_the_accountant() -> None:
    account = PlanFilter(setting())
    account.charge(0, np.zeros(0, int), 1)
    loss = account.charge(1, np.zeros(0, int), 1)
    one = setting(releases=1)
    found = loss.user_epsilons()
    assert found == pytest.approx(
        [user_epsilon(one, who) for who in ("external", "client", "server")]
    )
    assert loss.epsilons()[1] == pytest.approx(user_epsilon(one, "client"))


@pytest.mark.parametrize("changed", [{"noise": "seeded"}, {"fitted": ("scaled",)}])
def test_what_proves_nothing_states_infinity(changed: dict[str, Any]) -> None:
    account = PlanFilter(setting(**changed))
    assert account.charge(0, np.zeros(0, int), 1).user_epsilons() == (math.inf, math.inf, math.inf)


def test_the_budget_ends_before_the_round_that_would_pass_it() -> None:
    limit = user_epsilon(setting(releases=2))
    account = PlanFilter(setting(), limit)
    served(account, upload(0), upload(1), upload(0), upload(1))
    assert "the next round would exceed the budget" in str(account.refuses(upload(0)))
    assert account.refuses(Upload(0, 0, Start())) is None, "it releases nothing"
    account = PlanFilter(setting(asynchronous=True), user_epsilon(setting(releases=1)) / 2)
    assert "the next release would exceed the budget" in str(account.refuses(upload(0)))


def test_participation_is_counted_and_all_are_drawn_where_nothing_says_who() -> None:
    account = PlanFilter(setting(sampling=0.5))
    served(account, upload(0, [1]), upload(1, [1]), upload(0, [2]), upload(1, [2]))
    spent = spent_by(account)
    assert (spent.releases, spent.counted) == (2, 1)
    served(account, upload(0), upload(1))
    spent = spent_by(account)
    assert spent.counted == 2
    final = setting(sampling=0.5).as_made(spent, done=True)
    assert (final.releases, final.counted, final.exposed) == (3, 2, "")
    broken = setting(sampling=0.5).as_made(spent, done=False)
    assert broken.exposed


@pytest.mark.parametrize(("aggregation", "made"), [("plain", 2), ("masked", 1)])
def test_a_silos_second_sum_of_an_attempt_is_another_release_where_it_is_seen(
    aggregation: str, made: int
) -> None:
    account, attempt = PlanFilter(setting(aggregation=aggregation)), Attempt(0, 0, (0, 1))
    for _ in range(2):
        loss = account.charge(0, np.zeros(0, int), 1, attempt)
    assert releases(account) == made
    assert loss.user_epsilons() == pytest.approx(
        [user_epsilon(setting(releases=made, aggregation=aggregation), who) for who in ADVERSARIES]
    )


def test_who_was_drawn_for_an_attempt_is_asked_where_silos_cannot_say_it() -> None:
    drawn = {3: [0, 1], 4: [1], 5: [1, 2]}
    account = PlanFilter(setting(sampling=0.5), sample=lambda round: np.array(drawn[round]))
    for round in drawn:
        account.charge(0, np.zeros(0, int), 1, Attempt(round, 0, (0, 1)))
    spent = spent_by(account)
    assert (spent.releases, spent.counted) == (3, 3), "user 1 each time, and not all"
    account = PlanFilter(setting(sampling=0.5), sample=lambda round: np.array([round % 4]))
    for round in range(4):
        account.charge(0, np.zeros(0, int), 1, Attempt(round, 0, (0, 1)))
    spent = spent_by(account)
    assert (spent.releases, spent.counted) == (4, 1)
    served(account, upload(0, [3]))  # what is of no attempt says it


def test_an_account_continues_with_what_was_spent_and_what_may_be_lost() -> None:
    account = PlanFilter(setting(sampling=0.5))
    served(account, upload(0, [1]), upload(1, [1]))
    for lost in (False, True):
        again = PlanFilter(setting(sampling=0.5))
        again.restore(account.state(), lost=lost)
        served(again, upload(0, [1]), upload(1, [1]))
        spent = spent_by(again)
        assert (spent.releases, spent.counted) == (2 + lost, 2 + lost)
    assert releases(PlanFilter(setting(), lost=1)) == 1


def test_without_rounds_a_sum_of_each_silo_may_be_lost_beside_those_of_other_segments() -> None:
    account = PlanFilter(setting(asynchronous=True, silos=3), lost=6)
    account.restore({"releases": 5}, lost=True)
    assert releases(account) == 5 + 6 + 3


def test_a_second_segment_knows_of_the_fewest_silos_that_an_attempt_of_the_first_had() -> None:
    plan = setting(silos=4, fewest=2, aggregation="masked")
    first = PlanFilter(plan)
    first.charge(0, np.zeros(0, int), 1, Attempt(0, 0, (0, 1, 2)))
    assert first.state()["fewest"] == 3
    again = PlanFilter(plan)
    again.restore(first.state(), lost=False)
    spent = spent_by(again)
    assert spent.fewest == 3
    again.restore(first.state(), lost=True)
    spent = spent_by(again)
    assert spent.fewest == 2, "of what was lost nobody knows how many took part"
    first.charge(0, np.zeros(0, int), 1, Attempt(1, 0, (0,)))
    again.restore(first.state(), lost=True)
    spent = spent_by(again)
    assert spent.fewest == 1, "of what is on record one is known"


@pytest.mark.parametrize("kind", ["sum", "group"])
def test_a_round_that_was_lost_and_made_again_hides_nobody_by_its_coins(kind: str) -> None:
    sampled = {"sampling": 0.1} if kind == "sum" else {"kind": "group", "rate": 0.1}
    plan = setting(releases=20, **sampled)
    account = PlanFilter(plan)
    served(account, upload(0, [1]), upload(1, [1]))
    spending = {}
    for lost, remade in ((False, 0), (True, 1)):
        again = PlanFilter(plan)
        again.restore(account.state(), lost=lost)
        more = PlanFilter(plan)
        more.restore(again.state(), lost=False)
        served(more, upload(0, [1]), upload(1, [1]))
        spent = spent_by(more)
        assert (spent.releases, spent.remade) == (2 + lost, remade), (
            "a second interruption forgets none"
        )
        final = plan.as_made(spent, done=True)
        assert final.remade == remade
        (note,) = (
            c.note for c in final.table() if (c.adversary, c.relation) == ("external", "add_remove")
        )
        assert ("1 of the rounds were lost by a kill" in note) == lost
        spending[lost] = more.charge(0, np.array([1]), 1).external
    assert spending[False] < spending[True], "what is said while the run goes on, too"
    assert PlanFilter(plan, lost=2).spent() == Spent(2, 2, 0, remade=2)


def test_two_releases_on_one_draw_are_charged_at_least_what_they_cost() -> None:
    """Second opinion: of the pair there is one release with noise less by the square root of 2, on
    one draw.
    """
    plan = {"multiplier": 0.7, "sampling": 0.1}
    charged = user_epsilon(setting(releases=2, remade=1, **plan))
    apart = user_epsilon(setting(releases=2, **plan))
    exact = poisson_epsilon(
        noise_multiplier=0.7 / math.sqrt(2), rate=0.1, releases=1, delta=1e-5, relation="add_remove"
    )
    assert apart < exact <= charged, "as two draws they cost too little"
    assert charged == pytest.approx(user_epsilon(setting(releases=2, multiplier=0.7)))
    many = user_epsilon(setting(releases=500, remade=1, multiplier=5.0, sampling=0.1))
    assert user_epsilon(setting(releases=500, multiplier=5.0, sampling=0.1)) < many
    assert many < user_epsilon(setting(releases=500, multiplier=5.0)), "the others' coins count"
    for adversary in ("client", "server"):
        known = setting(releases=9, multiplier=5.0, sampling=0.1)
        assert user_epsilon(known, adversary) == user_epsilon(
            setting(releases=9, remade=1, multiplier=5.0, sampling=0.1), adversary
        )
