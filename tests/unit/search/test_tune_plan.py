"""The plan of a search: its trials, the limit of ε, and its file."""

from dataclasses import replace

import pytest

from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.search.space import Dimension
from raydpzv.search.trial_checkpoint import TrialRun
from raydpzv.search.tune_plan import (
    SearchPlan,
    Suggestions,
    TrialPlace,
    TunedLine,
    points_of,
    read_plan,
    refusal,
    run_path,
    search_folder,
)
from tests.helpers.searches import plan_of

SPACE = {"lr": {"grid": [0.1, 0.2]}, "seed": {"grid": [0, 1]}}
EPSILONS = {"privacy.epsilon": {"grid": [1.0, 2.0, 4.0]}}


@pytest.fixture(scope="module")
def plan():
    return plan_of(SPACE, held_out=["data.validation_fraction=0.2"])


def test_a_trial_has_its_settings_and_the_rows_held_out_for_it(plan):
    assert [t.values for t in plan.trials[:2]] == [
        {"method.lr": 0.1, "seed": 0},
        {"method.lr": 0.1, "seed": 1},
    ]
    trial = plan.trials[1]
    assert str(trial) == "trial 1 (method.lr=0.1, seed=1)"
    assert trial.point == plan.trials[0].point != plan.trials[2].point
    assert (trial.spec.data.validation_fraction, trial.spec.seed) == (0.2, 1)
    chosen = plan.chosen_spec(trial)
    assert (chosen.data.validation_fraction, chosen.method.lr) == (None, 0.1)
    assert (plan.metric, plan.higher, plan.size) == ("validation_accuracy", True, 4)


def test_a_plan_is_read_as_it_was_written_wherever_its_data_lie(plan, tmp_path):
    with search_folder(tmp_path / "a", plan):
        pass
    again = read_plan(tmp_path / "a" / "search.toml")
    assert again == plan
    assert again.same_as(plan)
    assert replace(again, place=TrialPlace(True, "file:///x")).same_as(plan)
    assert not replace(again, metric="validation_loss").same_as(plan)
    with search_folder(tmp_path / "a", plan):
        pass  # the same again
    with (
        pytest.raises(InputError, match=r"holds another search .* choose another --out"),
        search_folder(tmp_path / "a", replace(plan, trials=plan.trials[:3])),
    ):
        pass


def test_a_damaged_plan_is_named(plan, tmp_path):
    with search_folder(tmp_path, plan):
        pass
    path = tmp_path / "search.toml"
    text = path.read_text()
    for damaged in (text[: len(text) // 2], text.replace("line = 0", "line = 7"), ""):
        path.write_text(damaged)
        with pytest.raises((DataError, SpecError), match=r"search\.toml"):
            read_plan(path)


def test_no_trial_above_the_limit_of_epsilon_starts():
    plan = plan_of(EPSILONS, epsilon=2.0)
    assert [bool(trial.skipped) for trial in plan.trials] == [False, False, True]
    assert "its proved ε=4 against client exceeds 2" in plan.trials[2].skipped
    assert (len(plan.started), plan.size) == (2, 2)
    assert refusal(None, 1.0) == "no noise is added, so that no ε is proved"


@pytest.mark.parametrize(
    ("space", "overrides", "terms", "said"),
    [
        (
            EPSILONS,
            (),
            {"epsilon": 0.1},
            "--epsilon 0.1: the least of 3 trials is ε=1, of trial 0",
        ),
        (
            {"seed": {"grid": [0]}},
            ("privacy.mode=none",),
            {"epsilon": 1.0},
            "none of 1 trials has a proved ε: no noise is added",
        ),
        (
            EPSILONS,
            (),
            {"epsilon": float("inf")},
            "--epsilon: wanted a finite number above 0, got inf",
        ),
        (
            {"batch": {"grid": [8, 0]}},
            (),
            {},
            r"trial 1 of the space \(method.batch=0\): method.batch",
        ),
        (
            SPACE,
            (),
            {"metric": "validation_loss"},
            "--metric validation_loss: wanted validation rows",
        ),
        (
            SPACE,
            (),
            {"metric": "acuracy"},
            r'--metric: wanted one of .* Did you mean "accuracy"',
        ),
    ],
)
def test_a_search_that_cannot_be_is_refused(space, overrides, terms, said):
    with pytest.raises(SpecError, match=said):
        plan_of(space, *overrides, **terms)


def test_trials_that_optuna_chose_are_those_whose_runs_began(tmp_path):
    line = TunedLine("small", plan_of(SPACE).lines[0].scenario)
    space = (Dimension("method.lr", "loguniform", (0.1, 0.2)),)
    plan = SearchPlan("small", "accuracy", (line,), space, suggestions=Suggestions(5, 0))
    assert (plan.known_trials(tmp_path), plan.size) == ((), 5)
    for number in (0, 2):
        trial = plan.trial(number, 0, (f"method.lr=0.{number + 1}",))
        path = run_path(tmp_path, trial)
        TrialRun(path, trial.spec, path.name, trial.settings).started()
    found = plan.known_trials(tmp_path)
    assert [(t.number, t.values) for t in found] == [
        (0, {"method.lr": 0.1}),
        (2, {"method.lr": 0.3}),
    ]
    with search_folder(tmp_path / "search", plan):
        pass
    assert read_plan(tmp_path / "search" / "search.toml") == plan
    assert points_of(plan, []) == ()
