"""ε of Gaussian releases on secret Poisson batches, by privacy loss distributions (dp-accounting).

z is the noise over what adding or removing a record moves: for a mean of B slopes clipped at C, z =
σB/C.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from raydpzv.errors import InputError, suggest
from raydpzv.privacy.gdp import epsilon_of, guess_of, mu_of

RELATIONS = ("replace", "add_remove")

_MOST = 1 << 22  # no run has more batches; beyond, one evaluation takes ten seconds
_WIDEST = 1 << 28  # points of a loss distribution that take some seconds
_ROUNDING = 1 + 1e-9  # a run calibrated to its budget ends on it, not one release before


def poisson_epsilon(
    *, noise_multiplier: float, rate: float, releases: int, delta: float, relation: str = "replace"
) -> float:
    """Return an upper bound on ε of Gaussian releases on secret Poisson batches (dp-accounting,
    PLD).

    Each record enters each batch by its own coin of this rate; the adversary sees no ids and no
    batch sizes. `noise_multiplier` is z for both relations. P releases on one batch are one release
    with z/√P: reduce before the call, and count batches as releases. Never above the same releases
    without sampling, and equal to it where the loss distribution would take gigabytes or minutes.
    """
    _require_sampling(noise_multiplier, rate, releases, relation)
    if releases == 0 or rate == 0:
        return 0.0
    unsampled = epsilon_of(_unsampled_mu(noise_multiplier, releases, relation), delta)
    if _not_sampled(noise_multiplier, rate, releases):
        return unsampled
    return min(unsampled, _sampled_epsilon(noise_multiplier, rate, releases, delta, relation))


def poisson_guess(
    *, noise_multiplier: float, rate: float, releases: int, relation: str = "replace"
) -> float:
    """Return an upper bound on how often an attacker tells neighbours apart: (1 + δ(0))/2 of the
    same PLD.
    """
    _require_sampling(noise_multiplier, rate, releases, relation)
    if releases == 0 or rate == 0:
        return 0.5
    unsampled = guess_of(_unsampled_mu(noise_multiplier, releases, relation))
    if _not_sampled(noise_multiplier, rate, releases):
        return unsampled
    return min(unsampled, _sampled_guess(noise_multiplier, rate, releases, relation))


@functools.lru_cache(maxsize=256)
def poisson_releases(
    *, noise_multiplier: float, rate: float, delta: float, budget: float, relation: str = "replace"
) -> int:
    """Return the most Poisson batches that stay within the ε budget, to 0.1 % and never above it.

    At most 2^22 are looked for: a run that draws more batches is stopped there.
    """
    aim, low, high = mu_of(budget, delta), 0, _MOST + 1
    trial = _central_limit_releases(noise_multiplier, rate, aim, relation)
    while high - low > max(1, low // 1000):
        spent = poisson_epsilon(
            noise_multiplier=noise_multiplier,
            rate=rate,
            releases=trial,
            delta=delta,
            relation=relation,
        )
        within = spent <= budget * _ROUNDING
        low, high = (trial, high) if within else (low, trial)
        # μ grows as √T nearly: scale to the aim and overshoot a little, so that both ends close in
        scaled = trial * (aim / mu_of(spent, delta)) ** 2 * (1.0004 if within else 0.9996)
        trial = int(min(max(scaled, low + 1, low * 1.0002), high - 1, max(low + 1, high * 0.9998)))
    return low


def discretisation(noise_multiplier: float, rate: float) -> float:
    """Return the PLD's grid step clip(0.1 q/z, 1e-6, 1e-3), coarser below z = 0.1, where memory
    runs out.

    Every step gives an upper bound on ε; 1e-4 throughout overstates a small ε up to twofold.
    """
    fine = min(max(0.1 * rate / noise_multiplier, 1e-6), 1e-3)
    return max(fine, 1e-5 / noise_multiplier**2) if noise_multiplier < 0.1 else fine


def _too_wide(noise_multiplier: float, rate: float, releases: int) -> bool:
    """Return whether the loss distribution has too many points, or is composed too often, to be
    worked out.

    A bound on its mean, in grid steps: the points have ε in the hundreds where the grid is finest,
    else in thousands.
    """
    points = 2 * releases * rate / noise_multiplier**2 / discretisation(noise_multiplier, rate)
    return releases > _MOST or points > _WIDEST


def _unsampled_mu(noise_multiplier: float, releases: int, relation: str) -> float:
    return math.sqrt(releases) * (2.0 if relation == "replace" else 1.0) / noise_multiplier


def _not_sampled(noise_multiplier: float, rate: float, releases: int) -> bool:
    """Return whether sampling hides nothing, or is not worked out."""
    return rate == 1 or noise_multiplier < 0.01 or _too_wide(noise_multiplier, rate, releases)


@functools.lru_cache(maxsize=256)
def _sampled_epsilon(
    noise_multiplier: float, rate: float, releases: int, delta: float, relation: str
) -> float:
    return float(_sampled(noise_multiplier, rate, releases, relation).get_epsilon(delta))


@functools.lru_cache(maxsize=256)
def _sampled_guess(noise_multiplier: float, rate: float, releases: int, relation: str) -> float:
    return (1 + float(_sampled(noise_multiplier, rate, releases, relation).get_delta(0.0))) / 2


def _sampled(noise_multiplier: float, rate: float, releases: int, relation: str) -> Any:
    """Return dp-accounting's accountant of all releases; it may hold gigabytes, so nobody keeps
    it.
    """
    import dp_accounting
    from dp_accounting import pld

    neighbours = dp_accounting.NeighboringRelation
    accountant = pld.PLDAccountant(
        neighbours.REPLACE_ONE if relation == "replace" else neighbours.ADD_OR_REMOVE_ONE,
        value_discretization_interval=discretisation(noise_multiplier, rate),
    )
    sampled = dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, releases))
    return accountant


def _central_limit_releases(z: float, rate: float, mu: float, relation: str) -> int:
    """Where to begin the search: the large-T limit, in which a release has μ² = 4q² sinh(1/z²)
    (replace).
    """
    exponent = min(1 / z**2, 700.0)
    squared = rate**2 * (4 * math.sinh(exponent) if relation == "replace" else math.expm1(exponent))
    return int(min(max(mu**2 / max(squared, 1e-300), 1), _MOST))


def _require_sampling(noise_multiplier: float, rate: float, releases: int, relation: str) -> None:
    _require_relation(relation)
    if not (noise_multiplier > 0 and 0 <= rate <= 1 and releases >= 0):
        raise InputError(
            "Poisson accounting needs noise_multiplier > 0, rate in 0..1 and releases >= 0, "
            f"not {noise_multiplier}, {rate}, {releases}"
        )


def _require_relation(relation: str) -> None:
    if relation not in RELATIONS:
        hint = suggest(relation, RELATIONS)
        raise InputError(f'relation "{relation}": {hint}Known: {", ".join(RELATIONS)}')
