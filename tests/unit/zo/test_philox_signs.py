import numpy as np
import pytest
from scipy import stats

from raydpzv.zo import philox
from raydpzv.zo.directions import Direction

ONES = (1 << 64) - 1
N = 1 << 21


@pytest.mark.parametrize("seed", [0, 12345, ONES])
@pytest.mark.parametrize("start", [0, 3 << 15, (1 << 47) - 32768])
def test_each_sign_is_a_bit_of_its_block(seed: int, start: int) -> None:
    """Element e: bit k & 31 of word k >> 5, k = (e >> 8) & 127, of block (e >> 15)·256 + (e &
    255).
    """
    places = [0, 1, 255, 256, 31 * 256, 32 * 256 + 7, 63 * 256 + 200, 96 * 256, 32767, 32768, 65535]
    found = philox.signs(seed, start, start + 65536)
    for place in places:
        e = start + place
        k = (e >> 8) & 127
        block = np.array([(e >> 15) * 256 + (e & 255)], np.uint64)
        bit = int(philox.philox(seed, block)[k >> 5][0]) >> (k & 31) & 1
        assert found[place] == (-1.0 if bit else 1.0)


@pytest.fixture(scope="module")
def signs() -> np.ndarray:
    return Direction(2024, N, "rademacher").values()


def test_every_element_is_one_or_minus_one_and_nothing_is_normalised(signs: np.ndarray) -> None:
    assert signs.dtype == np.float32
    assert np.array_equal(np.unique(signs), [-1, 1])
    assert Direction(3, 1000, "rademacher").norm_factor == 1.0


def unbalanced(signs: np.ndarray) -> bool:
    """Whether the signs of some row of the tile (a bit of a word), or of some lane, favour one
    side.
    """
    rows_k = signs.reshape(-1, 128, 256).sum((0, 2)) / np.sqrt(signs.size / 128)
    lanes_i = signs.reshape(-1, 256).sum(0) / np.sqrt(signs.size / 256)
    return bool(
        max(np.abs(rows_k).max(), np.abs(lanes_i).max(), abs(signs.sum()) / np.sqrt(signs.size)) > 5
    )


def test_no_bit_and_no_lane_favours_a_side(signs: np.ndarray) -> None:
    assert not unbalanced(signs)


def test_control_one_stuck_bit_and_one_stuck_lane_are_caught(signs: np.ndarray) -> None:
    stuck = signs.reshape(-1, 128, 256).copy()
    stuck[:, 77] = np.where(np.arange(256) % 10, stuck[:, 77], 1)
    assert unbalanced(stuck.reshape(-1))
    lane = signs.reshape(-1, 256).copy()
    lane[::10, 3] = 1
    assert unbalanced(lane.reshape(-1))


def correlated(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(abs(np.mean(a * b, dtype=np.float64)) > 4.5 / np.sqrt(a.size))


@pytest.mark.parametrize("lag", [1, 2, 255, 256, 257, 512, 8192, 16384, 24576, 32767, 32768])
def test_signs_are_uncorrelated(signs: np.ndarray, lag: int) -> None:
    a, b = signs[:-lag], signs[lag:]
    assert not correlated(a, b)
    assert correlated(a, np.where(np.arange(b.size) % 100 == 0, a, b)), (
        "control: every hundredth is a copy"
    )


def test_runs_of_equal_signs_have_geometric_lengths(signs: np.ndarray) -> None:
    def p_value(s: np.ndarray) -> float:
        lengths = np.diff(np.flatnonzero(np.diff(s, prepend=-s[0])))
        counts = np.bincount(np.minimum(lengths, 12), minlength=13)[1:]
        shares = np.array([2.0**-n for n in range(1, 12)] + [2.0**-11])
        return float(stats.chisquare(counts, shares * counts.sum()).pvalue)

    assert p_value(signs) > 0.001
    assert p_value(np.where(np.arange(N) % 50 == 0, np.roll(signs, 1), signs)) < 1e-6, (
        "control: sticky signs"
    )


def test_neighbouring_seeds_are_uncorrelated() -> None:
    streams = [Direction(s, N // 4, "rademacher").values() for s in (0, 1, 1 << 32, ONES)]
    for i, a in enumerate(streams):
        for b in streams[:i]:
            assert not correlated(a, b)
            assert correlated(a, np.where(np.arange(a.size) % 50 == 0, a, b)), "control"


def test_the_second_moment_is_the_identity_across_rows_and_words() -> None:
    """E[u uᵀ] = I for elements of different bits and words of the same blocks, over seeds."""
    places = np.array([0, 1, 256, 257, 31 * 256, 32 * 256, 64 * 256 + 1, 127 * 256, 32767, 32768])
    u_ND = np.stack([philox.signs(seed, 0, 32769)[places] for seed in range(1500)]).astype(
        np.float64
    )

    def off(u: np.ndarray) -> float:
        return float(np.abs(u.T @ u / len(u) - np.eye(u.shape[1])).max() * np.sqrt(len(u)))

    assert np.array_equal(np.diag(u_ND.T @ u_ND), np.full(10, 1500.0))
    assert off(u_ND) < 5
    copied = u_ND.copy()
    copied[::5, 9] = copied[::5, 0]
    assert off(copied) > 5, "control: a fifth of one element copied from another"
