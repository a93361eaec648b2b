"""What a search asks for, resolved before Ray starts."""

import warnings

import pytest

import raydpzv
from raydpzv.errors import SpecError
from raydpzv.search.run_tune import _check_metric, planned, rows_note
from raydpzv.search.search_terms import SearchTerms
from tests.helpers.searches import SHORT, plan_of

LR = {"lr": {"loguniform": [1e-3, 1e-1]}}


def test_draws_are_tried_at_every_point_of_the_grid():
    plan = plan_of(LR | {"seed": {"grid": [0, 1]}}, samples=3)
    assert (len(plan.trials), plan.log_scaled) == (6, ["method.lr"])
    assert rows_note(plan) == "the best is chosen by accuracy on the test rows"
    assert rows_note(plan_of(LR, samples=1, held_out=["data.validation_fraction=0.5"])) == ""
    assert len(plan_of(LR).trials) == 10


def test_optuna_chooses_trials_of_a_space_whose_ends_are_scenarios():
    plan = plan_of(LR | {"server": {"choice": ["frozen", "joint"]}}, search="optuna", samples=7)
    assert (plan.trials, plan.size, plan.suggestions.samples) == ((), 7, 7)
    assert plan_of(LR, search="optuna", scheduler="asha").scheduling.name == "asha"
    for space, terms, said in (
        ({"seed": {"grid": [0, 1]}}, {}, "seed: wanted a setting that is drawn"),
        (LR, {"scheduler": "pbt"}, "--search optuna: goes with --scheduler asha or none"),
        (LR, {"samples": 9999}, "--samples: wanted at most"),
        ({"batch": {"randint": [0, 8]}}, {}, r"\(method.batch=0\): method.batch"),
        ({"privacy.epsilon": {"uniform": [4, 8]}}, {"epsilon": 1.0}, "the least of 2 trials"),
    ):
        with pytest.raises(SpecError, match=said):
            plan_of(space, search="optuna", **terms)
    with pytest.raises(SpecError, match=r'--search: wanted random or optuna.*mean "optuna"'):
        plan_of(LR, search="optun")


def test_a_search_runs_under_the_virtual_clock_unless_asked_otherwise(tmp_path):
    wall = ["clock.kind=wall"]
    plan, was_wall = planned("stragglers", LR, SHORT, SearchTerms(samples=1))
    clocks = {trial.spec.clock.kind for trial in plan.trials}
    assert (clocks, was_wall) == ({"virtual"}, raydpzv.load("stragglers").clock.kind == "wall")
    plan, was_wall = planned("digits_dpzv", LR, [*SHORT, *wall], SearchTerms(samples=1))
    assert (plan.trials[0].spec.clock.kind, was_wall) == ("wall", False)


@pytest.mark.parametrize(
    ("metric", "changes", "said"),
    [
        ("roc_auc", (), "wanted data of two classes, these have 10"),
        ("rmse", (), "wanted numbers for labels, got classes"),
        ("concordance", (), "wanted survival times, got classes"),
    ],
)
def test_a_metric_that_the_data_do_not_have_is_refused(metric, changes, said):
    with pytest.raises(SpecError, match=said):
        _check_metric(plan_of(LR, *changes, metric=metric, samples=1))


def test_settings_and_terms_that_contradict_one_another_are_refused():
    for terms, said in (
        ({"soonest": 0.5, "scheduler": "asha"}, "--soonest: is known at a trial's end"),
        ({"held_out": ["method.lr=1"]}, "--held-out: wanted settings of"),
    ):
        with pytest.raises(SpecError, match=said):
            plan_of(LR, **terms)
    with pytest.raises(TypeError, match="smples"):
        raydpzv.tune("digits_dpzv", LR, "never", smples=3)
    with warnings.catch_warnings(), pytest.raises(SpecError, match="is fixed by --set"):
        raydpzv.tune("digits_dpzv", LR, "never", overrides=["method.lr=0.1"])
