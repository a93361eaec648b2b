"""brentq without scipy.optimize: its roots have the bits of scipy's."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize

from raydpzv.privacy.brent import brentq

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "cubic": lambda x: x**3 - 2 * x - 5,
    "cosine": lambda x: math.cos(x / 7) - 0.3,
    "a step": lambda x: -1.0 if x < 2.345 else 1.0,
    "steep": lambda x: math.expm1(min(30 * (x - 2.1), 700.0)),
    "line": lambda x: x - 3.0,
}


@pytest.mark.parametrize("xtol", [1e-14, 1e-4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_roots_have_the_bits_of_scipys(name: str, xtol: float) -> None:
    function = FUNCTIONS[name]
    for low in np.linspace(-3, 1, 21).tolist():
        expected = optimize.brentq(function, low, 9.0, xtol=xtol)
        assert brentq(function, low, 9.0, xtol) == expected
        assert brentq(function, 9.0, low, xtol) == optimize.brentq(function, 9.0, low, xtol=xtol)


def test_a_root_at_an_end_is_returned_and_equal_signs_are_refused() -> None:
    assert brentq(lambda x: x - 1, 1.0, 4.0, 1e-14) == 1.0
    assert brentq(lambda x: x - 4, 1.0, 4.0, 1e-14) == 4.0
    with pytest.raises(ValueError, match="different signs"):
        brentq(lambda x: x, 1.0, 4.0, 1e-14)
    with pytest.raises(ValueError, match="NaN"):
        brentq(lambda x: math.nan if x not in (-1.0, 4.0) else x, -1.0, 4.0, 1e-14)
    with pytest.raises(RuntimeError, match="no convergence"):
        brentq(lambda x: (x - 1.234567) ** 9, -1.0, 9.0, 1e-14)
