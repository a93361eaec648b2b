"""Ray Tune's schedulers and searchers, as a search asks for them."""

from types import SimpleNamespace

import pytest

from raydpzv.search.space import Dimension
from tests.helpers.searches import plan_of

rules = pytest.importorskip("actors.tune_rules")

LR = {"lr": {"loguniform": [1e-3, 1e-1]}}
LONG = ("budget.updates=90", "evaluate.every=10")


def test_trials_keep_their_numbers_where_some_are_skipped():
    space = {"privacy.epsilon": {"grid": [9.0, 1.0]}, "seed": {"grid": [0, 1]}}
    plan = plan_of(space, epsilon=2.0)
    assert [trial.number for trial in plan.started] == [2, 3]
    assert rules.number_of(plan, "abc_00001", {"seed": 1}) == 3
    assert rules.number_of(plan, "abcdef", {rules.TRIAL: 7}) == 7
    assert rules.configuration(plan.trials[3]) == {"privacy.epsilon": 1.0, "seed": 1}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("none", "FIFOScheduler"),
        ("asha", "AsyncHyperBandScheduler"),
        ("hyperband", "HyperBandScheduler"),
        ("pbt", "PopulationBasedTraining"),
    ],
)
def test_schedulers_are_rays(name, kind):
    found = rules.scheduler_of(plan_of(LR, *LONG, scheduler=name, samples=3))
    assert kind in [one.__name__ for one in type(found).__mro__]
    assert all(
        one.__module__.startswith(("ray.", "actors.", "builtins")) for one in type(found).__mro__
    )


def test_asha_decides_nothing_at_the_last_evaluation():
    plan = plan_of(LR, *LONG, scheduler="asha", samples=2)
    asha = rules.scheduler_of(plan)
    trials = [SimpleNamespace(trial_id=str(n)) for n in range(2)]
    for trial in trials:
        asha.on_trial_add(None, trial)

    def decided(trial, updates, value):
        return asha.on_trial_result(None, trials[trial], {"updates": updates, "accuracy": value})

    assert decided(0, 10, 0.9) == "CONTINUE"
    assert decided(1, 10, 0.1) == "STOP"
    assert decided(0, 80, 0.0) == decided(0, 90, 0.0) == "CONTINUE"


def test_hyperband_waits_for_no_trial_that_ended_before_it_was_restored():
    hyperband = rules.scheduler_of(plan_of(LR, *LONG, scheduler="hyperband", samples=3))

    class Trial(SimpleNamespace):
        __hash__ = object.__hash__

    over, waits = (Trial(is_finished=lambda n=n: n == 0, status="PENDING") for n in range(2))
    for trial in (over, waits):
        hyperband.on_trial_add(None, trial)
    assert hyperband.choose_trial_to_run(None) is waits
    assert hyperband.on_trial_result(None, waits, {"updates": 3}) == "CONTINUE", "no metric yet"


def test_pbt_keeps_step_sizes_inside_the_space_and_nothing_changes_at_the_end():
    plan = plan_of(LR, *LONG, scheduler="pbt", samples=3)
    pbt = rules.scheduler_of(plan)
    assert pbt.on_trial_result(None, None, {"updates": 90, "accuracy": 0.5}) == "CONTINUE"
    within = rules._Within(plan.space)
    assert within({"method.lr": 5.0, "seed": 1}) == {"method.lr": 0.1, "seed": 1}
    choice = rules._mutation(Dimension("method.lr", "choice", (1, 2)))
    assert choice == [1, 2]


def test_optuna_gives_numbered_scenarios_within_the_limit():
    pytest.importorskip("optuna")
    space = LR | {
        "privacy.epsilon": {"uniform": [1.0, 3.0]},
        "server": {"choice": ["frozen", "joint"]},
    }
    plan = plan_of(space, search="optuna", samples=6, epsilon=2.0)
    searcher = rules.searcher_of(plan, None)
    chosen = [searcher.suggest(f"id{n}") for n in range(6)]
    assert [config[rules.TRIAL] for config in chosen] == list(range(6))
    for n, config in enumerate(chosen):
        trial = plan.trial(n, 0, rules.settings_of(plan, config))
        assert not trial.skipped
        assert trial.values["privacy.epsilon"] <= 2.0
        searcher.on_trial_result(f"id{n}", {"updates": 2})  # without the metric
        searcher.on_trial_complete(f"id{n}", {"accuracy": 0.5, "training_iteration": 1})
    again = rules.searcher_of(plan, None)
    assert again.suggest("x") == chosen[0], "the same draws from the same seed"
