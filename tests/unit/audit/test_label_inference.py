"""The likelihood ratio of two labels, against densities."""

import numpy as np
from scipy.stats import norm

from raydpzv.audit.forced_queries import Queries
from raydpzv.audit.label_inference import LabelGuesses, label_evidence
from raydpzv.keys import Key
from raydpzv.privacy.gdp import delta_of


def test_the_log_ratio_is_that_of_the_densities_and_right_as_often_as_phi_of_half_d():
    generator = (Key(4) / "ratio").generator()
    count, sigmas = 6, np.array([1.0, 1.0, 2.0, 2.0, 0.5, 0.5])
    addresses, batches = tuple((0, n, 0) for n in range(count)), (np.arange(1),) * count
    mine, other = (
        Queries(addresses, generator.normal(size=count), sigmas, batches, {}) for _ in range(2)
    )
    right = 0
    for _ in range(2000):
        seen = mine.values + sigmas * generator.normal(size=count)
        apart, ratio = label_evidence(mine, other, seen)
        densities = norm.logpdf(seen, mine.values, sigmas) - norm.logpdf(seen, other.values, sigmas)
        assert np.isclose(ratio, densities.sum(), atol=1e-9)
        right += ratio > 0
    assert abs(right / 2000 - norm.cdf(apart / 2)) < 0.03


def test_the_bound_is_phi_of_half_mu():
    mu = 1.3
    guesses = LabelGuesses(2.0, delta_of(2.0, mu), 5, 10, 0.2, 0.8, 0.1, 0.6)
    assert np.isclose(guesses.bound, norm.cdf(mu / 2), rtol=1e-9)
