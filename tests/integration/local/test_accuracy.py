"""What the scenarios reach on real data, with reproducible noise. Thresholds are the project's promises."""

from __future__ import annotations

import numpy as np
import pytest

import scenarios
from tests.helpers.medians import median_reaches

SEEDS = range(5)


def accuracy(scenario, seed, *overrides):
    spec = scenarios.load(
        scenario, [f"seed={seed}", "evaluate.every=2000", "record.staleness=false", *overrides]
    )
    return scenarios.run(spec).summary["accuracy"]


@pytest.mark.slow
def test_digits_at_the_papers_epsilon_1_against_the_frozen_control():
    private = np.array([accuracy("digits_dpzv", seed, "privacy.noise=seeded") for seed in SEEDS])
    frozen = np.array([accuracy("frozen", seed) for seed in SEEDS])
    assert np.median(private) >= 0.85
    assert private.min() >= 0.82
    assert (private - frozen).min() >= 0.08
    # the frozen control learns too, so that the comparison means something
    assert 0.5 < np.median(frozen) < 0.8


@pytest.mark.slow
def test_digits_without_privacy():
    free = (accuracy("digits_dpzv", seed, 'privacy={mode="none", clip=2.0}') for seed in SEEDS)
    assert median_reaches(0.88, free, len(SEEDS))


@pytest.mark.slow
def test_the_synchronous_control_and_breast_cancer():
    assert accuracy("sgd", 0) >= 0.93
    assert accuracy("breast_cancer_dpzv", 0, "privacy.noise=seeded") >= 0.90


def test_without_updates_nothing_is_learned():
    assert accuracy("digits_dpzv", 0, "budget.updates=1", "privacy.noise=seeded") < 0.3
