"""What DPZV's baselines reach on digits with E = 2, with reproducible noise. Thresholds are the project's promises.

VAFL with noise is in test_accuracy_compared.py, beside DPZV.
"""

from __future__ import annotations

import threading

import pytest

import scenarios
from raydpzv.experiment.prepare import prepare
from tests.helpers.medians import median_reaches
from tests.helpers.runs import run_prepared

NOISE = ("privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-3", "privacy.noise=seeded")


def accuracies(scenario, *overrides, seeds=3):
    """Yield the final accuracy of one seed after the other."""
    for seed in range(seeds):
        spec = scenarios.load(
            scenario, [f"seed={seed}", "evaluate.every=2000", "record.staleness=false", *overrides]
        )
        yield scenarios.run(spec).summary["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "overrides", "least"),
    [
        ("vafl", (), 0.92),
        ("czofo", (), 0.87),
        ("czofo", ("method.variant=per_row", "method.lr=0.1"), 0.90),
        ("zoo_vfl", (), 0.84),
    ],
)
def test_without_privacy(scenario, overrides, least):
    assert median_reaches(least, accuracies(scenario, *overrides), 3)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["czofo", "zoo_vfl"])
def test_embedding_noise_at_epsilon_1_leaves_next_to_nothing(scenario):
    assert not median_reaches(0.35, accuracies(scenario, *NOISE, "privacy.clip=0.1"), 3)


@pytest.mark.slow
def test_federated_logistic_regression():
    assert next(accuracies("vafl_digits")) >= 0.92
    assert next(accuracies("vafl_breast_cancer")) >= 0.93


@pytest.mark.slow
def test_lstms():
    """At some evaluation: a run may end on a spike of its loss, and on which one depends on the processor."""
    reached, stop = [], threading.Event()

    def evaluated(status, metrics):
        reached.append(metrics.accuracy)
        if metrics.accuracy >= 0.90:
            stop.set()

    prepared = prepare(scenarios.load("lstm_vafl", ["evaluate.every=200", "record.staleness=false"]))
    run_prepared(prepared, stop=stop, evaluated=evaluated)
    assert max(reached) >= 0.90
    assert reached[0] < 0.7, "the control: without updates nothing is learned"
