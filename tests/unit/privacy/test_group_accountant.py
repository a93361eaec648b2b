"""DP-SGD of a user's k records: against numbers of the specification, and losses convolved by an
FFT of this file.
"""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from raydpzv.privacy import group_accountant as module
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.group_accountant import (
    group_epsilon,
    group_epsilon_rdp,
    lemma_9_epsilon,
    mixture_rdp,
)
from tests.helpers.rdp import poisson_epsilon_rdp

FIGURE_2 = {"multiplier": 5.0, "rate": 0.01, "steps": 100_000, "delta": 1e-5}


@pytest.mark.parametrize(
    ("group", "published", "valid", "exact"),
    [
        (1, 2.85, 2.85, 2.63),
        (2, 7.99, 7.99, 5.84),
        (4, 24.5, 24.5, 13.6),
        (16, 451, 546, 95.2),
        (32, 2152, 3267, 296),
    ],
)
def test_the_papers_figure_2(group: int, published: float, valid: float, exact: float) -> None:
    assert lemma_9_epsilon(**FIGURE_2, group=group, as_published=True) == pytest.approx(
        published, rel=2e-3
    )
    assert lemma_9_epsilon(**FIGURE_2, group=group) == pytest.approx(valid, rel=2e-3)
    assert group_epsilon(**FIGURE_2, group=group) == pytest.approx(exact, rel=2e-3)


def by_convolution(
    multiplier: float, group: int, rate: float, steps: int, delta: float, cell: float = 2e-4
) -> float:
    """ε of T losses log dP/dQ at x ~ P and log dQ/dP at x ~ Q, each histogram raised to T by an
    FFT.
    """
    counts = np.arange(group + 1)
    weights = stats.binom.pmf(counts, group, rate)
    edges = np.linspace(-12 * multiplier, group + 12 * multiplier, 200_001)
    x = (edges[1:] + edges[:-1]) / 2
    p = np.diff(stats.norm.cdf((edges[:, None] - counts) / multiplier) @ weights)
    q = np.diff(stats.norm.cdf(edges / multiplier))
    ratio = np.log(
        weights @ np.exp((counts[:, None] * x - counts[:, None] ** 2 / 2) / multiplier**2)
    )
    found = []
    for mass, losses in ((p, ratio), (q, -ratio)):
        size = 1 << 17
        places = np.rint(losses / cell).astype(int)
        spectrum = np.fft.rfft(np.bincount(places % size, mass, minlength=size))
        total = np.clip(np.fft.irfft(spectrum**steps, size), 0, None)
        values = (
            np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size) * cell
        )
        low, high = 0.0, size // 2 * cell
        for _ in range(60):
            middle = (low + high) / 2
            above = values > middle
            spent = float((total[above] * -np.expm1(middle - values[above])).sum())
            low, high = (middle, high) if spent > delta else (low, middle)
        found.append(high)
    return max(found)


@pytest.mark.parametrize(
    ("multiplier", "group", "rate", "steps"), [(5, 2, 0.05, 200), (12, 5, 0.1, 60)]
)
def test_the_loss_distribution_is_that_of_another_hand(
    multiplier: float, group: int, rate: float, steps: int
) -> None:
    given = {
        "multiplier": float(multiplier),
        "group": group,
        "rate": rate,
        "steps": steps,
        "delta": 1e-5,
    }
    found, other = group_epsilon(**given), by_convolution(**given)
    assert found == pytest.approx(other, rel=5e-3)
    assert by_convolution(**given | {"multiplier": 0.9 * multiplier}) > 1.05 * found


def test_halving_the_step_moves_nothing_much(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, found = module._step, []
    for factor in (1.0, 0.5):
        monkeypatch.setattr(module, "_step", lambda *given, factor=factor: factor * whole(*given))
        module._group_epsilon.cache_clear()
        found.append(group_epsilon(multiplier=8.0, group=3, rate=0.1, steps=300, delta=1e-5))
    module._group_epsilon.cache_clear()
    assert found[1] == pytest.approx(found[0], rel=1e-2)


def test_renyi_divergence_is_looser_and_of_one_record_dp_accountings() -> None:
    one = {"multiplier": 5.0, "rate": 0.3, "delta": 1e-5}
    found = group_epsilon_rdp(**one, group=1, steps=100)
    assert found == pytest.approx(
        poisson_epsilon_rdp(noise_multiplier=5.0, rate=0.3, releases=100, delta=1e-5), rel=5e-3
    )
    for group in (2, 16):
        exact = group_epsilon(**FIGURE_2, group=group)
        assert exact < group_epsilon_rdp(**FIGURE_2, group=group) < 1.15 * exact


def test_renyi_divergence_without_coins_is_the_gaussians() -> None:
    for order in (1.5, 2.0, 17.0):
        assert mixture_rdp(order, 3.0, 4, 1.0) == pytest.approx(order * 16 / (2 * 9), rel=1e-9)


def test_without_coins_it_is_the_closed_form() -> None:
    given = {"multiplier": 50.0, "rate": 1.0, "steps": 30, "delta": 1e-5}
    assert group_epsilon(**given, group=3) == pytest.approx(
        epsilon_of(math.sqrt(30) * 3 / 50, 1e-5)
    )
    assert group_epsilon(**given, group=3, relation="replace") == pytest.approx(
        epsilon_of(math.sqrt(30) * 6 / 50, 1e-5)
    )


@pytest.mark.parametrize("multiplier", [5.0, 200.0])
def test_replacing_costs_twice_the_third_tables_and_never_more_than_all_records(
    multiplier: float,
) -> None:
    given = {"multiplier": multiplier, "group": 4, "rate": 0.05, "steps": 100, "delta": 1e-5}
    once, twice = group_epsilon(**given), group_epsilon(**given, relation="replace")
    half = group_epsilon(**given | {"delta": 1e-5 / (1 + math.exp(twice / 2))})
    assert twice == pytest.approx(2 * half, rel=1e-3)
    assert 1.9 * once < twice <= epsilon_of(math.sqrt(100) * 8 / multiplier, 1e-5)


def test_no_steps_spend_nothing() -> None:
    assert group_epsilon(multiplier=5.0, group=4, rate=0.05, steps=0, delta=1e-5) == 0


def test_a_large_groups_divergence_takes_little_memory() -> None:
    """As many records as Creditcard's heaviest user has: all terms at once would be 180 MB."""
    tracemalloc.start()
    try:
        assert mixture_rdp(4.0, 5.0, 1300, 0.013) > mixture_rdp(2.0, 5.0, 1300, 0.013)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
