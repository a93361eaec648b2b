"""DeComFL on real data: 100 clients with Dirichlet rows, 10 per round."""

import numpy as np
import pyarrow.compute as pc
import pytest

import scenarios
from raydpzv.experiment.finalize import Run

pytestmark = pytest.mark.slow


def run(*overrides: str) -> Run:
    return scenarios.run(scenarios.load("digits_decomfl", overrides))


@pytest.mark.parametrize("seed", range(2))
def test_300_rounds_of_25_perturbations_reach_90_percent(seed):
    summary = run(f"seed={seed}", "evaluate.every=300").summary
    assert summary["accuracy"] >= 0.90
    assert summary["updates"] == 300


@pytest.mark.parametrize("seed", range(2))
def test_1000_rounds_of_5_perturbations_reach_87_percent(seed):
    settings = (
        "method.perturbations=5",
        "method.lr=1e-2",
        "budget.updates=1000",
        "evaluate.every=1000",
    )
    assert run(f"seed={seed}", *settings).summary["accuracy"] >= 0.87


def test_a_step_size_of_nothing_learns_nothing():
    """The control: what is reached above is not in the initial model or in the data's split."""
    assert run("method.lr=1e-9", "budget.updates=50").summary["accuracy"] < 0.3


def test_asynchronous_clients_learn_with_stale_models():
    found = scenarios.run(scenarios.load("decomfl_async", ["evaluate.every=2000"]))
    assert found.summary["accuracy"] >= 0.85
    assert found.summary["staleness"]["mean"] > 5


def test_19_210_parameters_take_a_quarter_of_the_bytes_of_fedavg_to_80_percent():
    wide = ("model.hidden=[256]", "evaluate.every=5")
    seeded = run(*wide, "method.lr=3e-2", "budget.updates=100")
    # K and step size: the best of a grid over K = 1, 5, 20 and 0.1 to 1.0
    best = ("method.name=fedavg", "method.lr=0.3", "method.local_steps=5", "budget.updates=20")
    weights = run(*wide, *best, "evaluate.every=1")
    assert seeded.models["shared"].size == weights.models["shared"].size == 19_210
    assert 4 * sum(to_80(seeded)) < sum(to_80(weights))
    assert 20 * to_80(seeded)[0] < to_80(weights)[0]  # up alone, where the catch-up does not count


def to_80(found: Run) -> tuple[int, int]:
    """Return the bytes up and down until the test accuracy was first 80 %."""
    evaluation, message = found.rows("evaluation"), found.rows("message")
    reached = np.flatnonzero(evaluation["accuracy"].to_numpy() >= 0.8)
    sent = message.filter(pc.less_equal(message["round"], evaluation["round"][int(reached[0])]))
    up = pc.sum(sent.filter(pc.equal(sent["direction"], "up"))["bytes"]).as_py()
    return up, pc.sum(sent["bytes"]).as_py() - up
