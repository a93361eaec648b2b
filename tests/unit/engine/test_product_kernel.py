"""The dense kernels' product: the bits of plain sums, one product and one sum a term, whatever the
shape.
"""

import numpy as np
import pytest
from numba import njit

from raydpzv.engine.product_kernel import _add_products


@njit
def _call(y: np.ndarray, w: np.ndarray, x: np.ndarray, weights: tuple, shape: tuple) -> None:
    _add_products(y, w, x, weights, shape)


def _plain(y: np.ndarray, w: np.ndarray, x: np.ndarray, weights: tuple, shape: tuple) -> np.ndarray:
    """A term after the other over whole rows: numpy rounds each product and each sum once."""
    (at, w_row, w_term), (rows, terms, columns), found = weights, shape, y.copy()
    for t in range(terms):
        for r in range(rows):
            found[r, :columns] += w[at + r * w_row + t * w_term] * x[t, :columns]
    return found


@pytest.mark.parametrize("columns", [0, 1, 15, 16, 17, 64, 70, 150])
@pytest.mark.parametrize(
    ("rows", "terms"), [(1, 1), (3, 5), (4, 127), (9, 128), (6, 259), (2, 0), (21, 130), (140, 9)]
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_product_has_the_bits_of_plain_sums(
    rows: int, terms: int, columns: int, turned: bool
) -> None:
    random = np.random.Generator(np.random.Philox(rows + terms + columns))
    y, x, w = (
        random.standard_normal(shape, np.float32)
        for shape in ((rows + 1, columns + 3), (terms + 1, columns + 2), rows * terms + 7)
    )
    weights = (7, 1, rows) if turned else (7, terms, 1)
    expected = _plain(y, w, x, weights, (rows, terms, columns))
    _call(y, w, x, weights, (rows, terms, columns))
    assert np.array_equal(y, expected)


def test_fused_sums_would_have_other_bits() -> None:
    """A control: the bits above say something about the order and the roundings."""
    random = np.random.Generator(np.random.Philox(1))
    w, x = (random.standard_normal(shape, np.float32) for shape in (4 * 259, (259, 64)))
    expected = _plain(np.zeros((4, 64), np.float32), w, x, (0, 259, 1), (4, 259, 64))
    fused = np.zeros((4, 64), np.float32)
    for weights, row in zip(w.reshape(4, 259).T.astype(float), x.astype(float), strict=True):
        fused = (fused + np.outer(weights, row)).astype(np.float32)  # products are exact here
    assert not np.array_equal(fused, expected)
    np.testing.assert_allclose(fused, expected, rtol=1e-3, atol=1e-4)


def test_what_is_not_finite_stays_in_its_column() -> None:
    y, x, w = np.zeros((4, 16), np.float32), np.ones((2, 16), np.float32), np.ones(8, np.float32)
    x[0, 3], x[1, 5] = np.nan, np.inf
    _call(y, w, x, (0, 2, 1), (4, 2, 16))
    assert np.isnan(y[:, 3]).all()
    assert np.isposinf(y[:, 5]).all()
    assert np.isfinite(np.delete(y, (3, 5), axis=1)).all()
