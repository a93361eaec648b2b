import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given
from hypothesis import strategies as st

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.privacy import gdp
from raydpzv.privacy.gdp import delta_of, epsilon_of, epsilons_of, guess_of, mu_of


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """DPZV journal Eq. 21 as printed, in 80 digits."""
    with mpmath.workdps(80):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


@pytest.mark.parametrize("mu", [1e-8, 1e-4, 9.9e-4, 1.1e-3, 0.05, 1.0, 5.0, 20.0, 100.0])
@pytest.mark.parametrize("t", [-40.0, -5.1, -4.9, 0.0, 1.0, 4.0, 15.0])
def test_delta_agrees_with_the_printed_formula_in_80_digits(mu: float, t: float) -> None:
    epsilon = max(mu * (t + mu / 2), 0.0)
    assert delta_of(epsilon, mu) == pytest.approx(float(exact_delta(epsilon, mu)), rel=1e-9, abs=0)


@pytest.mark.parametrize("mu", [0.2, 1.0, 7.0, 60.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
def test_epsilon_agrees_with_dp_accountings_closed_form(mu: float, delta: float) -> None:
    assert epsilon_of(mu, delta) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_epsilon_agrees_with_the_privacy_loss_distribution(mu: float) -> None:
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    assert epsilon_of(mu, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_huge_mu_follows_its_asymptote(delta: float) -> None:
    """For large μ the second term vanishes: ε = μ²/2 + μ z, z the (1 − δ)-quantile."""
    with mpmath.workdps(30):
        z = float(mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(-x) / delta), 4))
    mu = 1e6
    assert epsilon_of(mu, delta) - mu * mu / 2 == pytest.approx(mu * z, rel=1e-6)


def test_nothing_is_spent_below_delta() -> None:
    assert epsilon_of(0.0, 1e-5) == epsilon_of(1e-9, 1e-5) == 0.0
    assert epsilon_of(1e-4, 1e-5) > 0.0  # control: δ(0) = 4e-5 there


def test_limits_are_infinite_or_zero_not_nan() -> None:
    assert epsilon_of(math.inf, 1e-5) == epsilon_of(1.0, 0.0) == math.inf
    assert delta_of(1.0, math.inf) == 1.0
    assert delta_of(1.0, 0.0) == mu_of(1.0, 0.0) == 0.0
    assert mu_of(1.0, 1.0) == math.inf


@given(mu=st.floats(1e-3, 1e5), exponent=st.floats(-12, -2))
def test_round_trips(mu: float, exponent: float) -> None:
    delta = 10.0**exponent
    epsilon = epsilon_of(mu, delta)
    if epsilon > 1e-6 * mu:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        if epsilon < 1e4:
            assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-5)


@given(low=st.floats(1e-6, 1e5), factor=st.floats(1.0, 10.0), exponent=st.floats(-12, -1))
def test_more_mu_never_costs_less(low: float, factor: float, exponent: float) -> None:
    delta = 10.0**exponent
    assert epsilon_of(low * factor, delta) >= epsilon_of(low, delta) * (1 - 1e-9)


@pytest.mark.parametrize(
    "call", [lambda: epsilon_of(-1, 0.1), lambda: mu_of(1, 1.5), lambda: delta_of(math.nan, 1)]
)
def test_nonsense_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize(("mu", "share"), [(0.0, 0.5), (0.5, 0.5987), (1.0, 0.6915), (2.0, 0.8413)])
def test_a_guess_is_the_normal_tables_at_half_of_mu(mu: float, share: float) -> None:
    assert guess_of(mu) == pytest.approx(share, abs=5e-5)


# ε of many μ at once against one at a time, bit for bit.

EDGES = [
    0.0,
    math.inf,
    5e-324,
    1e-300,
    1e-12,
    gdp._SMALL,
    np.nextafter(gdp._SMALL, 0),
    10.0,
    1e5,
    1e300,
]
"""Among them the ends of what is expanded, and of what overflows."""
DELTAS = [0.0, 1e-300, 1e-12, 1e-5, 1e-3, 0.1, 0.5, 0.9, 1.0]


def bits(values):
    return np.asarray(values, np.float64).view(np.uint64).tolist()


@pytest.mark.parametrize("delta", DELTAS)
def test_bits_are_those_of_one_at_a_time(delta):
    draws = np.exp(Key(3).generator().uniform(-12, 8, 400))
    mus = np.concatenate([EDGES, draws, 8 * np.sqrt(np.arange(1, 200)) / (1437 * 0.3), draws[:50]])
    assert bits(epsilons_of(mus, delta)) == bits([epsilon_of(mu, delta) for mu in mus.tolist()])


def test_nan_stays_nan_shapes_stay_and_what_is_refused_alone_is_refused_here():
    mus = np.array([[0.5, math.nan], [math.inf, 0.5]])
    found = epsilons_of(mus, 1e-3)
    assert found.shape == (2, 2)
    assert found[0, 0] == found[1, 1] == epsilon_of(0.5, 1e-3)
    assert math.isnan(found[0, 1])
    assert found[1, 0] == math.inf
    assert epsilons_of([], 1e-3).shape == (0,)
    with pytest.raises(InputError, match="mu"):
        epsilons_of([-1.0], 1e-3)
    with pytest.raises(InputError, match="delta"):
        epsilons_of(np.arange(1.0, 100.0), 2.0)


@pytest.mark.parametrize("share", [0.51, 0.75, 0.99])
def test_an_epsilon_is_zero_only_where_delta_alone_is_enough(share: float) -> None:
    delta = delta_of(0.0, 1.0)
    found = epsilon_of(1.0, share * delta)
    assert delta_of(found, 1.0) == pytest.approx(share * delta, rel=1e-9)
    assert found > 0
    assert epsilon_of(1.0, delta) == 0
