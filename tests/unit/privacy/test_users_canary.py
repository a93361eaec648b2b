"""A user in or out: what an attacker tells from noised sums stays under the stated ε, and with less
noise does not.
"""

import math

import numpy as np
import pytest
from scipy import stats

from raydpzv.keys import Key
from raydpzv.privacy.user_mechanism import user_epsilon
from raydpzv.privacy.user_release import UserNoiseParts, UserRelease, user_integers
from raydpzv.privacy.users import UserReleasePlan

RUNS, SILOS, RELEASES, DELTA = 20_000, 4, 3, 1e-3
CLIP, BITS = 0.5, 10


def setting(weights: str) -> UserReleasePlan:
    given = UserReleasePlan(
        users=50,
        silos=SILOS,
        releases=RELEASES,
        clip=CLIP,
        delta=DELTA,
        multiplier=1.0,
        weights=weights,
    )
    return given.with_noise_for(1.0)


def statistics(weights: str, multiplier: float, *, inside: bool, run: int) -> np.ndarray:
    """Sums of all released numbers of many runs, float64 [RUNS]; the user's vectors point one way,
    far beyond C.
    """
    reach = SILOS if weights == "uniform" else 1
    key = Key(run) / weights / int(inside)
    noise = UserNoiseParts(UserRelease(CLIP, BITS, multiplier, reach), 50, key, key, seeded=True)
    vector, _ = user_integers(np.array([[1e6]], np.float32), clip=CLIP, bits=BITS)
    term = int(vector[0, 0]) * reach if inside else 0
    total = np.full(RUNS, RELEASES * term, np.float64)
    for silo in range(SILOS):
        for release in range(RELEASES):
            total += noise.share(RUNS, SILOS, (silo, release, 0), pairs=1, nonfinite=0)[0]
    return total


def lower_bound(weights: str, multiplier: float) -> float:
    """ε that the best of some thresholds proves, at 99.9 % for each end (Clopper-Pearson)."""
    thresholds = np.quantile(
        statistics(weights, multiplier, inside=True, run=1), np.linspace(0.02, 0.98, 25)
    )
    out, inside = (statistics(weights, multiplier, inside=i, run=2) for i in (False, True))
    found = 0.0
    for threshold in thresholds:
        hits, alarms = int((inside > threshold).sum()), int((out > threshold).sum())
        right = stats.beta.ppf(1e-3, hits, RUNS - hits + 1) if hits else 0.0
        wrong = stats.beta.ppf(1 - 1e-3, alarms + 1, RUNS - alarms)
        if right > DELTA:
            found = max(found, math.log((right - DELTA) / wrong))
    return found


@pytest.mark.parametrize("weights", ["uniform", "records"])
def test_no_attacker_tells_more_than_is_stated(weights: str) -> None:
    given = setting(weights)
    seen = lower_bound(weights, given.multiplier)
    assert 0.5 < seen <= user_epsilon(given) == pytest.approx(1.0)
    assert lower_bound(weights, given.multiplier / 4) > 1.5
