import numpy as np
import pytest
from scipy import stats

from raydpzv.zo import philox
from raydpzv.zo.directions import Direction

ONES = 0xFFFFFFFF
# Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, result
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox_by_hand(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Salmon et al. 2011, one block, with Python's whole numbers; checked by the known answers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & ONES, p0 >> 32 ^ c3 ^ k1, p0 & ONES
        k0, k1 = k0 + 0x9E3779B9 & ONES, k1 + 0xBB67AE85 & ONES
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert philox_by_hand(counter, key) == expected


def test_the_first_known_answer_comes_out_of_the_definition_itself() -> None:
    words = philox.philox(0, np.zeros(1, np.uint64))
    assert tuple(int(w[0]) for w in words) == KNOWN_ANSWERS[0][2]


def test_the_definition_is_philox_with_the_seed_as_key_and_the_block_as_counter() -> None:
    seeds = [0, 1, ONES, 1 << 32, 0xA4093822299F31D0, (1 << 64) - 1]
    blocks = [0, 1, 255, ONES, 1 << 32, 0x85A308D3243F6A88, (1 << 64) - 1]
    for seed in seeds:
        words = philox.philox(seed, np.array(blocks, np.uint64))
        for i, block in enumerate(blocks):
            expected = philox_by_hand((block & ONES, block >> 32, 0, 0), (seed & ONES, seed >> 32))
            assert tuple(int(w[i]) for w in words) == expected


def test_each_element_is_box_muller_of_its_place_in_the_tile() -> None:
    """Element e: tile e >> 10, word (e >> 8) & 3 of block tile·256 + (e & 255); float64 and
    libm.
    """
    seed, z = 12345, philox.normals(12345, 0, 4096)
    e = np.arange(4096)
    blocks = ((e >> 10) * 256 + (e & 255)).astype(np.uint64)
    words = np.stack(philox.philox(seed, blocks))
    which = (e >> 8) & 3
    radius_word = words[which & 2, e]
    angle_word = words[(which & 2) + 1, e]
    # the uniform is rounded to float32 by definition; all that follows is compared in float64
    u = (radius_word.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)).astype(
        np.float64
    )
    radius = np.sqrt(-2 * np.log(u))
    angle = np.pi / 2 * (angle_word.view(np.int32) / 2.0**31)
    sign = np.where(angle_word & 1, -1.0, 1.0)
    expected = np.where(which & 1, radius * np.sin(angle), sign * radius * np.cos(angle))
    assert np.abs(z - expected).max() < 1e-6


def test_box_muller_at_the_ends_of_its_range() -> None:
    ends = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, ONES - 1, ONES], np.uint32)
    a, b = (g.ravel() for g in np.meshgrid(ends, ends))
    for z in philox._box_muller(a, b):
        assert np.isfinite(z).all()
        assert np.abs(z).max() <= 6.77


N = 1_000_000


@pytest.fixture(scope="module")
def normals() -> np.ndarray:
    return Direction(2024, 2 * N).values().astype(np.float64)


def wrong_moments(z: np.ndarray) -> list[str]:
    """Name the moments that lie more than 4.5 standard errors from the normal's."""
    errors = {
        "mean": z.mean() / np.sqrt(1 / z.size),
        "variance": (np.mean(z**2) - 1) / np.sqrt(2 / z.size),
        "skewness": np.mean(z**3) / np.sqrt(15 / z.size),
        "kurtosis": (np.mean(z**4) - 3) / np.sqrt(96 / z.size),
    }
    return [name for name, error in errors.items() if abs(error) > 4.5]


def test_the_first_four_moments_are_the_normals(normals: np.ndarray) -> None:
    assert wrong_moments(normals) == []


@pytest.mark.slow
def test_control_shifted_scaled_and_skewed_normals_are_caught(normals: np.ndarray) -> None:
    assert "mean" in wrong_moments(normals + 0.01)
    assert "variance" in wrong_moments(normals * 1.01)
    assert "skewness" in wrong_moments(normals + 0.01 * (normals**2 - 1))
    assert "kurtosis" in wrong_moments(stats.t(100).ppf(stats.norm.cdf(normals[:N])))


def test_kolmogorov_smirnov_accepts_the_normals_and_rejects_others(normals: np.ndarray) -> None:
    sample = normals[:200_000]
    assert stats.kstest(sample, "norm").pvalue > 0.01
    assert stats.kstest(sample * 1.02, "norm").pvalue < 1e-3
    assert stats.kstest(sample + 0.02, "norm").pvalue < 1e-3


def test_the_tails_are_as_heavy_as_the_normals(normals: np.ndarray) -> None:
    for cut in (3.0, 4.0):
        expected = normals.size * 2 * stats.norm.sf(cut)
        assert abs((np.abs(normals) > cut).sum() - expected) < 4.5 * np.sqrt(expected)


def correlated(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(abs(np.mean(a * b)) > 4.5 / np.sqrt(a.size))


@pytest.mark.parametrize("power", [1, 2])
def test_neighbouring_seeds_are_uncorrelated(power: int) -> None:
    streams = [
        Direction(s, N // 4).values().astype(np.float64) for s in (0, 1, 1 << 32, (1 << 64) - 1)
    ]
    if power == 2:
        streams = [(z**2 - 1) / np.sqrt(2) for z in streams]
    for i, a in enumerate(streams):
        for b in streams[:i]:
            assert not correlated(a, b)
            assert correlated(a, b + 0.02 * a)


@pytest.mark.parametrize("lag", [1, 2, 255, 256, 257, 512, 768, 1023, 1024, 4096])
def test_elements_are_uncorrelated(normals: np.ndarray, lag: int) -> None:
    a, b = normals[: N - lag], normals[lag:N]
    squares = (normals**2 - 1) / np.sqrt(2)
    assert not correlated(a, b)
    assert not correlated(squares[: N - lag], squares[lag:N])
    assert correlated(a, b + 0.02 * a)


def test_directions_of_many_seeds_are_those_of_each():
    seeds = [0, 5, 2**63 + 1, 2**64 - 1]
    made = philox.normals(np.array(seeds, np.uint64), 900, 2200)
    assert np.array_equal(made, [philox.normals(seed, 900, 2200) for seed in seeds])
