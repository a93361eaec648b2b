"""Lower bounds on ε from guesses: over many runs (Clopper and Pearson), and over many canaries of
one run.

A bound at 95 % is above the ε of an (ε, δ)-private run in at most one audit of twenty. That is what
is shown; what is called falsified is so at 99.9 %, so that of a thousand audits of runs whose
proofs hold one says otherwise.
"""

# m canaries, r guesses, v right ones

from __future__ import annotations

import math

import numpy as np

from raydpzv.errors import InputError

CONFIDENCE = 0.95
"""Confidence of the bounds that are shown."""
SURE = 0.999
"""Confidence of a falsification."""
_LARGEST = 100.0
"""ε beyond which nothing is looked for: e^100 to one."""


def share_bounds(right: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a probability of which `right` of `count` trials came
    true.
    """
    from scipy.stats import beta

    _require(0 <= right <= count and count > 0, f"0 <= right <= count, not {right} of {count}")
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, right, count - right + 1)) if right else 0.0
    high = float(beta.isf(tail, right + 1, count - right)) if right < count else 1.0
    return low, high


def epsilon_of_rates(
    hits: int, inside: int, alarms: int, outside: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return ε that a test of "is the canary in?" shows: `hits` of `inside` runs, `alarms` of
    `outside` runs.

    (ε, δ)-DP wants TPR <= e^ε FPR + δ, and the same of the complements (Jagielski, Ullman, Oprea
    2020). Each rate lies below its upper or above its lower limit with (1 - confidence) / 2 to
    spare, so that both do at `confidence`.
    """
    hit_low, _ = share_bounds(hits, inside, confidence)
    _, alarm_high = share_bounds(alarms, outside, confidence)
    return max(
        _ratio(hit_low - delta, alarm_high), _ratio(1 - alarm_high - delta, 1 - hit_low), 0.0
    )


def epsilon_of_guesses(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest ε that `right` of `guesses` about coins of `canaries` rule out (Steinke et
    al. 2023).

    Each canary was in or out by a fair coin of its own, in one run; guesses: abstentions do not
    count.
    """
    level = 1 - confidence
    low, high = 0.0, _LARGEST
    if chance_of_guesses(canaries, guesses, right, low, delta) >= level:
        return 0.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if chance_of_guesses(canaries, guesses, right, middle, delta) < level:
            low = middle
        else:
            high = middle
    return low


def chance_of_guesses(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Return at least the probability of so many right guesses under (ε, δ)-DP (Steinke et al.
    2023, Theorem 5.2).

    With W ~ Binomial(r, e^ε / (1 + e^ε)): P[W >= v] + 2 m δ max_i P[v > W >= v - i] / i over i =
    1..v.
    """
    from scipy.stats import binom

    _require(
        0 <= right <= guesses <= canaries and epsilon >= 0 and 0 <= delta <= 1,
        f"0 <= right <= guesses <= canaries, ε >= 0 and a δ, not {right}, {guesses}, {canaries}, "
        f"{epsilon}, {delta}",
    )
    share = 1 / (1 + math.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, share))
    spread = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return min(float(binom.sf(right - 1, guesses, share)) + 2 * canaries * delta * spread, 1.0)


def _ratio(above: float, below: float) -> float:
    if above <= 0:
        return 0.0
    return math.log(above / below) if below > 0 else math.inf


def _require(holds: bool, wanted: str) -> None:
    if not holds:
        raise InputError(f"wanted {wanted}")
