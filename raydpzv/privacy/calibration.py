"""From a target (ε, δ) to the noise, by the DPZV papers' argument; and how often a plan uses one
record.

The papers' calibration is σ = 2C√T / (Dμ) (DPZV journal Theorem VI.5, preprint Theorem 6.1). Its ε
is a claim
of the paper, not a guarantee: `raydpzv.privacy.mean` says against whom it holds.
T releases of the whole run (updates x perturbations, all clients), D rows, C clip, B batch.
σ is the standard deviation of the noise on the released batch mean; σ and C belong to the same form
of the slope, and ε does not depend on which: Δ_λ(C, σ) = 2 Δ_2λ(C/2, σ/2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from raydpzv.errors import InputError, suggest
from raydpzv.privacy.gdp import epsilon_of, mu_of

BATCHES = ("shuffle", "uniform", "poisson")
"""Passes over a shuffled order; B rows without replacement; each row by its own coin of rate
B/D.
"""

_MOST = 1 << 62  # no run counts as far


def paper_sigma(*, epsilon: float, delta: float, clip: float, releases: int, rows: int) -> float:
    """Return σ = 2C√T / (Dμ) (DPZV journal Theorem VI.5); InputError where no finite noise reaches
    (ε, δ).
    """
    for name, value in (("clip", clip), ("releases", releases), ("rows", rows)):
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be positive and finite to calibrate noise, not {value}")
    mu = mu_of(epsilon, delta)
    if not 0 < mu < math.inf:
        raise InputError(
            f"no noise level gives ε={epsilon}, δ={delta}: give a finite ε and 0 < δ < 1"
        )
    return 2 * clip * math.sqrt(releases) / (rows * mu)


def paper_epsilon(t: int, *, sigma: float, clip: float, rows: int, delta: float) -> float:
    """Return what the paper's argument claims after t of the T releases: ε of μ√(t/T) = 2C√t /
    (Dσ).
    """
    return epsilon_of(paper_mu(t, sigma=sigma, clip=clip, rows=rows), delta)


def paper_mu(t: int, *, sigma: float, clip: float, rows: int) -> float:
    """Return the μ that the paper's argument claims after t releases; infinity without noise."""
    if t == 0:
        return 0.0
    return 2 * clip * math.sqrt(t) / (rows * sigma) if sigma > 0 else math.inf


def planned_participations(
    *, batches: str, releases: int, rows: int, batch: int, clients: int, perturbations: int = 1
) -> int:
    """Return the most releases one record can take part in, whatever the arrival order.

    An update of P perturbations is P releases on one batch. "uniform" and "poisson" may draw a
    record every time, so that all releases count. With "shuffle" each of M clients passes through k
    = ⌊D/B⌋ batches before it meets a record again, so s_m of its updates use a record at most
    ⌈s_m/k⌉ times. Over all splits of U updates, Σ⌈s_m/k⌉ is largest with one update to each client
    (each counts) and the other U − M given to one client in whole passes, since ⌈s/k⌉ ≤ (s − 1)/k +
    1 for s ≥ 1: M + ⌊(U − M)/k⌋, or U if U ≤ M. It is attained, hence not above the simpler ⌈U/k⌉ +
    M − 1.
    """
    if batches not in BATCHES:
        raise InputError(
            f'batches "{batches}": {suggest(batches, BATCHES)}Known: {", ".join(BATCHES)}'
        )
    if batches != "shuffle":
        return releases
    if batch > rows:
        raise InputError(
            f"a batch of {batch} needs as many rows, there are {rows}: choose a smaller batch"
        )
    updates, passes = -(-releases // perturbations), rows // batch
    most = updates if updates <= clients else clients + (updates - clients) // passes
    return min(most * perturbations, releases)


def expected_participations(*, releases: int, rows: int, batch: int) -> float:
    """Return T·B/D, a FORECAST of how often an average record takes part; the maximum is higher."""
    return releases * batch / rows


def largest_count(within: Callable[[int], bool]) -> int:
    """Return the largest count from 0 to 2^62 that is within: all below it are, none above."""
    low, high = 0, 1
    while high < _MOST and within(high):
        low, high = high, 2 * high
    if high == _MOST and within(_MOST):
        return _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low
