from dataclasses import replace

import pytest

import scenarios
from raydpzv.errors import DataError, SpecError
from raydpzv.search.search_plan import (
    Drawing,
    SearchPlan,
    grace_of,
    planned_claim,
    read_search,
    trials_of,
)
from raydpzv.search.space import Dimension

POINTS = [("method.lr=0.5", "privacy.epsilon=0.5"), ("method.lr=0.5", "privacy.epsilon=2.0")]

WRONG_EPSILONS = (0.0, -1.0, float("nan"), float("inf"))
POINTS_OF_USERS = [("privacy.epsilon=0.5",), ("privacy.epsilon=2.0",)]


def private(settings):
    return scenarios.load("digits_private", settings)


def plain(settings):
    return scenarios.load("vafl", settings)


def plan(trials, **changes):
    given = {"name": "x", "metric": "accuracy", "scheduler": "none", "grace": 0, "epsilon": None}
    return SearchPlan(**given | changes, trials=tuple(trials))


def test_trials_above_the_constraint_are_not_started_and_say_why():
    trials = trials_of(private, POINTS, 1.0)
    assert [bool(t.skipped) for t in trials] == [False, True]
    assert trials[1].skipped == "its proved ε=2 against client exceeds 1"
    assert [bool(t.skipped) for t in trials_of(private, POINTS, 2.0)] == [False, False]
    assert planned_claim(trials[0].spec).epsilon == pytest.approx(0.5)


def test_users_noise_is_held_against_the_constraint_like_records_noise():
    def users(settings):
        return scenarios.load("digits_users", ["budget.updates=4", *settings])

    trials = trials_of(users, POINTS_OF_USERS, 1.0)
    assert [bool(t.skipped) for t in trials] == [False, True]
    assert trials[1].skipped == "its proved ε=2 against external exceeds 1"
    assert planned_claim(trials[0].spec).scope.endswith("unit: one user")
    with pytest.raises(SpecError, match="no noise is added"):
        trials_of(users, [("privacy.mode=none",)], 1.0)


@pytest.mark.parametrize(
    ("make", "points", "epsilon", "words"),
    [
        (private, POINTS, 0.1, r"--epsilon 0.1: the least of 2 trials is ε=0.5, of trial 0"),
        *(
            (private, POINTS, wrong, "--epsilon: wanted a finite number above 0")
            for wrong in WRONG_EPSILONS
        ),
        (plain, [("method.lr=0.5",)], 1.0, "none of 1 trials has a proved ε: no noise is added"),
        (
            plain,
            [("method.batch=64",), ("method.batch=64", "method.momentum=1.5")],
            None,
            r"trial 1 of the space \(method.batch=64, method.momentum=1.5\)",
        ),
        (
            private,
            [("method.batch=100000",)],
            None,
            "trial 0 of the space .*method.batch: wanted at most",
        ),
    ],
)
def test_trials_that_cannot_be_are_refused_by_name(make, points, epsilon, words):
    with pytest.raises(SpecError, match=words):
        trials_of(make, points, epsilon)


def test_the_method_is_set_before_its_settings():
    (trial,) = trials_of(
        lambda s: scenarios.load("digits_decomfl", s),
        [("method.local_steps=3", 'method.name="fedavg"')],
        None,
    )
    assert (trial.spec.method.name, trial.spec.method.local_steps) == ("fedavg", 3)
    assert trial.values == {"method.local_steps": 3, "method.name": "fedavg"}


def test_an_unknown_metric_and_one_without_its_rows_are_refused():
    trials = trials_of(plain, [("method.lr=0.5",)], None)
    with pytest.raises(SpecError, match='Did you mean "accuracy"'):
        plan(trials, metric="acuracy")
    with pytest.raises(SpecError, match="validation rows"):
        plan(trials, metric="validation_accuracy")
    with pytest.raises(SpecError, match="--scheduler"):
        plan(trials, scheduler="hyperband")
    assert plan(trials).higher
    assert not plan(trials, metric="loss").higher


def test_grace_is_a_ninth_of_the_budget_at_an_evaluation():
    def grace(*settings, given=None):
        return grace_of(trials_of(plain, [settings], None), given)

    assert grace("budget.updates=1800", "evaluate.every=100") == 200
    assert grace("budget.updates=1800", "evaluate.every=300") == 300
    assert grace("budget.updates=1800", "evaluate.every=100", given=600) == 600
    for wrong in (99, 1800):
        with pytest.raises(SpecError, match="--grace: wanted updates between"):
            grace("budget.updates=1800", "evaluate.every=100", given=wrong)
    with pytest.raises(
        SpecError, match=r"^evaluate.every: wanted fewer updates than budget.updates \(9\), got 9"
    ):
        grace("budget.updates=9", "evaluate.every=9")
    with pytest.raises(SpecError, match=r"one budget.updates for all"):
        grace_of(trials_of(plain, [("budget.updates=10",), ("budget.updates=20",)], None), None)


def test_a_plan_is_read_back_as_it_was(tmp_path):
    made = plan(trials_of(private, POINTS, 1.0), scheduler="asha", grace=100, epsilon=1.0)
    (tmp_path / "search.toml").write_text(made.as_toml())
    found = read_search(tmp_path / "search.toml")
    assert found == made
    assert found.same_as(made)
    scaled = replace(made, log_scaled=("method.lr",))
    (tmp_path / "search.toml").write_text(scaled.as_toml())
    assert read_search(tmp_path / "search.toml").log_scaled == ("method.lr",)
    assert scaled.same_as(made)
    assert not found.same_as(plan(made.trials, epsilon=1.0))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (('kind = "loguniform"', 'kind = "grid"'), "wanted settings that are drawn"),
        (('kind = "loguniform"', 'kind = "grown"'), "wanted settings that are drawn"),
        (('kind = "loguniform"', 'kind = "loguniform"\nmore = 1'), "more"),
        (("samples = 5", 'samples = "5"'), "samples"),
        (("batch = 2", "batch = 0"), "batch"),
        (("batch = 2\n", ""), "batch"),
        (('scheduler = "none"', 'scheduler = "halving"'), "scheduler"),
    ],
)
def test_a_plan_with_another_value_than_was_written_is_named(tmp_path, edit, said):
    text = learning().as_toml()
    assert edit[0] in text
    (tmp_path / "search.toml").write_text(text.replace(*edit))
    with pytest.raises(DataError, match=f"no readable plan of a search.*{said}"):
        read_search(tmp_path / "search.toml")


SPACE = (
    Dimension("method.lr", "loguniform", (1e-3, 1e-1)),
    Dimension("method.head", "choice", ("a", [1, 2])),
)


def learning(samples=5, batch=2, epsilon=None):
    drawing = Drawing(SPACE[:1], samples, batch, 7, private([]))
    return plan(
        trials_of(drawing.make, [("method.lr=0.5",)], epsilon), drawing=drawing, epsilon=epsilon
    )


def test_a_plan_that_grows_by_results_is_written_and_read(tmp_path, monkeypatch):
    begun, asked = learning(), []

    def suggested(space, outcomes, count, seed, *, higher, accepts):
        asked.append((space, outcomes, count, seed, higher))
        points = [("method.lr=0.5",), ("method.lr=-1",), ("method.lr=0.25",), ("method.lr=0.125",)]
        return [point for point in points if accepts(point)][:count]  # known, no scenario, new

    monkeypatch.setattr("raydpzv.search.search_plan.suggested", suggested)
    outcomes = [({"method.lr": 0.5}, 0.9)]
    grown = begun.grown(outcomes)
    assert [trial.settings for trial in grown.trials] == [
        ("method.lr=0.5",),
        ("method.lr=0.25",),
        ("method.lr=0.125",),
    ]
    assert [trial.number for trial in grown.trials] == [0, 1, 2]
    assert asked == [(SPACE[:1], outcomes, 2, 7, True)]
    assert (begun.complete, begun.size, grown.size) == (False, 5, 5)
    replace(grown, drawing=learning(batch=9).drawing).grown(outcomes * 3)
    assert asked[-1][2] == 2  # no more than are asked in all
    (tmp_path / "search.toml").write_text(grown.as_toml())
    read = read_search(tmp_path / "search.toml")
    assert read == grown
    assert read.same_as(begun)
    assert begun.same_as(read)
    assert not learning(samples=6).same_as(begun)
    assert learning(samples=1).complete


def test_values_of_all_kinds_survive_the_plans_file(tmp_path):
    drawn = plan(learning().trials, drawing=Drawing(SPACE, 3, 2, 0, private([])))
    (tmp_path / "search.toml").write_text(drawn.as_toml())
    assert read_search(tmp_path / "search.toml") == drawn


def test_chosen_trials_above_the_constraint_are_not_started(monkeypatch):
    monkeypatch.setattr(
        "raydpzv.search.search_plan.suggested",
        lambda *a, **k: [("privacy.epsilon=9.0",), ("method.lr=0.25",)],
    )
    grown = learning(epsilon=2.0).grown([])
    assert [bool(trial.skipped) for trial in grown.trials] == [False, True, False]
