"""What a ledger audit says of the noise, against draws whose law is known."""

from __future__ import annotations

import numpy as np
import pytest

from raydpzv.audit.forced_queries import Queries
from raydpzv.audit.ledger_audit import noise_seen
from raydpzv.keys import Key


def queries(values: np.ndarray, sigma: float) -> Queries:
    count = len(values)
    batches = tuple(np.arange(2) for _ in range(count))
    return Queries(tuple((0, n, 0) for n in range(count)), values, np.full(count, sigma), batches, {})


def test_the_deviation_is_bounded_from_above_in_95_of_100_runs():
    generator = (Key(1) / "coverage").generator()
    values = generator.normal(size=40)
    bounds = [
        noise_seen(queries(values, 3.0), values + generator.normal(0, 3, 40)).deviation_up for _ in range(300)
    ]
    covered = np.mean(np.array(bounds) >= 1)
    assert 0.92 < covered < 0.98
    assert max(bounds) < 2  # a control: a bound that bounds nothing covers always


@pytest.mark.parametrize(("share", "accepted"), [(1.0, True), (0.9, False), (1.1, False)])
def test_noise_of_another_deviation_is_told(share, accepted):
    draws = (Key(2) / "law").generator().normal(0, share * 7, 20_000)
    assert (noise_seen(queries(np.zeros(20_000), 7.0), draws).p > 1e-3) is accepted


def test_a_row_is_in_the_batches_that_hold_it():
    rows = [np.array([0, 3]), np.array([1]), np.array([3])]
    found = Queries(
        ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 0)),
        np.zeros(4),
        np.ones(4),
        (rows[0], rows[0], *rows[1:]),
        {},
    )
    assert found.about(3).tolist() == [True, True, False, True]
    assert found.about(2).tolist() == [False] * 4
