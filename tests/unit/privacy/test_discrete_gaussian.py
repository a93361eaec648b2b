"""Exact discrete Gaussian noise: its law, every decision against one made in exact arithmetic, its
hard cases.
"""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy import stats

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.privacy import discrete_gaussian as module
from raydpzv.privacy.discrete_gaussian import discrete_gaussian

DRAWS = 50_000
UNITS = 1 << 64


def seeded(name: str) -> Callable[[int], bytes]:
    return (Key(7) / "discrete" / name).generator().bytes


def law(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The integers within 12 s and their probabilities, from the definition."""
    k = np.arange(-int(12 * scale) - 3, int(12 * scale) + 4)
    weights = np.exp(-((k / scale) ** 2) / 2)
    return k, weights / weights.sum()


def chi_squared(draws: np.ndarray, scale: float) -> float:
    """p of the draws' counts in at most 60 groups of integers of some probability each."""
    k, probabilities = law(scale)
    groups = np.minimum((np.cumsum(probabilities) - probabilities / 2) * 60, 59).astype(int)
    present = np.unique(groups)
    expected = np.bincount(groups, probabilities)[present] * len(draws)
    found = np.bincount(groups[draws - k[0]], minlength=60)[present]
    return float(stats.chisquare(found, expected).pvalue)


def kolmogorov(draws: np.ndarray, scale: float) -> float:
    """p of a uniform point of each draw's interval of probability, which is uniform on (0, 1) if
    the law is right.
    """
    k, probabilities = law(scale)
    high = np.cumsum(probabilities)
    place = (Key(8) / "place").generator().random(len(draws))
    return float(
        stats.kstest(high[draws - k[0]] - place * probabilities[draws - k[0]], "uniform").pvalue
    )


@pytest.mark.parametrize("test", [chi_squared, kolmogorov])
@pytest.mark.parametrize("scale", [0.6, 1.0, 3.7, 4096.0])
def test_the_law_is_the_discrete_gaussians(
    scale: float, test: Callable[[np.ndarray, float], float]
) -> None:
    draws = discrete_gaussian(scale, DRAWS, seeded(str(scale)))
    assert draws.dtype == np.int64
    assert test(draws, scale) > 1e-3
    for wrong in (0.9, 1.1):
        assert test(draws, wrong * scale) < 1e-12


def test_the_systems_randomness_has_the_law_too_and_never_comes_twice() -> None:
    """Unseeded, so that the right law is refused only below 1e-9."""
    one, two = (discrete_gaussian(4096.0, 20_000) for _ in range(2))
    assert chi_squared(one, 4096.0) > 1e-9
    assert not np.array_equal(one, two)


def one_by_one(scale: float, words: np.ndarray) -> list[int]:
    """What stays of proposals (place, step, coin), each decided to 300 bits, whatever floats
    say.
    """
    kept = []
    with mpmath.workprec(300):
        for place, step, coin in words.tolist():
            t, v = int(scale) + 1, 0
            while mpmath.mpf(step) / UNITS < mpmath.exp(-(v + 1)):
                v += 1
            y, sign = place % t + t * v, -1 if coin & 1 else 1
            chance = mpmath.exp(
                v - mpmath.mpf(0.5) - mpmath.mpf(y) ** 2 / (2 * mpmath.mpf(scale) ** 2)
            )
            if (
                place < UNITS // t * t
                and mpmath.mpf(coin >> 11) / 2**53 < chance
                and (y or sign > 0)
            ):
                kept.append(sign * y)
    return kept


@pytest.mark.parametrize("scale", [0.3, 1.0, 300.25, 5 * 65535.0, 2.0**39])
def test_every_decision_is_that_of_exact_arithmetic(scale: float) -> None:
    script = seeded(f"decisions {scale}")(24 * 800)
    source = iter([script])
    kept = module._accepted(scale, 800, lambda count: next(source))
    words = np.frombuffer(script, np.uint64).reshape(3, 800).T
    assert kept.tolist() == one_by_one(scale, words)
    assert len(kept) > 100


def test_a_float_bound_is_wrong_by_far_less_than_the_margin() -> None:
    rng = (Key(9) / "bounds").generator()
    worst = 0.0
    with mpmath.workprec(200):
        for _ in range(3000):
            scale = float(np.exp(rng.uniform(-1, 27)))
            v = int(rng.integers(0, 6))
            y = int(rng.integers(0, int(scale) + 1)) + (int(scale) + 1) * v
            found = np.exp(v - 0.5 - np.float64(y) ** 2 / (2 * scale * scale)) * 2.0**53
            right = (
                mpmath.exp(v - mpmath.mpf(0.5) - mpmath.mpf(y) ** 2 / (2 * mpmath.mpf(scale) ** 2))
                * 2**53
            )
            worst = max(worst, float(abs(found - right)))
    assert 0.3 < worst < module._MARGIN / 4


@pytest.mark.parametrize("above", [0, 1])
def test_a_coin_in_the_bounds_own_cell_is_decided_by_more_bits(above: int) -> None:
    """V = 0 and Y = U = 0: the bound is e^−1/2, whose first 53 bits are the coin's."""
    with mpmath.workprec(400):
        bound = int(mpmath.exp(-mpmath.mpf(0.5)) * mpmath.mpf(2) ** (53 + 128))
    cell, rest = bound >> 128, bound & ((1 << 128) - 1)
    first = np.array([0, UNITS - 1, (cell << 11)], np.uint64).tobytes()
    answers = iter([first, (rest + 16 * above - 8).to_bytes(16, "little")])
    assert module._accepted(10.0, 1, lambda count: next(answers)).tolist() == ([] if above else [0])
    assert next(answers, None) is None


def test_a_step_that_begins_with_a_powers_bits_is_decided_by_more_bits() -> None:
    with mpmath.workprec(400):
        power = int(mpmath.exp(-mpmath.mpf(2)) * mpmath.mpf(2) ** (64 + 128))
    cell, rest = np.array([power >> 128], np.uint64), power & ((1 << 128) - 1)
    for nudge, v in ((-8, 2), (8, 1)):
        source = iter([(rest + nudge).to_bytes(16, "little")])
        assert module._geometric(cell, lambda count, source=source: next(source)).tolist() == [v]
    far = iter([(1 << 127).to_bytes(16, "little")])
    assert module._geometric(np.zeros(1, np.uint64), lambda count: next(far)).tolist() == [45]


def test_zero_has_no_sign_of_its_own_and_an_unfair_place_is_left_out() -> None:
    words = np.array([[0, 0, UNITS - 1], [UNITS - 1] * 3, [0, 1, 0]], np.uint64)
    assert module._accepted(2.5, 3, lambda count: words.tobytes()).tolist() == [0]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), 2.0**41, 1e-200])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(InputError, match="scale"):
        discrete_gaussian(scale, 3)


def test_no_draws_are_none() -> None:
    assert discrete_gaussian(3.0, 0).tolist() == []
