"""The replays of schedulers on curves: what each makes of trials whose order never changes, and
where it does.
"""

import math

import pytest

import scenarios
from raydpzv.keys import Key
from raydpzv.search.search_plan import SearchPlan, trials_of
from tests.helpers.benchmarks import module


@pytest.fixture
def bench(monkeypatch):
    return module("early_stopping", monkeypatch)


def space(bench, value):
    """Return curves; value: of a trial after so many updates."""
    changes = [
        f"budget.updates={bench.UPDATES}",
        f"evaluate.every={bench.EVERY}",
        "privacy.mode=none",
    ]
    made = trials_of(
        lambda settings: scenarios.load("digits_dpzv", [*changes, *settings]),
        [(f"method.lr={0.001 * (n + 1):.6g}",) for n in range(bench.TRIALS)],
        None,
    )
    values = [
        {u: value(n, u) for u in range(bench.EVERY, bench.UPDATES + 1, bench.EVERY)}
        for n in range(bench.TRIALS)
    ]
    plan = SearchPlan("x", "accuracy", "none", 0, None, made)
    return bench.Curves(plan, values, [v[bench.UPDATES] for v in values])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_where_the_order_of_trials_never_changes_the_best_is_found_for_half_of_the_updates(
    bench, workers
):
    found = space(bench, lambda trial, updates: trial / 20)
    for order in range(5):
        came = bench.promoting(found, workers, Key(0) / order)
        assert came.below == 0
        assert 0.3 < came.part <= 0.5


def test_a_trial_that_is_worst_until_its_end_is_lost_by_so_many_points(bench):
    found = space(
        bench,
        lambda trial, updates: 0.9 if (trial, updates) == (3, bench.UPDATES) else (trial == 5) / 2,
    )
    assert max(
        bench.promoting(found, 2, Key(0) / order).below for order in range(20)
    ) == pytest.approx(40)


def test_a_trial_that_diverged_is_no_best(bench):
    found = space(bench, lambda trial, updates: math.nan if trial == 15 else trial / 20)
    assert bench.promoting(found, 2, Key(0)).below == 0
    assert found.points_below([15]) == pytest.approx(70), "as if it had nothing right"


def test_rays_rule_lets_the_first_pass(bench):
    """In the order of their worth, worst first, each of them is the best so far."""
    pytest.importorskip("ray.tune")
    found = space(bench, lambda trial, updates: 0.5)
    assert bench.stopping(found, 1, Key(0)).part == 1.0, "equal ones are no worse"
    better = space(bench, lambda trial, updates: trial / 20)
    parts = [bench.stopping(better, 2, Key(order)).part for order in range(6)]
    assert 0.2 < min(parts) < max(parts) < 1
