"""Brent's method, step by step as in scipy's Zeros/brentq.c: the bits of `brentq` without importing
scipy.optimize.

That import takes a sixth of a CPU second, more than all the roots of a short run.
"""

# N functions

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.zo.kernels import Kernel

Array = npt.NDArray[np.float64]
_RTOL, _STEPS = float(4 * np.finfo(float).eps), 100
"""brentq's own defaults."""
FEW = 40
"""Functions whose steps are not worth loading a compiled one."""
_compiled_step = Kernel("brent_step", "raydpzv.privacy.brent_kernel")


def brentq(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """Return a root between two ends at which the function has different signs. Raises ValueError,
    RuntimeError.
    """

    def at(x: Array, of: Any) -> Array:
        value = function(float(x[0])) if len(x) else 0.0
        if math.isnan(value):
            raise ValueError(f"the function is NaN at {x[0]}")
        return np.full(len(x), value)

    return float(roots(at, np.array([low]), np.array([high]), xtol)[0])


def roots(function: Callable[[Array, Any], Array], low: Array, high: Array, xtol: float) -> Array:
    """Return a root of each element's function between two ends of different sign. Raises
    ValueError, RuntimeError.

    function(x, of): the values at x of the elements numbered `of`.
    """
    step = brent_step if len(low) < FEW else _compiled_step
    of, state = np.arange(len(low)), np.zeros((8, len(low)))  # rows as in `brent_step`
    f_low, f_high = function(low, of), function(high, of)
    state[0], state[1], state[2], state[3] = low, f_low, np.where(f_low == 0, low, high), f_high
    of = of[(f_low != 0) & (f_high != 0)]
    if (np.signbit(f_low[of]) == np.signbit(f_high[of])).any():
        raise ValueError("f(a) and f(b) must have different signs")
    for _ in range(_STEPS):
        with np.errstate(all="ignore"):  # a division by zero leads to a bisection, as in C
            of = of[: step(state, of, xtol, _RTOL)]
        if not len(of):
            found: Array = state[2]
            return found
        state[3, of] = function(state[2, of], of)
    raise RuntimeError(f"no convergence after {_STEPS} steps")


def brent_step(state, of, xtol, rtol):  # type: ignore[no-untyped-def]
    """Move every function numbered in `of` to its next point; return how many are left, whose
    numbers come first.

    As in scipy's Zeros/brentq.c, operation by operation. state [8, N]: x_pre, f_pre, x_cur, f_cur,
    x_blk, f_blk, s_pre, s_cur; cur is the newest point, pre the one before, blk the one on the
    other side of the root; s_pre and s_cur, the last two steps. x_cur is the root of those that are
    not left; of the others f_cur is yet to be set.
    """
    left = 0
    for place in range(of.shape[0]):
        n = of[place]
        x_pre, f_pre, x_cur, f_cur = state[0, n], state[1, n], state[2, n], state[3, n]
        x_blk, f_blk, s_pre, s_cur = state[4, n], state[5, n], state[6, n], state[7, n]
        if f_pre != 0 and f_cur != 0 and (f_pre < 0) != (f_cur < 0):
            x_blk, f_blk = x_pre, f_pre
            s_pre = s_cur = x_cur - x_pre
        if abs(f_blk) < abs(f_cur):
            x_pre, x_cur, x_blk = x_cur, x_blk, x_cur
            f_pre, f_cur, f_blk = f_cur, f_blk, f_cur
        tolerance, half = (xtol + rtol * abs(x_cur)) / 2, (x_blk - x_cur) / 2
        if f_cur == 0 or abs(half) < tolerance:
            state[2, n] = x_cur
            continue
        tried, short = half, False
        if abs(s_pre) > tolerance and abs(f_cur) < abs(f_pre):
            if x_pre == x_blk:
                tried = -f_cur * (x_cur - x_pre) / (f_cur - f_pre)
            else:
                d_pre, d_blk = (f_pre - f_cur) / (x_pre - x_cur), (f_blk - f_cur) / (x_blk - x_cur)
                tried = -f_cur * (f_blk * d_blk - f_pre * d_pre) / (d_blk * d_pre * (f_blk - f_pre))
            short = 2 * abs(tried) < min(abs(s_pre), 3 * abs(half) - tolerance)
        s_pre, s_cur = (s_cur, tried) if short else (half, half)
        least = tolerance if half > 0 else -tolerance
        state[0, n], state[1, n] = x_cur, f_cur
        state[2, n] = x_cur + (s_cur if abs(s_cur) > tolerance else least)
        state[4, n], state[5, n], state[6, n], state[7, n] = x_blk, f_blk, s_pre, s_cur
        of[left] = n
        left += 1
    return left
