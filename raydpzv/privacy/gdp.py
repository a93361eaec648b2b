"""Gaussian differential privacy in closed form: δ(ε, μ), ε(μ, δ), μ(ε, δ).

μ-GDP (Dong, Roth, Su 2022): nobody tells the two runs apart better than N(0, 1) from N(μ, 1). It is
(ε, δ)-DP exactly for δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) (DPZV journal Eq. 21), and releases
compose by adding their μ². Both numbers lie beyond double precision for small δ or large μ, so
nothing here evaluates that difference. With t = ε/μ − μ/2 and Mills' ratio R(x) = (1 − Φ(x)) / φ(x)
it is φ(t) (R(t) − R(t + μ)).

numpy's own exp and log differ from the C library's in the last bit, on some processors and not on
others; so both are taken from `math`. scipy, a third of a CPU second, is imported where it is used:
every actor imports this module, few compute.
"""

# N values of μ

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError

Array = npt.NDArray[np.float64]
_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)
# below this μ the difference of Mills' ratios is expanded; both forms agree to 1e-12 there
_SMALL = 1e-3
_FAR_LEFT = (
    -5.0
)  # left of this t, R(t) overflows in the end; φ(t) R(t) is then Φ(−t), and 1 − 3e-7 or more
_XTOL = 1e-14


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest δ for which μ-GDP gives (ε, δ)-DP (DPZV journal Eq. 21); InputError if
    negative.
    """
    _require("epsilon", epsilon)
    _require("mu", mu)
    if mu == 0 or epsilon == math.inf:
        return 0.0 if mu < math.inf else 1.0
    return 1.0 if mu == math.inf else math.exp(min(_log_delta(epsilon / mu - mu / 2, mu), 0.0))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε for which μ-GDP gives (ε, δ)-DP: 0 where δ alone is enough, ∞ for δ =
    0.
    """
    _require("mu", mu)
    return float(epsilons_of([mu], delta)[0])


def epsilons_of(mus_N: npt.ArrayLike, delta: float) -> Array:
    """Return `epsilon_of` of many μ, float64 in the shape of μ; NaN where μ is NaN."""
    given = np.asarray(mus_N, np.float64)
    _require_delta(delta)
    # rows repeat few values, and a root takes some 50 µs
    distinct, places_N = np.unique(given, return_inverse=True)
    if (distinct < 0).any():
        _require("mu", distinct[0])
    epsilons = np.array([_epsilon(mu, delta) for mu in distinct.tolist()])
    return epsilons[places_N].reshape(given.shape)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ for which μ-GDP gives (ε, δ)-DP: infinity for δ = 1, 0 for δ = 0."""
    _require("epsilon", epsilon)
    _require_delta(delta)
    if delta == 1 or epsilon == math.inf:
        return math.inf
    if delta == 0:
        return 0.0

    from scipy.optimize import brentq

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        return _log_delta(epsilon / mu - mu / 2, mu) - math.log(delta)

    low = high = 0.0
    while excess(high) < 0:
        high += 1.0
    while excess(low) > 0:
        low -= 1.0
    return math.exp(low if low == high else float(brentq(excess, low, high, xtol=_XTOL)))


def guess_of(mu: float) -> float:
    """Return how often an attacker is right at most who must tell two μ-GDP runs apart, each as
    likely: Φ(μ/2).

    It is (1 + TV)/2 of the two output laws, whose total variation TV is δ(0).
    """
    from scipy.special import ndtr

    _require("mu", mu)
    return float(ndtr(mu / 2))


def _epsilon(mu: float, delta: float) -> float:
    """ε for one μ; NaN for NaN."""
    from scipy.optimize import brentq
    from scipy.special import ndtri

    if mu == 0 or math.isnan(mu):
        return mu
    if mu == math.inf:
        return 0.0 if delta == 1 else math.inf
    # δ(0) at most δ, so that ε is 0: as probabilities, not as their logarithms
    if delta_of(0.0, mu) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    # δ(t) < Φ(−t): the root lies to the left of this
    high = float(-ndtri(delta)) + 1e-6
    log_delta = math.log(delta)
    t = brentq(lambda t: _log_delta(t, mu) - log_delta, -mu / 2, high, xtol=_XTOL)
    return max(mu * (t + mu / 2), 0.0)


def _log_delta(t: float, mu: float) -> float:
    """Log δ at ε = μ (t + μ/2), for 0 < μ < infinity."""
    if t <= _FAR_LEFT:
        from scipy.special import ndtr

        return math.log(ndtr(-t) - math.exp(-t * t / 2 - _LOG_ROOT_TAU) * _mills(t + mu))
    gap = _mills_slope(t, mu) if mu < _SMALL else _mills(t) - _mills(t + mu)
    return -t * t / 2 - _LOG_ROOT_TAU + math.log(max(gap, 5e-324))


def _mills(x: Any) -> Any:
    """Mills' ratio (1 − Φ(x)) / φ(x)."""
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def _mills_slope(t: float, mu: float) -> float:
    """R(t) − R(t + μ) for small μ, to order μ³ about the midpoint (R′ = x R − 1): no cancellation
    in μ.
    """
    x = t + mu / 2
    ratio = _mills(x)
    first = x * ratio - 1 if x < 1e4 else -1 / (x * x)
    third = 2 * first + x * (ratio + x * first) if x < 30 else -6 / x**4
    return float(-mu * first - mu**3 / 24 * third)


def _require(name: str, value: float) -> None:
    if not value >= 0:
        raise InputError(f"{name} must be 0 or more, not {value}: it measures a loss of privacy")


def _require_delta(delta: float) -> None:
    if not 0 <= delta <= 1:
        raise InputError(f"delta must lie in 0..1, not {delta}: it is a probability")
