"""Bounds on ε from guesses, against sums of fractions, exact mechanisms and coverage."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from raydpzv.audit.lower_bounds import (
    chance_of_guesses,
    epsilon_of_guesses,
    epsilon_of_rates,
    share_bounds,
)
from raydpzv.errors import InputError
from raydpzv.keys import Key


def tail(count: int, share: Fraction, least: int) -> Fraction:
    """P[Binomial >= least], added up exactly."""
    terms = (
        math.comb(count, k) * share**k * (1 - share) ** (count - k)
        for k in range(max(least, 0), count + 1)
    )
    return sum(terms, Fraction(0))


@pytest.mark.parametrize(("right", "count"), [(0, 7), (3, 7), (7, 7), (40, 41)])
def test_an_interval_ends_where_the_exact_tails_are_a_fortieth(right: int, count: int) -> None:
    low, high = share_bounds(right, count)
    if right:
        assert float(tail(count, Fraction(low), right)) == pytest.approx(0.025, rel=1e-9)
    if right < count:
        assert float(1 - tail(count, Fraction(high), right + 1)) == pytest.approx(0.025, rel=1e-9)
    assert (low == 0) == (right == 0)
    assert (high == 1) == (right == count)


@pytest.mark.parametrize(("m", "r", "v"), [(10, 10, 8), (40, 12, 12), (30, 25, 13), (5, 5, 0)])
@pytest.mark.parametrize(("odds", "delta"), [(1, "0"), (3, "1/1000"), (20, "1/50")])
def test_the_chance_of_guesses_is_the_theorems_sum_of_fractions(
    m: int, r: int, v: int, odds: int, delta: str
) -> None:
    share, reached = Fraction(odds, odds + 1), Fraction(0)
    for i in range(1, v + 1):
        reached = max(reached, (tail(r, share, v - i) - tail(r, share, v)) / i)
    exact = min(tail(r, share, v) + 2 * m * Fraction(delta) * reached, Fraction(1))
    found = chance_of_guesses(m, r, v, math.log(odds), float(Fraction(delta)))
    assert found == pytest.approx(float(exact), rel=1e-12)


def test_no_private_mechanism_is_guessed_more_often_than_the_chance_allows() -> None:
    """Exact chances of two (ε, δ)-private mechanisms of m coins, by going through all outcomes.

    Each coin is answered with odds e^ε; one shows every coin with probability δ on its own, the
    other all at once.
    """
    m, epsilon, delta = 6, math.log(2), 0.05
    share = 2 / 3
    apart, together = np.zeros(m + 1), np.zeros(m + 1)
    for outcome in product((0, 1), repeat=m):
        right = sum(outcome)
        alone = delta + (1 - delta) * share
        apart[right] += alone**right * (1 - alone) ** (m - right)
        together[right] += (1 - delta) * share**right * (1 - share) ** (m - right)
    together[m] += delta
    for v in range(m + 1):
        bound = chance_of_guesses(m, m, v, epsilon, delta)
        assert apart[v:].sum() <= bound + 1e-12
        assert together[v:].sum() <= bound + 1e-12
    # a control: without δ's part the bound is below what happens
    assert together[m] > chance_of_guesses(m, m, m, epsilon, 0.0)


def test_without_delta_the_bound_is_exact_for_answered_coins() -> None:
    m, epsilon = 200, 1.0
    share = math.e / (1 + math.e)
    right = (Key(3) / "answers").generator().binomial(m, share, 2000)
    found = [epsilon_of_guesses(m, m, int(v), 0.0) for v in np.unique(right)]
    above = dict(zip(np.unique(right).tolist(), (np.array(found) > epsilon).tolist(), strict=True))
    missed = np.mean([above[v] for v in right.tolist()])
    assert 0.02 < missed < 0.06  # a control: 0 would be a bound that bounds nothing


def test_published_example() -> None:
    """Steinke et al.'s: 600 right of 600 guesses of 1,000 canaries, δ = 1e-5."""
    found = epsilon_of_guesses(1000, 600, 600, 1e-5)
    assert (
        chance_of_guesses(1000, 600, 600, found + 1e-6, 1e-5)
        >= 0.05
        > chance_of_guesses(1000, 600, 600, found - 1e-6, 1e-5)
    )
    assert 4.5 < found < 5.5


def test_rates_bound_randomised_response_from_below() -> None:
    """Right with odds e^1: the bound is below 1 in 95 of 100 audits, and near it with many runs."""
    share = math.e / (1 + math.e)
    generator = (Key(5) / "rates").generator()
    found = [
        epsilon_of_rates(
            int(generator.binomial(300, share)),
            300,
            int(generator.binomial(300, 1 - share)),
            300,
            0.0,
        )
        for _ in range(300)
    ]
    assert np.mean(np.array(found) > 1) <= 0.05
    assert 0.6 < np.median(found) < 1
    assert epsilon_of_rates(300_000, 300_000, 0, 300_000, 1e-6) > 10


def test_chance_shows_nothing() -> None:
    assert epsilon_of_rates(50, 100, 50, 100, 1e-5) == 0
    assert epsilon_of_guesses(100, 100, 50, 1e-5) == 0


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(InputError, match="right <= count"):
        share_bounds(3, 2)
    with pytest.raises(InputError, match="guesses <= canaries"):
        chance_of_guesses(10, 11, 3, 1.0, 0.0)
