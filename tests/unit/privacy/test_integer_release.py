"""Sums of clipped integers against whole-number arithmetic in Python, and what leaves with
noise.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from raydpzv.errors import ReplayMismatch
from raydpzv.keys import Key
from raydpzv.privacy.integer_release import (
    GRID,
    IntegerRelease,
    RecordedIntegers,
    SystemIntegers,
    integer_sum,
    release_integers,
)
from raydpzv.privacy.rounded_gaussian import rounded_gaussian

P, B = 7, 200
HOW = IntegerRelease(clip=0.1, directions=P, multiplier=3.0, rows=B)


def seeded(name: str) -> Callable[[int], bytes]:
    return (Key(7) / "rounded" / name).generator().bytes


def slopes(scale: float) -> np.ndarray:
    return (scale * Key(3).generator().standard_normal((P, B))).astype(np.float32)


def exact(column: np.ndarray, limit: float, over: str) -> list[int]:
    """One record's integers by exact fractions; the square root alone is rounded."""
    if not np.isfinite(column).all():
        return [0] * len(column)
    values = [Fraction(float(v)) for v in column]
    bound = Fraction(limit)
    if over == "scalar":
        each = bound / Fraction(math.sqrt(len(column)))
        values = [max(min(v, each), -each) for v in values]
    else:
        norm = Fraction(math.sqrt(sum(v * v for v in values)))
        values = [v * min(Fraction(1), bound / norm) if norm else v for v in values]
    return [int(v * GRID / bound) for v in values]  # int cuts towards zero


@pytest.mark.parametrize("over", ["vector", "scalar"])
@pytest.mark.parametrize("scale", [1e-4, 0.1, 50.0, 1e30])
def test_the_sum_is_that_of_each_records_cut_integers(scale: float, over: str) -> None:
    given = slopes(scale)
    given[2, 5], given[0, 9], given[6, 9] = np.nan, np.inf, -np.inf
    sums, nonfinite = integer_sum(given, limit=HOW.limit, over=over)  # type: ignore[arg-type]
    expected = [exact(column, HOW.limit, over) for column in given.T]
    assert nonfinite == 2
    # a product that rounding leaves on a whole number's other side moves a record's integer by 1
    assert np.abs(sums - np.sum(expected, axis=0)).max() <= 2


@pytest.mark.parametrize("over", ["vector", "scalar"])
def test_no_record_is_longer_than_the_grid_whatever_was_rounded(over: str) -> None:
    generator = Key(4).generator()
    for exponent in range(-30, 31, 5):
        given = (generator.standard_normal((P, 300)) * 10.0**exponent).astype(np.float32)
        for b in range(0, 300, 10):
            alone, _ = integer_sum(given[:, b : b + 1], limit=HOW.limit, over=over)  # type: ignore[arg-type]
            assert sum(int(k) ** 2 for k in alone) <= GRID**2
    whole, _ = integer_sum(np.full((1, 1), 0.1, np.float32), limit=0.1)
    assert whole.tolist() == [GRID], "control: the bound is met"


def test_clipping_each_slope_is_not_clipping_the_vector() -> None:
    one = np.zeros((P, 1), np.float32)
    one[0] = 10.0
    vector, scalar = (
        integer_sum(one, limit=HOW.limit, over=over)[0][0] for over in ("vector", "scalar")
    )
    assert vector == GRID
    assert scalar == int(GRID / math.sqrt(P))


def test_unit_and_scale_are_the_noise_multiplier_of_the_mean() -> None:
    """s · unit is z V / B, the deviation of the noise on the mean of vectors of norm V at most."""
    assert HOW.limit == pytest.approx(0.1 * math.sqrt(P), rel=1e-15)
    assert HOW.scale * HOW.unit == pytest.approx(3.0 * HOW.limit / B, rel=1e-15)


def test_what_leaves_is_whole_in_float32_and_noised() -> None:
    how = IntegerRelease(clip=0.1, directions=4000, multiplier=1e4, rows=B)
    released, receipt = SystemIntegers().release(
        np.zeros(4000, np.int64), how, (0, 0), batch=B, nonfinite=1
    )
    assert released.dtype == np.float32
    assert np.array_equal(released, np.rint(released))
    assert np.abs(released).max() > 2**24, "control: numbers that float32 rounds"
    assert released.std() == pytest.approx(how.scale, rel=0.06)
    assert (receipt.mechanism, receipt.source, receipt.sigma) == (
        "rounded gaussian",
        "system",
        how.scale,
    )
    assert (receipt.sensitivity_replace, receipt.divisor, receipt.nonfinite) == (2 * GRID, B, 1)


def test_recorded_releases_are_given_out_again_and_others_are_drawn_or_refused() -> None:
    kept = {(2, 5, p): float(p * 1000) for p in range(P)}
    sums = np.arange(P)
    again, receipt = RecordedIntegers(kept).release(sums, HOW, (2, 5), batch=B, nonfinite=0)
    assert again.tolist() == [p * 1000 for p in range(P)]
    assert receipt.source == "recorded"
    with pytest.raises(ReplayMismatch, match="no release for client 2, step 6"):
        RecordedIntegers(kept).release(sums, HOW, (2, 6), batch=B, nonfinite=0)
    fresh, receipt = RecordedIntegers(kept, SystemIntegers()).release(
        sums, HOW, (2, 6), batch=B, nonfinite=0
    )
    assert fresh.tolist() != sums.tolist()
    assert receipt.source == "system"


@pytest.mark.parametrize("origin", [0, 2**62, -(2**62) + 1])
def test_a_release_is_the_sum_plus_the_noise_exactly(origin: int) -> None:
    """Near 2^62 a double is a multiple of 512."""
    sums = np.array([0, 1, -3, 4096], np.int64) + origin
    released, receipt = release_integers(sums, HOW, batch=99, nonfinite=1, source=seeded("exact"))
    assert released.dtype == np.int64
    assert (released - sums).tolist() == rounded_gaussian(HOW.scale, 4, seeded("exact")).tolist()
    assert (receipt.mechanism, receipt.source, receipt.sigma) == (
        "rounded gaussian",
        "seeded",
        HOW.scale,
    )
    assert (receipt.sensitivity_replace, receipt.sensitivity_add_remove) == (8192.0, 4096.0)
    assert (receipt.divisor, receipt.batch, receipt.nonfinite) == (B, 99, 1)


def test_the_receipt_names_the_systems_randomness_only_where_it_was_used() -> None:
    sums = np.zeros(3, np.int64)
    assert release_integers(sums, HOW, batch=1, nonfinite=0)[1].source == "system"
    assert (
        release_integers(sums, HOW, batch=1, nonfinite=0, source=seeded("named"))[1].source
        == "seeded"
    )
