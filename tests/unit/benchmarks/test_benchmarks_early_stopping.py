"""The replay of a scheduler on curves: what it makes of trials whose order never changes."""

import math

import pytest

import scenarios
from raydpzv.keys import Key
from raydpzv.search.tune_plan import SearchPlan, Trial, TunedLine
from tests.helpers.benchmarks import module


@pytest.fixture
def bench(monkeypatch):
    pytest.importorskip("ray.tune")
    return module("early_stopping", monkeypatch)


def space(bench, value):
    """Return curves; value: of a trial after so many updates."""
    changes = [f"budget.updates={bench.UPDATES}", f"evaluate.every={bench.EVERY}"]
    spec = scenarios.load(
        "digits_dpzv", [*changes, "privacy.mode=none", "data.validation_fraction=0.2"]
    )
    trials = tuple(Trial(n, 0, (f"seed={n}",), spec) for n in range(bench.TRIALS))
    values = [
        {u: value(n, u) for u in range(bench.EVERY, bench.UPDATES + 1, bench.EVERY)}
        for n in range(bench.TRIALS)
    ]
    plan = SearchPlan("x", bench.METRIC, (TunedLine("x", {}),), trials=trials)
    return bench.Curves(plan, values, [v[bench.UPDATES] for v in values])


def test_a_trial_that_diverged_is_no_best(bench):
    found = space(bench, lambda trial, updates: math.nan if trial == 15 else trial / 20)
    assert found.points_below([14, 15]) == 0
    assert found.points_below([15]) == pytest.approx(70), "as if it had nothing right"


def test_rays_rule_lets_the_first_pass(bench):
    """In the order of their worth, worst first, each of them is the best so far."""
    found = space(bench, lambda trial, updates: 0.5)
    assert bench.stopping(found, 1, Key(0)).part == 1.0, "equal ones are no worse"
    better = space(bench, lambda trial, updates: trial / 20)
    parts = [bench.stopping(better, 2, Key(order)).part for order in range(6)]
    assert 0.2 < min(parts) < max(parts) < 1
