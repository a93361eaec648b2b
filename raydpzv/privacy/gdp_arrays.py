"""ε of many μ at once, with the bits of `gdp.epsilon_of`: for the ε columns of a run's rows.

Asking one by one costs 30 microseconds each, mostly the interpreter's. Here Brent's method runs on all of them side by
side, step for step as in scipy's `brentq` (Zeros/brentq.c), and the function it solves is evaluated with the operations
of `gdp._log_delta` in their order. numpy's own exp and log differ from the C library's in the last bit, on some
processors and not on others; so those two are taken one by one from `math`.
"""

# N values of μ

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.privacy import gdp
from raydpzv.privacy.brent import RTOL, STEPS
from raydpzv.zo.kernels import Kernel

Array = npt.NDArray[np.float64]

_XTOL = 1e-14
"""What `gdp.epsilon_of` asks of brentq."""
_FEW = 40
"""Values that are sooner solved one by one."""
_brent_step = Kernel("brent_step", "raydpzv.privacy.brent_kernel")


def epsilons_of(mus_N: npt.ArrayLike, delta: float) -> Array:
    """Return the smallest ε for which μ-GDP gives (ε, δ)-DP, float64 in the shape of μ; NaN where μ is NaN.

    Equal to `gdp.epsilon_of(μ, δ)` bit for bit; the same InputError for a negative μ or δ outside 0..1.
    """
    given = np.asarray(mus_N, np.float64)
    distinct, places_N = np.unique(given, return_inverse=True)
    found, known = np.full(len(distinct), math.nan), distinct == distinct
    many = known & (distinct > 0) & (distinct < math.inf)
    if np.count_nonzero(many) < _FEW or not 0 < delta < 1:
        many[:] = False
    one_by_one = known & ~many
    found[one_by_one] = [gdp.epsilon_of(mu, delta) for mu in distinct[one_by_one].tolist()]
    if many.any():
        with np.errstate(over="ignore"):  # to infinity, as in Python
            found[many] = _roots(distinct[many], delta)
    return found[places_N].reshape(given.shape)


def _roots(mus: Array, delta: float) -> Array:
    """ε for 0 < μ < infinity and 0 < δ < 1, as in `gdp.epsilon_of`."""
    from scipy.special import ndtri  # imported where it is used, as in `gdp`

    # δ(0) at most δ, so that ε is 0: in probabilities as `gdp.delta_of`, not in their logarithms
    at_zero = _each(math.exp, np.minimum(_log_delta(0.0 / mus - mus / 2, mus), 0.0))
    found, left = np.zeros(len(mus)), at_zero > delta
    mus = mus[left]
    above, log_delta = float(-ndtri(delta)), math.log(delta)
    t = _brent(lambda t, of: _log_delta(t, mus[of]) - log_delta, -mus / 2, np.full(len(mus), above + 1e-6))
    found[left] = np.maximum(mus * (t + mus / 2), 0.0)
    return found


def _log_delta(t: Array, mu: Array) -> Array:
    """`gdp._log_delta`, element by element."""
    found = np.empty(len(t))
    far = t <= gdp._FAR_LEFT
    if far.any():
        from scipy.special import ndtr

        a, b = t[far], mu[far]
        density = _each(math.exp, -a * a / 2 - gdp._LOG_ROOT_TAU)
        found[far] = _each(math.log, ndtr(-a) - density * _mills(a + b))
    small = ~far & (mu < gdp._SMALL)
    if small.any():
        found[small] = [
            gdp._log_delta(a, b) for a, b in zip(t[small].tolist(), mu[small].tolist(), strict=True)
        ]
    near = ~(far | small)
    if near.any():
        a, b = t[near], mu[near]
        gap = _each(math.log, np.maximum(_mills(a) - _mills(a + b), 5e-324))
        found[near] = -a * a / 2 - gdp._LOG_ROOT_TAU + gap
    return found


def _mills(x: Array) -> Array:
    """Mills' ratio (1 − Φ(x)) / φ(x)."""
    from scipy.special import erfcx

    ratio: Array = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
    return ratio


def _each(function: Callable[[float], float], values: Array) -> Array:
    """A function of the C library, one value at a time."""
    return np.fromiter(map(function, values.tolist()), np.float64, len(values))


def _brent(function: Callable[[Array, Any], Array], low: Array, high: Array) -> Array:
    """Return a root of each element's function between two ends of different sign, as scipy's brentq finds it.

    function(x, of): the values at x of the elements numbered `of`.
    """
    of, state = np.arange(len(low)), np.zeros((8, len(low)))  # rows as in `brent_step`
    f_low, f_high = function(low, of), function(high, of)
    state[0], state[1], state[2], state[3] = low, f_low, np.where(f_low == 0, low, high), f_high
    of = of[(f_low != 0) & (f_high != 0)]
    if (np.signbit(f_low[of]) == np.signbit(f_high[of])).any():
        raise ValueError("f(a) and f(b) must have different signs")
    for _ in range(STEPS):
        of = of[: _brent_step(state, of, _XTOL, RTOL)]
        if not len(of):
            roots: Array = state[2]
            return roots
        state[3, of] = function(state[2, of], of)
    raise RuntimeError(f"no convergence after {STEPS} steps")
