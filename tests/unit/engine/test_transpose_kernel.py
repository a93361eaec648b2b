"""The dense kernels' transposition: every number in its place, whatever the shape."""

import numpy as np
import pytest
from numba import njit

from raydpzv.engine.transpose_kernel import _turn, _turn_rows


@njit
def _gathered(source: np.ndarray, ids: np.ndarray, x: np.ndarray) -> None:
    _turn_rows(source, ids, x)


@njit
def _turned(x: np.ndarray, to: np.ndarray) -> None:
    _turn(x, to)


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 13, 64])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 30])
def test_rows_become_columns_and_nothing_else_is_written(rows: int, width: int) -> None:
    random = np.random.Generator(np.random.Philox(rows + 100 * width))
    source = random.standard_normal((20, width), np.float32)
    ids = random.integers(0, 20, rows).astype(np.int32)
    x = np.full((width + 3, rows), -1, np.float32)
    _gathered(source, ids, x)
    assert np.array_equal(x[:width], source[ids].T)
    assert (x[width:] == -1).all()
    back = np.full((rows, width), -1, np.float32)
    _turned(x, back)
    assert np.array_equal(back, source[ids])
