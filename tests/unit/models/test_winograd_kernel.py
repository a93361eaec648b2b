import numpy as np
from numba import njit

from raydpzv.models.winograd_kernel import _activated, _larger, _load, _store


@njit  # type: ignore[untyped-decorator]
def larger(a, b, out):  # type: ignore[no-untyped-def]
    _store(out, 0, _larger(_load(a, 0), _load(b, 0)))


@njit  # type: ignore[untyped-decorator]
def activated(a, bias, out):  # type: ignore[no-untyped-def]
    _store(out, 0, _activated(_load(a, 0), bias))


def test_a_pool_with_a_nan_is_one_and_so_is_its_positive_part() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, 1.5, -1.5, 3e38, -3e38], np.float32)
    values = np.concatenate([values, values[::-1]])
    for shift in range(16):
        a, b, out = values, np.roll(values, shift), np.empty(16, np.float32)
        larger(a, b, out)
        np.testing.assert_array_equal(out, np.maximum(a, b))
    activated(values, np.float32(1), out)
    np.testing.assert_array_equal(out, np.maximum(values + np.float32(1), np.float32(0)))
