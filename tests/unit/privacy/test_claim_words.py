"""How often an attacker is right: Φ(μ/2) of a Gaussian, (1 + δ(0))/2 of any other accountant; and
in words.
"""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from raydpzv.keys import Key
from raydpzv.privacy.claim_words import (
    USEFUL,
    adversary_cell,
    claim_text,
    guess,
    judge,
    stated,
)
from raydpzv.privacy.claims import figure
from raydpzv.privacy.gdp import delta_of, epsilon_of, guess_of, mu_of
from raydpzv.privacy.group_accountant import group_guess
from raydpzv.privacy.pld import poisson_guess
from raydpzv.privacy.user_mechanism import user_guess
from raydpzv.privacy.users import UserReleasePlan
from tests.helpers.synthetic_run import TERMS

USERS: dict[str, Any] = {
    "users": 100,
    "silos": 5,
    "releases": 20,
    "clip": 0.1,
    "delta": 1e-5,
    "multiplier": 5.0,
}


def claim(epsilon: float, adversary: str = "client", **changed: Any) -> dict[str, Any]:
    mine = {
        "adversary": adversary,
        "epsilon": epsilon,
        "accountant": "closed form (GDP)",
        "holds": True,
    }
    return TERMS | mine | {"delta": 1e-5, "guess": guess_of(mu_of(epsilon, 1e-5))} | changed


@pytest.mark.parametrize(
    ("epsilon", "delta", "share"),
    [(1, 1 / 14370, 0.56), (3, 1e-5, 0.64), (7.67, 1e-5, 0.79), (18.25, 1e-5, 0.95)],
)
def test_a_gaussians_guess_is_the_specifications(
    epsilon: float, delta: float, share: float
) -> None:
    assert guess_of(mu_of(epsilon, delta)) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0, 4.0, 40.0])
def test_a_gaussians_guess_is_half_of_one_and_its_total_variation(mu: float) -> None:
    assert guess_of(mu) == pytest.approx((1 + delta_of(0.0, mu)) / 2, rel=1e-12)


def test_no_attack_on_a_gaussian_is_right_more_often_and_the_best_one_is() -> None:
    mu, n = 0.6, 200_000
    noise = (Key(4) / "guesses").generator().standard_normal(2 * n)
    right = [np.mean(np.r_[noise[:n] < cut, noise[n:] + mu >= cut]) for cut in (0.0, mu / 2, mu)]
    slack = 4 / math.sqrt(2 * n) / 2
    assert max(right) <= guess_of(mu) + slack
    assert right[1] >= guess_of(mu) - slack
    assert right[1] > guess_of(0.9 * mu) + slack, "control: a smaller μ would be refuted"


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_sampling_guesses_are_the_plds_delta_at_zero(relation: str) -> None:
    given: dict[str, Any] = {"noise_multiplier": 2.0, "releases": 30, "relation": relation}
    whole = guess_of(math.sqrt(30) * (2 if relation == "replace" else 1) / 2.0)
    assert poisson_guess(rate=1.0, **given) == pytest.approx(whole)
    assert poisson_guess(rate=0.0, **given) == 0.5
    rates = [poisson_guess(rate=rate, **given) for rate in (0.1, 0.5, 0.9)]
    assert 0.5 < rates[0] < rates[1] < rates[2] < whole


def test_one_sampled_release_is_guessed_as_its_density_says() -> None:
    """TV of N(0, z²) and (1 − q) N(0, z²) + q N(1, z²) is q times that of the two Gaussians."""
    for z, q in ((0.8, 0.3), (2.0, 0.05)):
        expected = (1 + q * (2 * norm.cdf(0.5 / z) - 1)) / 2
        found = poisson_guess(noise_multiplier=z, rate=q, releases=1, relation="add_remove")
        assert found == pytest.approx(expected, rel=2e-4)
        assert found >= expected * (1 - 1e-9)


@pytest.mark.slow
def test_one_step_of_a_group_is_guessed_as_its_mixture_says() -> None:
    z, k, q = 3.0, 3, 0.2
    x = np.linspace(-20, 25, 400_001)
    weights = [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
    mixed = sum(w * norm.pdf(x, j, z) for j, w in enumerate(weights))
    apart = 0.5 * np.trapezoid(np.abs(mixed - norm.pdf(x, 0, z)), x)
    found = group_guess(multiplier=z, group=k, rate=q, steps=1)
    assert found == pytest.approx((1 + apart) / 2, rel=2e-4)
    assert group_guess(multiplier=z, group=k, rate=1.0, steps=4) == pytest.approx(
        guess_of(2 * k / z)
    )
    replaced = group_guess(multiplier=z, group=k, rate=q, steps=1, relation="replace")
    assert replaced > found
    # by the triangle inequality TV is at most doubled; the two sums may round apart
    assert replaced == pytest.approx(2 * found - 0.5, rel=1e-12)


def test_releases_made_twice_are_guessed_no_better_than_without_coins() -> None:
    once = UserReleasePlan(**USERS, sampling=0.3)
    twice = UserReleasePlan(**USERS, sampling=0.3, remade=2)
    bare = UserReleasePlan(**USERS)
    assert user_guess(once) < user_guess(twice) <= user_guess(bare)


@pytest.mark.parametrize(
    "changed", [{}, {"sampling": 0.3}, {"weights": "records"}, {"kind": "naive"}]
)
def test_every_proved_row_has_a_guess_that_its_epsilon_permits(changed: dict[str, Any]) -> None:
    for row in UserReleasePlan(**USERS | changed).claims():
        if row.adversary == "paper":
            assert row.guess is None
            continue
        assert row.guess is not None
        # (ε, δ) alone permits (e^ε + δ)/(1 + e^ε); of a Gaussian the guess is less, and gives ε
        # back
        assert row.guess <= (math.exp(row.epsilon) + row.delta) / (1 + math.exp(row.epsilon))
        if row.accountant.startswith("closed form"):
            assert epsilon_of(2 * norm.ppf(row.guess), row.delta) == pytest.approx(
                row.epsilon, rel=1e-6
            )


def test_the_limit_of_a_useful_epsilon_is_met_by_ten_itself() -> None:
    assert judge([claim(USEFUL)]).private
    weak = judge([claim(10.01)])
    assert (weak.private, weak.proved, weak.lead) == (
        False,
        True,
        "NOT PRIVATE: no useful ε is proved.",
    )
    assert "10.01" not in weak.text


def test_who_is_left_out_is_said_first() -> None:
    said = judge([claim(2.0, "external"), claim(40.0)]).headline("Test accuracy 80 %.")
    assert said.startswith(
        "PRIVATE against anyone who sees the final model alone. Test accuracy 80 %. ε = 2"
    )
    assert said.endswith("Against all clients together no useful ε is proved.")


def test_what_the_paper_states_alone_is_not_private() -> None:
    said = judge([claim(1.0, "paper", holds=False)]).headline()
    assert (
        said
        == "NOT PRIVATE: no ε is proved. The paper's accountant states ε = 1, which is not proved."
    )
    assert not judge([claim(1.0, "paper")]).private


def test_a_guess_is_never_rounded_below_its_bound() -> None:
    assert [guess(claim(1.0, guess=p)) for p in (0.502, 0.56066, 0.57401, 0.994, 0.9999, None)] == [
        "50.2 %",
        "56.1 %",
        "57.5 %",
        "99.4 %",
        "100 %",
        "",
    ]


def test_a_number_of_the_papers_accountant_that_holds_names_outsiders() -> None:
    assert [adversary_cell(claim(3.0, "paper", holds=holds)) for holds in (True, False)] == [
        "external",
        "–",
    ]
    assert ", adversary external: " in claim_text(claim(3.0, "paper"))
    assert "adversary" not in claim_text(claim(3.0, "paper", holds=False))


@pytest.mark.parametrize("said", [True, 1, "true", "no", None])
def test_a_record_is_private_only_if_it_says_so_by_the_word_itself(said: Any) -> None:
    """A folder may be from somebody else, or of another program."""
    found = stated({"private": said, "epsilon": [claim(1.0)], "privacy_verdict": ""})
    assert found.private is (said is True)


def test_nothing_is_proved_where_a_reason_stands_against_the_table() -> None:
    assert judge([claim(1.0)]).proved
    assert not judge([claim(1.0)], "a premise is missing").proved


@pytest.mark.parametrize("order", [1, -1])
def test_one_useful_relation_is_enough_to_be_private_against_somebody(order: int) -> None:
    rows = [claim(1.0, relation="add_remove"), claim(50.0, relation="replace")]
    assert judge(rows[::order]).lead == "PRIVATE."


@pytest.mark.parametrize(
    ("value", "said"), [(3e12, "3e+12"), (12345.6, "12,346"), (math.inf, "∞"), (2.0, "2")]
)
def test_an_infinite_number_alone_is_said_to_be_infinite(value: float, said: str) -> None:
    assert figure(value) == said
