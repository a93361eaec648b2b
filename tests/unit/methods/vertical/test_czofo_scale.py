"""Uniform scale compression against levels made one number at a time with Python's integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.methods.vertical.czofo import compress, compressed_bytes, decompress

VALUES = (Key(3) / "values").generator().standard_normal((7, 3)).astype(np.float32)


def by_hand(values: np.ndarray, bits: int) -> bytes:
    """Exact nearest levels, written bit by bit, each number's lowest bit first."""
    exact = [Fraction(float(v)) for v in values.ravel()]
    low, span, top = min(exact), max(exact) - min(exact), 2**bits - 1
    levels = [round((v - low) / span * top) for v in exact]
    stream = sum(level << (bits * place) for place, level in enumerate(levels))
    return stream.to_bytes(-(-len(levels) * bits // 8), "little")


@pytest.mark.parametrize("bits", range(1, 17))
def test_numbers_travel_as_their_nearest_levels(bits: int) -> None:
    packed, limits = compress(VALUES, bits)
    assert packed.tobytes() == by_hand(VALUES, bits)
    assert limits.tolist() == [VALUES.min(), VALUES.max()]
    assert packed.nbytes + limits.nbytes == compressed_bytes(VALUES.size, bits)
    found = decompress(packed, limits, bits, VALUES.shape)
    step = (VALUES.max() - VALUES.min()) / (2**bits - 1)
    error = np.abs(found - VALUES).max()
    assert error <= step * 0.5001
    assert error > step * 0.3, "control: a level's width is not smaller than it must be"
    assert (found.min(), found.max()) == pytest.approx((VALUES.min(), VALUES.max()), abs=1e-6)


def test_bytes_of_compressed_numbers_by_hand() -> None:
    assert [compressed_bytes(5, bits) for bits in (None, 1, 2, 4, 8, 16)] == [20, 9, 10, 11, 13, 18]
    assert [compressed_bytes(128, bits) for bits in (None, 2, 8)] == [512, 40, 136]


def test_what_has_no_scale() -> None:
    same = np.full(4, -2.5, np.float32)
    assert np.array_equal(decompress(*compress(same, 3), 3, (4,)), same)
    empty = compress(VALUES[:0], 3)
    assert compressed_bytes(0, 3) == sum(part.nbytes for part in empty)
    assert decompress(*empty, 3, (0, 3)).shape == (0, 3)
    largest = np.array([-3e38, 0.0, 3e38], np.float32)
    assert decompress(*compress(largest, 16), 16, (3,)) == pytest.approx(largest, abs=1e34)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_does_not_become_finite(bad: float) -> None:
    values = np.array([1.0, bad, 2.0], np.float32)
    assert np.isnan(decompress(*compress(values, 8), 8, (3,))).all()


def test_levels_of_another_count_are_refused() -> None:
    packed, limits = compress(VALUES, 4)
    with pytest.raises(ValueError, match="wanted 40 levels of 4 bits, got 11 bytes"):
        decompress(packed, limits, 4, (40,))
