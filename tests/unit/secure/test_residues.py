import numpy as np

from raydpzv.keys import Key
from raydpzv.secure.residues import as_bytes, as_integers, uniform, width_of


def test_residues_come_back_and_are_as_wide_as_their_modulus() -> None:
    n = 2**130 + 7
    assert (width_of(n), width_of(256), width_of(257)) == (17, 1, 2)
    numbers = [0, 1, 255, n - 1]
    data = as_bytes(numbers, width_of(n))
    assert (data.dtype, data.shape) == (np.uint8, (4, 17))
    assert as_integers(data) == numbers
    assert as_bytes([], 5).shape == (0, 5)


def test_draws_are_uniform() -> None:
    draws = uniform(7, 70_000, Key(1).generator().bytes)
    assert np.abs(np.bincount(draws, minlength=7) / 10_000 - 1).max() < 0.04
    wide = uniform(
        3 << 70, 9_000, Key(2).generator().bytes
    )  # a power of two would leave out a quarter
    assert 0.24 < np.mean([3 * draw > 9 << 69 for draw in wide]) * 0.5 < 0.26


def test_a_stream_gives_the_same_draws() -> None:
    assert uniform(10**40, 5, lambda size: bytes(range(size % 251)) * 9) == uniform(
        10**40, 5, lambda size: bytes(range(size % 251)) * 9
    )
