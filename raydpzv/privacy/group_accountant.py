"""DP-SGD of which a user has k records, in whatever silos: its privacy exactly, and by the Uldp-FL
paper's conversion.

In a step every record is drawn by its own secret coin of rate γ, the same in all silos. Without the
user's k records the sums of all silos together move by a vector of norm at most J·C, J ~ Bin(k, γ),
and each has noise of deviation σC: the step is dominated by the mixture of Gaussians N(J, σ²)
against N(0, σ²) (Ganesh, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of
Gaussians mechanisms", 2024). ε is that of its privacy loss distribution, composed over all steps;
Rényi divergences of the same mixture are the second opinion.

The paper converts a record's Rényi divergences to a group's (Uldp-FL, Lemma 9; Mironov 2017,
Proposition 2): for k = 2^c and orders α >= 2k, (α, ρ) becomes (α/k, 3^c ρ). As printed it has k
where c belongs, and the published program looks at the order k + 10 too, which is below 2k for k >
10.
"""

# k records of a user, γ rate, T steps, α order

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from raydpzv.privacy.gdp import epsilon_of, guess_of
from raydpzv.privacy.pld import discretisation, poisson_epsilon, poisson_guess

_POINTS = 60_000  # of one step's loss distribution, each of which takes dp-accounting some 10 µs
_WIDEST = 1 << 26  # points of the composed one
_ORDERS = (*(1 + 2.0 ** (power / 4) for power in range(-16, 25)), 96.0, 128.0)
_WORK = 1 << 25  # terms of one divergence, at most: some tenths of a second
_BLOCK = 1 << 20  # of them kept at a time
_QUADRATURE = 1 / 8  # of σ: the trapezoidal rule on Gaussian tails is exact in double precision


def group_epsilon(
    *,
    multiplier: float,
    group: int,
    rate: float,
    steps: int,
    delta: float,
    relation: str = "add_remove",
) -> float:
    """Return an upper bound on ε of T steps for a user of k records, add_remove or replace.

    Of one record it is that of Poisson sampling. With γ = 1 it is the closed form √T k/σ (twice of
    it for replace), and never above. Replacing a user is taking it away and adding another; the
    better of two bounds on both steps together, by loss distributions (2ε at (1 + e^ε) δ(ε)) and by
    Rényi divergences, counts.
    """
    if steps == 0:
        return 0.0
    if group == 1:
        return poisson_epsilon(
            noise_multiplier=multiplier, rate=rate, releases=steps, delta=delta, relation=relation
        )
    return _group_epsilon(multiplier, group, rate, steps, delta, relation)


def group_guess(
    *, multiplier: float, group: int, rate: float, steps: int, relation: str = "add_remove"
) -> float:
    """Return an upper bound on how often an attacker tells neighbours apart: (1 + TV)/2, TV = δ(0)
    of the same losses.

    Of replacing a user TV is at most twice that of taking it away, by the triangle inequality.
    """
    if steps == 0:
        return 0.5
    if group == 1:
        return poisson_guess(
            noise_multiplier=multiplier, rate=rate, releases=steps, relation=relation
        )
    moved = group if relation == "add_remove" else 2 * group
    unsampled = guess_of(math.sqrt(steps) * moved / multiplier)
    step = _step(multiplier, group, rate)
    if rate == 1 or _too_wide(multiplier, group, rate, steps, step):
        return unsampled
    apart = _distance(multiplier, group, rate, steps, step) * (1 if relation == "add_remove" else 2)
    return min(unsampled, (1 + apart) / 2)


@functools.lru_cache(maxsize=256)
def _distance(multiplier: float, group: int, rate: float, steps: int, step: float) -> float:
    return float(_one(multiplier, group, rate, step).self_compose(steps).get_delta_for_epsilon(0.0))


@functools.lru_cache(maxsize=256)
def _group_epsilon(
    multiplier: float, group: int, rate: float, steps: int, delta: float, relation: str
) -> float:
    moved = group if relation == "add_remove" else 2 * group
    unsampled = epsilon_of(math.sqrt(steps) * moved / multiplier, delta)
    step = _step(multiplier, group, rate)
    if rate == 1 or _too_wide(multiplier, group, rate, steps, step):
        return unsampled
    losses = _one(multiplier, group, rate, step).self_compose(steps)
    if relation == "add_remove":
        return min(unsampled, float(losses.get_epsilon_for_delta(delta)))
    by_divergence = min(
        converted(steps * _replaced_rdp(order, multiplier, group, rate), order, delta)
        for order in _orders(multiplier, group)
    )
    return min(unsampled, _replaced(losses, delta), by_divergence)


def group_epsilon_rdp(
    *, multiplier: float, group: int, rate: float, steps: int, delta: float
) -> float:
    """Return ε (add_remove) by Rényi divergences of the mixture: a second opinion, looser than by
    its losses.
    """
    return min(
        converted(steps * mixture_rdp(order, multiplier, group, rate), order, delta)
        for order in _orders(multiplier, group)
    )


def _orders(multiplier: float, group: int) -> tuple[float, ...]:
    """Return the orders that are worth their work: large groups spend so much that the least orders
    decide.
    """
    reach = 40 * multiplier
    points = [2 * (reach + 2 * order * group) / (multiplier * _QUADRATURE) for order in _ORDERS]
    return (
        tuple(order for order, n in zip(_ORDERS, points, strict=True) if n * group <= _WORK)
        or _ORDERS[:1]
    )


def lemma_9_epsilon(
    *,
    multiplier: float,
    group: int,
    rate: float,
    steps: int,
    delta: float,
    as_published: bool = False,
) -> float:
    """Return ε by the paper's Lemma 9, for the largest power of 2 up to k, as the paper takes it.

    as_published: over the orders of the published program, some of which do not meet the lemma's
    own condition α >= 2k; else over those that do.
    """
    doublings = group.bit_length() - 1
    k = 1 << doublings
    orders = [2 * k + x / 10 for x in range(100) if k > 1 or x > 0]
    more = np.linspace(k + 10, 64 * k, 20).tolist()
    orders += [order for order in more if order <= 512 and (as_published or order >= 2 * k)]
    return min(
        converted(3**doublings * steps * mixture_rdp(order, multiplier, 1, rate), order / k, delta)
        for order in orders
    )


@functools.lru_cache(maxsize=4096)
def mixture_rdp(order: float, multiplier: float, group: int, rate: float) -> float:
    """Return the larger Rényi divergence of order α > 1 between N(J, σ²), J ~ Bin(k, γ), and N(0,
    σ²), both ways.
    """
    from scipy.special import gammaln, logsumexp

    j = np.arange(group + 1)
    binomial = gammaln(group + 1) - gammaln(j + 1) - gammaln(group - j + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        chances = (
            binomial
            + np.where(j, j * np.log(rate), 0)
            + np.where(group - j, (group - j) * np.log1p(-rate), 0)
        )
    reach = 40 * multiplier
    x = np.arange(-reach - order * group, reach + order * group, multiplier * _QUADRATURE)
    blocks = np.array_split(x, 1 + len(x) * len(j) // _BLOCK)
    base = -(x**2) / (2 * multiplier**2) - math.log(multiplier * math.sqrt(2 * math.pi))
    ratio = np.concatenate(
        [
            logsumexp(
                chances[:, None] + (j[:, None] * block - j[:, None] ** 2 / 2) / multiplier**2,
                axis=0,
            )
            for block in blocks
        ]
    )
    width = math.log(multiplier * _QUADRATURE)
    moments = [logsumexp(base + power * ratio) + width for power in (order, 1 - order)]
    return float(max(moments)) / (order - 1)


def _replaced_rdp(order: float, multiplier: float, group: int, rate: float) -> float:
    """Going over a third data set, which lacks the user (Mironov 2017, Proposition 11: a triangle
    inequality).
    """
    there = mixture_rdp(2 * order, multiplier, group, rate)
    return (order - 0.5) / (order - 1) * there + mixture_rdp(2 * order - 1, multiplier, group, rate)


def converted(rho: float, order: float, delta: float) -> float:
    """Return ε of (α, ρ)-Rényi privacy (Balle et al. 2020; the paper's Lemma 4)."""
    return max(
        rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1), 0.0
    )


def _step(multiplier: float, group: int, rate: float) -> float:
    """The grid's step: fine beside the mean loss of a step, coarser where its range would have too
    many points.
    """
    widest = (group / multiplier) * 20 + (group / multiplier) ** 2
    return max(discretisation(multiplier, min(group * rate, 1.0)), widest / _POINTS)


def _too_wide(multiplier: float, group: int, rate: float, steps: int, step: float) -> bool:
    spread = group * rate / multiplier
    return 2 * steps * spread**2 / step + 20 * math.sqrt(steps) * spread / step > _WIDEST


@functools.lru_cache(maxsize=16)
def _one(multiplier: float, group: int, rate: float, step: float) -> Any:
    """The loss distribution of one step."""
    from dp_accounting.pld import privacy_loss_distribution
    from scipy.stats import binom

    numbers = np.arange(group + 1)
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        multiplier,
        numbers.tolist(),
        binom.pmf(numbers, group, rate).tolist(),
        value_discretization_interval=step,
    )


def _replaced(losses: Any, delta: float) -> float:
    """ε of going over a third data set, which lacks the user: twice the ε at which (1 + e^ε) δ(ε)
    is δ.
    """
    low, high = 0.0, 1.0
    while losses.get_delta_for_epsilon(high) * (1 + math.exp(min(high, 700.0))) > delta:
        low, high = high, 2 * high
        if high > 600:
            return math.inf
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        if losses.get_delta_for_epsilon(middle) * (1 + math.exp(middle)) > delta:
            low = middle
        else:
            high = middle
    return 2 * high
