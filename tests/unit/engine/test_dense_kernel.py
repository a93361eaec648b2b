"""exp and log against mpmath."""

from __future__ import annotations

import math
import sys

import numpy as np
from mpmath import mp, mpf

from raydpzv.engine import dense_kernel
from raydpzv.keys import Key

mp.prec = 200
EPSILON = 2.0**-52


def drawn(low: float, high: float, count: int) -> list[float]:
    return (Key(1) / "points").generator().uniform(low, high, count).tolist()


def test_exp_is_within_two_units_of_the_last_place() -> None:
    points = [*drawn(-708, 709, 3000), *drawn(-1, 1, 1000), 0.0, -0.0, 1e-300, -1e-300, -708.0, 709.0]
    # where k changes, the remainder is largest
    edges = [(n + 0.5) * math.log(2) for n in range(-1000, 1000, 7)]
    for x in [*points, *(np.nextafter(e, s) for e in edges for s in (-1e9, 1e9))]:
        true = mp.exp(mpf(x))
        assert abs((mpf(dense_kernel.exp(x)) - true) / true) <= 2 * EPSILON, x


def test_log_is_within_two_units_of_the_last_place() -> None:
    near_one = [1 + n * EPSILON for n in (1, 2, 3, 1000, 10**9)] + [
        1 - n * EPSILON / 2 for n in (1, 3, 10**9)
    ]
    points = [math.exp(x) for x in drawn(-708, 709, 3000)] + drawn(0.5, 2.0, 2000) + near_one
    for x in [*points, 5e-324, 2.0**-1022, sys.float_info.max, math.sqrt(0.5), math.sqrt(2)]:
        true = mp.log(mpf(x))
        assert abs((mpf(dense_kernel.log(x)) - true) / true) <= 2 * EPSILON, x
    assert dense_kernel.log(1.0) == 0.0


def test_edges() -> None:
    exp, log = dense_kernel.exp, dense_kernel.log
    assert [exp(0.0), exp(-0.0), exp(5e-324), exp(-5e-324)] == [1.0] * 4
    assert [exp(-math.inf), exp(-1e300), exp(-709.0)] == [0.0] * 3
    assert [exp(math.inf), exp(1e300), exp(710.0)] == [math.inf] * 3
    assert [log(0.0), log(-0.0), log(math.inf)] == [-math.inf, -math.inf, math.inf]
    assert all(math.isnan(x) for x in (exp(math.nan), log(math.nan), log(-1.0), log(-math.inf)))


def test_both_never_decrease() -> None:
    for name, low, high in (("exp", -10.0, 10.0), ("log", 0.1, 10.0)):
        function = getattr(dense_kernel, name)
        values = [function(x) for x in np.linspace(low, high, 20_001).astype(np.float32).astype(float)]
        assert values == sorted(values)
    tiny = [dense_kernel.exp(np.float64(x)) for x in np.float32([-1e-45, 0.0, 1e-45, 1e-38])]
    assert tiny == sorted(tiny)
