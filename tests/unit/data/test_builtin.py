"""Generated data follow the laws that are stated."""

from __future__ import annotations

import numpy as np
import pytest

from raydpzv.data.builtin import Mixture, synthetic_survival
from raydpzv.keys import Key


def test_survival_times_are_censored_at_the_stated_rate():
    """P(T <= C) = E[h / (h + 1/2)] with h = e^η, η ~ N(0, 1.5²), by Gauss-Hermite quadrature; so is the mean time."""
    rows = 40_000
    table = synthetic_survival(Mixture(rows=rows, columns=3), Key(5) / "data")
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    hazards, weights = np.exp(1.5 * nodes), weights / weights.sum()

    def happens(censoring):
        return weights @ (hazards / (hazards + censoring))

    deviation = 0.5 / np.sqrt(rows)
    assert abs(np.mean(table.y) - happens(0.5)) < 4 * deviation
    assert abs(np.mean(table.y) - happens(1.0)) > 20 * deviation, "control"
    assert table.times is not None
    assert np.mean(table.times) == pytest.approx(weights @ (1 / (hazards + 0.5)), rel=0.05)
