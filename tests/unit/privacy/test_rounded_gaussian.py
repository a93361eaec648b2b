"""Noise on integers: its law against χ² and KS, its hard cases against mpmath's inverse, its sums
exact.
"""

from collections.abc import Callable, Iterator

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.privacy.rounded_gaussian import rounded_gaussian

DRAWS = 200_000
SCALES = (3.7, 300.0, 4096.0)


def seeded(name: str) -> Callable[[int], bytes]:
    return (Key(7) / "rounded" / name).generator().bytes


def scripted(*answers: bytes) -> tuple[Callable[[int], bytes], Iterator[bytes]]:
    """A source that gives these answers in turn, and the answers left over."""
    left = iter(answers)

    def source(count: int) -> bytes:
        answer = next(left)
        assert len(answer) == count
        return answer

    return source, left


def word(tail: int, negative: bool = False) -> bytes:
    return (2 * tail + negative).to_bytes(8, "little")


def by_hand(scale: float, tail: int) -> int:
    """rint(s √2 erfinv(1 − 2u)) for u = (tail + 1/2) / 2^192: the inverse, where the program
    compares Φ itself.
    """
    with mpmath.workprec(500):
        u = (mpmath.mpf(tail) + 0.5) / mpmath.mpf(2) ** 192
        # far out erfinv starts badly; from double precision's answer Newton's steps double the
        # digits
        x = mpmath.mpf(float(-ndtri(float(u))))
        for _ in range(5):
            x += (mpmath.ncdf(-x) - u) / mpmath.npdf(x)
        return int(mpmath.nint(scale * x))


def chi_squared(draws: np.ndarray, scale: float) -> float:
    """p of the draws' counts, in about 60 groups of integers, if their law were rint(N(0,
    scale²)).
    """
    edges = np.unique(np.rint(scale * ndtri(np.linspace(0, 1, 61)[1:-1]))) + 0.5
    expected = np.diff(stats.norm.cdf(edges / scale), prepend=0, append=1) * len(draws)
    found = np.bincount(np.searchsorted(edges, draws), minlength=len(expected))
    return float(stats.chisquare(found, expected).pvalue)


def kolmogorov(draws: np.ndarray, scale: float) -> float:
    """p of a uniform point of each draw's interval of probability, which is uniform on (0, 1) if
    the law is right.
    """
    low, high = stats.norm.cdf((draws - 0.5) / scale), stats.norm.cdf((draws + 0.5) / scale)
    place = (Key(8) / "place").generator().random(len(draws))
    return float(stats.kstest(low + place * (high - low), "uniform").pvalue)


@pytest.mark.parametrize("test", [chi_squared, kolmogorov])
@pytest.mark.parametrize("scale", SCALES)
def test_the_law_is_the_rounded_gaussians(
    scale: float, test: Callable[[np.ndarray, float], float]
) -> None:
    draws = rounded_gaussian(scale, DRAWS, seeded(str(scale)))
    assert draws.dtype == np.int64
    assert test(draws, scale) > 1e-3
    for wrong in (0.9, 1.1):
        assert test(draws, wrong * scale) < 1e-12


def test_the_systems_randomness_has_the_law_too_and_never_comes_twice() -> None:
    """Unseeded, so that the right law is refused only below 1e-9."""
    one, two = (rounded_gaussian(4096.0, 20_000) for _ in range(2))
    assert chi_squared(one, 4096.0) > 1e-9
    assert chi_squared(one, 0.9 * 4096) < 1e-9
    assert np.mean(one == two) < 0.01


@pytest.mark.parametrize("scale", [*SCALES, 1e-3, 1e5, 2.0**40])
def test_every_draw_is_what_mpmath_says(scale: float) -> None:
    """The bits that a draw asks for and those it does not: either answer to them gives the same
    integer.
    """
    read = seeded(f"words {scale}")
    for bits in (read(8) for _ in range(25)):
        tail = int.from_bytes(bits, "little") >> 1
        ends = [by_hand(scale, (tail << 128) + rest) for rest in (0, 2**128 - 1)]
        for rest, expected in zip((b"\0" * 16, b"\xff" * 16), ends, strict=True):
            source, left = scripted(bits, rest)
            assert abs(rounded_gaussian(scale, 1, source)[0]) == expected
            assert ends[0] == ends[1] or next(left, None) is None, "this cell holds a half integer"


@pytest.mark.parametrize("scale", [*SCALES, 1e5])
@pytest.mark.parametrize("k", [0, 1, 6, 13])
def test_at_a_half_integer_the_last_of_192_bits_decides(scale: float, k: int) -> None:
    with mpmath.workprec(600):
        border = mpmath.ncdf(-(k + mpmath.mpf(0.5)) / mpmath.mpf(scale)) * mpmath.mpf(2) ** 192
        above = int(mpmath.nint(border))  # the smallest tail with (tail + 1/2) > border
    for tail, expected in ((above, k), (above - 1, k + 1)):
        high, rest = divmod(tail, 2**128)
        assert by_hand(scale, tail) == expected
        for negative in (False, True):
            source, left = scripted(word(high, negative), rest.to_bytes(16, "little"))
            assert rounded_gaussian(scale, 1, source)[0] == (-expected if negative else expected)
            assert next(left, None) is None, "control: the 128 bits were asked for"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("tail", [0, 1, 1000])
@pytest.mark.parametrize("rest", [0, 1, 2**64, 2**128 - 1])
def test_far_tails_are_what_mpmath_says(scale: float, tail: int, rest: int) -> None:
    source, left = scripted(word(tail), rest.to_bytes(16, "little"))
    assert rounded_gaussian(scale, 1, source)[0] == by_hand(scale, (tail << 128) + rest)
    assert next(left, None) is None


def test_only_the_hard_draws_ask_for_more() -> None:
    asked: list[int] = []

    def counting(count: int) -> bytes:
        asked.append(count)
        return seeded("counted")(count)

    rounded_gaussian(300.0, 100_000, counting)
    assert asked[0] == 800_000
    assert len(asked) < 20


def test_no_draws_are_no_draws() -> None:
    assert rounded_gaussian(1.0, 0).shape == (0,)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**41])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    with pytest.raises(InputError, match="scale"):
        rounded_gaussian(scale, 1)
