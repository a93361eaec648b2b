"""What an attacker measures of a canary: a record, or a user, in many runs or out of them."""

import math

import numpy as np
from scipy.stats import beta


def audited_epsilon(
    inside: np.ndarray, outside: np.ndarray, threshold: float, delta: float
) -> float:
    """Lower bound on ε from log((TPR − δ) / FPR), each end at 99.95 %.

    inside, outside: what was measured of each run [R] with the canary and without.
    """
    runs = len(inside)
    hits, alarms = int((inside > threshold).sum()), int((outside > threshold).sum())
    tpr = beta.ppf(5e-4, hits, runs - hits + 1) if hits else 0.0
    fpr = beta.ppf(1 - 5e-4, alarms + 1, runs - alarms)
    return math.log(max(tpr - delta, 1e-300) / fpr)
