import pickle

import numpy as np
import pytest

from raydpzv.errors import InputError
from raydpzv.keys import (
    PARTY_BITS,
    PERTURBATION_BITS,
    STEP_BITS,
    Key,
    direction_seed,
    perturbation_seeds,
    shifted,
    step_seed,
)


def test_the_same_address_always_gives_the_same_stream() -> None:
    key = Key(5) / "batches" / 3
    first = key.generator()
    first.random(10)
    assert np.array_equal(
        key.generator().random(10), (Key(5) / "batches" / 3).generator().random(10)
    )
    assert pickle.loads(pickle.dumps(key)) == key


def test_numpy_numbers_are_numbers() -> None:
    assert Key(0) / np.int32(3) == Key(0) / 3
    assert (Key(0) / np.uint64(2**63)).digest() == (Key(0) / 2**63).digest()


@pytest.mark.parametrize("part", [True, 1.0, None, ("a",)])
def test_a_path_takes_names_and_whole_numbers_only(part: object) -> None:
    with pytest.raises(TypeError, match="names and whole numbers"):
        Key(0) / part  # type: ignore[operator]


@pytest.mark.parametrize(
    ("triple", "name"),
    [
        ((-1, 0, 0), "party"),
        ((1 << PARTY_BITS, 0, 0), "party"),
        ((0, -1, 0), "step"),
        ((0, 1 << STEP_BITS, 0), "step"),
        ((0, 0, -1), "perturbation"),
        ((0, 0, 1 << PERTURBATION_BITS), "perturbation"),
    ],
)
def test_a_direction_outside_the_range_is_refused(triple: tuple[int, int, int], name: str) -> None:
    with pytest.raises(InputError, match=name):
        direction_seed(Key(0), *triple)


def test_a_step_or_a_perturbation_outside_the_range_is_refused() -> None:
    for pair, name in (
        ((-1, 0), "party"),
        ((1 << PARTY_BITS, 0), "party"),
        ((0, -1), "step"),
        ((0, 1 << STEP_BITS), "step"),
    ):
        with pytest.raises(InputError, match=name):
            step_seed(Key(0), *pair)
    with pytest.raises(InputError, match="perturbation 1024"):
        perturbation_seeds(step_seed(Key(0), 0, 0), np.arange(1025))


def test_directions_of_many_steps_are_those_of_each() -> None:
    steps = np.array([step_seed(Key(2), 0, t) for t in range(5)], np.uint64)
    together = perturbation_seeds(steps[:, None], np.arange(3))
    assert (together.shape, together.dtype) == ((5, 3), np.uint64)
    for seed, directions in zip(steps.tolist(), together, strict=True):
        assert np.array_equal(perturbation_seeds(seed, np.arange(3)), directions)
    assert perturbation_seeds(np.zeros(0, np.uint64), np.zeros(0, np.int64)).shape == (0,)


def test_the_range_fills_64_bits_and_its_corners_are_allowed() -> None:
    assert PARTY_BITS + STEP_BITS + PERTURBATION_BITS == 64
    corners = [(m, t, p) for m in (0, 2**22 - 1) for t in (0, 2**32 - 1) for p in (0, 2**10 - 1)]
    seeds = {direction_seed(Key(0), *corner) for corner in corners}
    assert len(seeds) == 8
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_uniform_draws_of_different_addresses_are_uncorrelated() -> None:
    a, b = ((Key(0) / "stream" / i).generator().standard_normal(100_000) for i in range(2))
    bound = 4 / np.sqrt(100_000)
    assert abs(np.corrcoef(a, b)[0, 1]) < bound
    assert abs(np.corrcoef(a, b + 0.02 * a)[0, 1]) > bound


def test_shifted_seeds_stay_different_and_depend_on_the_secret() -> None:
    seeds = np.concatenate(
        [np.arange(20_000, dtype=np.uint64), np.array([2**63, 2**64 - 1], np.uint64)]
    )
    moved = shifted(Key(1) / "secret", seeds)
    assert moved.dtype == np.uint64
    assert len(set(moved.tolist())) == len(seeds)
    assert not set(moved.tolist()) & set(seeds.tolist())
    assert np.array_equal(moved, shifted(Key(1) / "secret", seeds))
    assert not (moved == shifted(Key(1) / "secrets", seeds)).any()
    assert np.array_equal(
        shifted(Key(1) / "secret", seeds[:6].reshape(2, 3)), moved[:6].reshape(2, 3)
    )
    assert shifted(Key(1), np.zeros((0, 0), np.uint64)).shape == (0, 0)


def test_a_shift_is_a_bijection_that_can_be_undone() -> None:
    """Inverse of splitmix64's finaliser, written out: whoever has the two words gets the seeds
    back.
    """
    secret = Key(8) / "secret"
    words = secret.digest(16)
    before, after = (int.from_bytes(words[i : i + 8], "little") for i in (0, 8))
    mask = (1 << 64) - 1

    def unshift(x: int, by: int) -> int:
        y = x
        for _ in range(64 // by):
            y = x ^ (y >> by)
        return y

    for seed in (0, 1, 12345, 2**40 + 7, 2**64 - 1):
        x = int(shifted(secret, np.array([seed], np.uint64))[0]) ^ after
        x = unshift(x, 31) * pow(0x94D049BB133111EB, -1, 2**64) & mask
        x = unshift(x, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
        assert ((unshift(x, 30) - 0x9E3779B97F4A7C15) & mask) ^ before == seed


def test_shifted_seeds_look_random() -> None:
    """Every bit is set half the time, also for seeds that differ in a few bits only. Not so the
    seeds themselves.
    """

    def worst(seeds: np.ndarray) -> float:
        share = (seeds[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(0)
        return float(np.abs(share - 0.5).max())

    seeds = np.arange(10_000, dtype=np.uint64)
    assert worst(shifted(Key(2), seeds)) < 4.5 * 0.5 / 100
    assert worst(seeds) > 0.4
