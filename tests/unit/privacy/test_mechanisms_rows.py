"""Noise on rows: the clip bounds one record's row, the noise has the law it says, the receipt says
so.
"""

import math

import numpy as np
import pytest
from scipy import stats

from raydpzv.keys import Key
from raydpzv.privacy.mechanisms import (
    NoNoise,
    RowNoise,
    SeededNoise,
    SystemNoise,
    clip_rows,
    release_rows,
)

WHERE = (1, 4, 0)


def test_rows_are_clipped_to_the_norm_and_short_ones_are_left_alone() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], np.float32)
    clipped, nonfinite = clip_rows(rows, 2.0)
    assert nonfinite == 0
    assert clipped == pytest.approx(np.array([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0]]), abs=1e-7)
    assert np.array_equal(clipped[1:], rows[1:].astype(np.float64))
    assert np.array_equal(clip_rows(rows, math.inf)[0], rows.astype(np.float64))


def test_no_row_leaves_longer_than_the_norm_and_what_is_not_finite_counts_as_zero() -> None:
    draws = (Key(3) / "rows").generator().standard_normal((2000, 7)) * 100
    clipped, _ = clip_rows(draws.astype(np.float32), 0.7)
    assert np.linalg.norm(clipped, axis=1).max() <= 0.7
    wild = np.array([[math.nan, 1.0], [math.inf, 0.0], [3e38, 3e38], [1.0, 0.0]], np.float32)
    clipped, nonfinite = clip_rows(wild, 1.0)
    assert nonfinite == 2
    assert np.abs(clipped[:2]).max() == 0
    assert np.linalg.norm(clipped, axis=1).max() <= 1


@pytest.mark.parametrize("noise", [SystemNoise(), SeededNoise(Key(5))])
def test_every_coordinate_gets_noise_of_its_own_and_of_the_deviation_said(noise: RowNoise) -> None:
    rows = np.full((4000, 3), 0.1, np.float32)
    sent, receipt = release_rows(rows, threshold=1.0, sigma=0.5, noise=noise, address=WHERE)
    found = (sent - 0.1) / 0.5
    assert stats.kstest(found.ravel(), "norm").pvalue > 1e-3
    for wrong in (0.9, 1.1):
        assert stats.kstest(found.ravel() * wrong, "norm").pvalue < 1e-4
    correlation = np.corrcoef(found.T) - np.eye(3)
    assert np.abs(correlation).max() < 0.07
    assert (receipt.mechanism, receipt.source) == ("gaussian rows", noise.source)
    assert (receipt.sensitivity_replace, receipt.sensitivity_add_remove) == (2.0, 1.0)
    assert (receipt.sigma, receipt.divisor, receipt.batch) == (0.5, 1, 4000)


def test_seeded_rows_are_a_function_of_the_address_and_system_rows_are_not() -> None:
    seeded, system = SeededNoise(Key(5)), SystemNoise()
    assert np.array_equal(seeded.normal(6, WHERE), SeededNoise(Key(5)).normal(6, WHERE))
    assert not np.array_equal(seeded.normal(6, WHERE), seeded.normal(6, (1, 5, 0)))
    assert not np.array_equal(seeded.normal(6, WHERE), seeded.normal(6, (1, 4, 1)))
    assert not np.array_equal(system.normal(6, WHERE), system.normal(6, WHERE))


@pytest.mark.parametrize("noise", [SystemNoise(), SeededNoise(Key(5))])
def test_uniform_draws_fill_the_interval(noise: RowNoise) -> None:
    draws = noise.uniform(6000, WHERE)
    assert stats.kstest(draws, stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_a_scalars_source_has_no_rows() -> None:
    assert not hasattr(NoNoise(), "normal")


def test_without_a_clip_the_receipt_says_that_nothing_is_bounded() -> None:
    _, receipt = release_rows(
        np.ones((2, 2), np.float32), threshold=None, sigma=1.0, noise=SystemNoise(), address=WHERE
    )
    assert receipt.sensitivity_replace == math.inf
