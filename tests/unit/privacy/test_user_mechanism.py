"""ε of one user against each adversary: the specification's numbers, closed forms, calibration, the
running account.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raydpzv.errors import SpecError
from raydpzv.privacy import group_accountant
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.pld import poisson_epsilon
from raydpzv.privacy.user_mechanism import ADVERSARIES, user_epsilon, user_epsilon_rdp
from raydpzv.privacy.users import UserReleasePlan
from tests.helpers.accounts import charged, event


def setting(**changed: Any) -> UserReleasePlan:
    usual: dict[str, Any] = {"users": 1000, "silos": 5, "releases": 100, "clip": 0.1, "delta": 1e-5}
    return UserReleasePlan(**usual | {"multiplier": 5.0, "weights": "records"} | changed)


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coarser grid for mixtures of Gaussians: what agrees on it agrees on the usual one, which is
    slow.
    """
    monkeypatch.setattr(group_accountant, "_POINTS", 2000)


NAIVE = {"kind": "naive", "weights": "uniform"}


@pytest.mark.parametrize(
    ("epsilon", "adversary", "changed"),
    [
        (9.997, "external", {}),
        (6.59, "external", {"sampling": 0.7}),
        (4.49, "external", {"sampling": 0.5}),
        (2.53, "external", {"sampling": 0.3}),
        (0.758, "external", {"sampling": 0.1}),
        (28.37, "client", {}),
        (32.18, "client", {"silos": 3}),
        (8.72, "client", {"weights": "uniform"}),
        (9.997, "server", {"weights": "uniform"}),
        (28.4, "server", {}),
        (9.997, "server", {"aggregation": "masked"}),
        (6.17, "server", {"aggregation": "masked", "sampling": 0.3, "counted": 45}),
        (24.4, "external", NAIVE),
        (9.997, "external", {"weights": "uniform", "asynchronous": True, "releases": 500}),
    ],
)
def test_the_specifications_numbers(
    epsilon: float, adversary: str, changed: dict[str, Any]
) -> None:
    assert user_epsilon(setting(**changed), adversary) == pytest.approx(epsilon, rel=2e-3)


def test_renyis_number_of_the_paper() -> None:
    assert user_epsilon_rdp(setting()) == pytest.approx(10.73, rel=1e-3)


def by_hand(silos: int, weights: np.ndarray, seen: str) -> float:
    """z where one user's vectors have norm C, along one direction: noise and move of what an
    adversary sees, S = A.
    """
    share = 5.0**2 / silos  # variance of a silo's noise, in C²
    if seen == "silos":  # side by side: the moves are orthogonal coordinates of equal noise
        return math.sqrt(share) / float(np.sqrt((weights**2).sum()))
    others = weights[
        1:
    ]  # a silo knows its own sum and noise, and of its own sum how its weight has grown
    grown = float(others.sum()) if seen == "others, weighed" else 0.0
    return math.sqrt(share * (silos - 1)) / (float(others.sum()) + grown)


def test_multipliers_are_those_of_the_worst_weights() -> None:
    for silos in (2, 5, 20):
        uniform = np.full(silos, 1 / silos)
        one_silo, not_mine = np.eye(silos)[0], np.eye(silos)[-1]
        even, weighed = (setting(silos=silos, weights=w) for w in ("uniform", "records"))
        for found, expected in (
            (even.noise_multiplier("client", "add_remove"), by_hand(silos, uniform, "others")),
            (
                weighed.noise_multiplier("client", "add_remove"),
                by_hand(silos, not_mine, "others, weighed"),
            ),
            (even.noise_multiplier("server", "add_remove"), by_hand(silos, uniform, "silos")),
            (weighed.noise_multiplier("server", "add_remove"), by_hand(silos, one_silo, "silos")),
        ):
            assert found == pytest.approx(expected)


def seen_by_one_silo(taking_part: int, *, among_them: bool, weighed: bool, silos: int) -> float:
    """z of one release in which some silos take part, for one silo that does or does not: brute
    force over weights.
    """
    others = taking_part - among_them
    noise = 5.0 * math.sqrt(others / taking_part)
    worst = (
        [np.eye(others)[0], np.full(others, 1 / others)]
        if weighed
        else [np.full(others, 1 / silos)]
    )
    grown = 2 if weighed else 1  # the silo's own weight grows by what the others' was
    return noise / max(grown * float(weights.sum()) for weights in worst)


@pytest.mark.parametrize("weights", ["records", "uniform"])
@pytest.mark.parametrize("fewest", [2, 3, 5])
def test_one_silos_row_holds_for_every_release_whoever_takes_part(
    weights: str, fewest: int
) -> None:
    releases = [
        seen_by_one_silo(a, among_them=inside, weighed=weights == "records", silos=5)
        for a in range(fewest, 6)
        for inside in ((True, False) if a < 5 else (True,))
    ]
    stated = setting(weights=weights, fewest=fewest).noise_multiplier("client", "add_remove")
    assert stated == pytest.approx(min(releases))
    if weights == "records" and fewest < 5:  # control: as if all silos always took part
        assert setting(weights=weights).noise_multiplier("client", "add_remove") > 1.09 * min(
            releases
        )
    for who in ("external", "server"):
        assert user_epsilon(setting(weights=weights, fewest=fewest), who) == user_epsilon(
            setting(weights=weights), who
        )


@pytest.mark.parametrize("weights", ["records", "uniform"])
def test_the_servers_row_of_sums_in_the_open_holds_where_fewer_take_part(weights: str) -> None:
    stated = setting(weights=weights).noise_multiplier("server", "add_remove")
    for a in range(1, 6):  # each silo's noise is a share of A; uniform weights are of S
        moves = np.eye(a)[0] if weights == "records" else np.full(a, 1 / 5)
        assert 5.0 / math.sqrt(a) / float(np.sqrt((moves**2).sum())) >= stated * (1 - 1e-12)


def test_replacing_moves_twice_as_far_but_an_update_no_further_than_through_its_ball() -> None:
    assert user_epsilon(setting(), relation="replace") == pytest.approx(
        epsilon_of(2 * math.sqrt(100) / 5, 1e-5)
    )
    assert user_epsilon(setting(**NAIVE), relation="replace") == user_epsilon(setting(**NAIVE))
    silo = setting(**NAIVE).noise_multiplier("client", "add_remove")
    assert silo == pytest.approx(2.5 * math.sqrt(5 / 4))


def test_the_only_silo_sees_nothing_of_others() -> None:
    assert user_epsilon(setting(silos=1), "client") == 0
    with pytest.raises(SpecError, match="against"):
        setting(silos=1, against="client").with_noise_for(1.0)


@pytest.mark.parametrize(("epsilon", "mu"), [(1, 0.2681), (3, 0.7191), (8, 1.666)])
def test_closed_form_calibration(epsilon: float, mu: float) -> None:
    assert setting().with_noise_for(epsilon).multiplier == pytest.approx(10 / mu, rel=3e-4)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("epsilon", [2.0])
@pytest.mark.parametrize(
    "changed",
    [
        {"sampling": 0.05},
        {"sampling": 0.3, "against": "client"},
        {"sampling": 0.3, "against": "client", "aggregation": "private_weights"},
        {"against": "server"},
        NAIVE,
        {"weights": "uniform", "asynchronous": True},
        {"kind": "group", "weights": "uniform", "group": 2, "rate": 0.1, "steps": 10},
        {"kind": "group", "weights": "uniform", "group": 7, "rate": 1.0, "steps": 2},
    ],
)
def test_account_and_calibration_agree(epsilon: float, changed: dict[str, Any]) -> None:
    given = setting(releases=20, **changed)
    found = given.with_noise_for(epsilon)
    assert found.target == epsilon
    spent = user_epsilon(found, given.against)
    assert 0.999 * epsilon < spent <= epsilon * (1 + 1e-9)
    assert user_epsilon(replace(found, multiplier=0.99 * found.multiplier), given.against) > epsilon


def test_coins_that_are_known_hide_nobody() -> None:
    plain = setting(sampling=0.3)
    private = replace(plain, aggregation="private_weights")
    assert [plain.amplified(who) for who in ADVERSARIES] == [True, False, False]
    assert [private.amplified(who) for who in ADVERSARIES] == [True, False, False]
    assert not any(replace(private, exposed="a reason").amplified(who) for who in ADVERSARIES)
    assert user_epsilon(plain, "client") == user_epsilon(replace(plain, sampling=1.0), "client")


def test_an_account_counts_releases_and_how_often_each_user_was_drawn() -> None:
    given = setting(sampling=0.5, users=4)
    account = charged(given.account(), [[0, 1], [1, 2], [1]])
    loss = account.charge(event([3]))
    assert (account.spent().releases, account.spent().counted) == (4, 3)
    known = replace(given, releases=4, counted=3)
    for who in ADVERSARIES:
        assert account.epsilon(who) == user_epsilon(known, who)
        assert loss.epsilon(who) == pytest.approx(user_epsilon(known, who), rel=1e-9)
    again = given.account()
    again.restore(account.state())
    assert again.state() == account.state()
    assert not any(given.account().epsilon(who) for who in ADVERSARIES)


def test_an_account_charges_what_was_lost_as_made_again_on_the_same_coins() -> None:
    everybody = event(range(1000))
    account = charged(setting(sampling=0.1, weights="uniform").account(), [range(1000)] * 20)
    account.charge_remade(1)
    made = setting(sampling=0.1, weights="uniform", releases=21, counted=21)
    assert account.epsilon("external") == user_epsilon(replace(made, remade=1)) > user_epsilon(made)
    limit = user_epsilon(replace(made, releases=22, counted=22, remade=1))
    assert not account.would_exceed(everybody, limit, "external")
    assert account.would_exceed(everybody, 0.99 * limit, "external")


def after(plan: UserReleasePlan, releases: int) -> float:
    account = plan.account()
    account.restore({"releases": releases, "drawn": [releases] * plan.users})
    return account.epsilon("external")


def test_epsilon_of_hidden_coins_is_worked_out_for_some_numbers_of_releases_and_never_below() -> (
    None
):
    given = setting(sampling=0.3)
    exact = user_epsilon(replace(given, releases=40))
    assert exact <= after(given, 40) <= 1.05 * exact


@pytest.mark.parametrize(
    ("changed", "most"), [({}, 32), ({"sampling": 0.3}, 8), ({"kind": "group", "rate": 0.3}, 8)]
)
def test_only_epsilon_that_takes_long_is_worked_out_for_few_numbers_of_releases(
    changed: dict[str, Any], most: int
) -> None:
    found = {after(setting(**changed), releases) for releases in range(64, 96)}
    assert most // 2 < len(found) <= most


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    "changed", [{}, {"sampling": 0.3}, {"kind": "group", "group": 2, "rate": 0.2, "steps": 5}]
)
def test_a_budget_that_was_calibrated_for_is_spent_by_the_planned_releases(
    changed: dict[str, Any],
) -> None:
    given = setting(releases=7, **changed).with_noise_for(1.0)
    account, everybody = given.account(), event(range(1000))
    while not account.would_exceed(everybody, 1.0, "external"):
        account.charge(everybody)
    assert account.spent().releases == 7


def test_a_budget_against_the_server_counts_participation() -> None:
    given = setting(sampling=0.5, aggregation="masked", users=3)
    limit = epsilon_of(math.sqrt(2) / 5, 1e-5)
    account, served = given.account(), 0
    for drawn in ([0], [1], [0], [2], [1], [0]):
        if account.would_exceed(event(drawn), limit, "server"):
            break
        account.charge(event(drawn))
        served += 1
    assert served == 5  # the sixth would draw user 0 a third time
    assert account.epsilon("server") == pytest.approx(limit)


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize(("kind", "coin", "each"), [("sum", "sampling", 1), ("group", "rate", 3)])
def test_releases_that_were_made_twice_are_charged_without_coins_and_the_others_with_theirs(
    relation: str, kind: str, coin: str, each: int
) -> None:
    """Each part by itself at half of δ; never more than all releases without coins."""

    def without_coins(releases: int, delta: float) -> float:
        moved = {"add_remove": 1, "replace": 2}[relation]
        return epsilon_of(moved * math.sqrt(releases * each) / 5.0, delta)

    def with_coins(rate: float, releases: int) -> float:
        steps = releases * each
        return poisson_epsilon(
            noise_multiplier=5.0, rate=rate, releases=steps, delta=5e-6, relation=relation
        )

    def made(rate: float, releases: int, remade: int) -> float:
        counts = {"releases": releases, "remade": remade, "counted": 3}
        plan = setting(kind=kind, weights="uniform", steps=each, **{coin: rate}, **counts)
        return user_epsilon(plan, relation=relation)

    apart = without_coins(4, 5e-6) + with_coins(0.1, 196)
    assert apart < without_coins(200, 1e-5), "the control: coins are worth something"
    assert made(0.1, 200, 2) == pytest.approx(apart)
    assert without_coins(30, 1e-5) < without_coins(10, 5e-6) + with_coins(0.95, 20)
    assert made(0.95, 30, 5) == pytest.approx(without_coins(30, 1e-5)), "not worth half of δ"
    for remade in (3, 5):
        assert made(0.1, 5, remade) == pytest.approx(without_coins(5, 1e-5)), (
            "none has coins of its own"
        )
