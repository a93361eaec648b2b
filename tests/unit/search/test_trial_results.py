import json
import math
import shutil
import threading
from dataclasses import replace
from functools import partial

import pytest

import scenarios
from raydpzv.compare.run_comparison import run_planned
from raydpzv.config.toml import as_toml
from raydpzv.errors import DataError, InputError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.files import is_search
from raydpzv.keys import Key
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.search.search_folder import (
    Decision,
    decision_log,
    decisions,
    metric_at,
    run_path,
    search_begun,
    trials_left,
)
from raydpzv.search.search_plan import Drawing, Population, SearchPlan, Trial, trials_of
from raydpzv.search.space import Dimension
from raydpzv.search.trial_results import (
    DIVERGED,
    DONE,
    STOPPED,
    TrialProgress,
    _best,
    best_file,
    missed,
    rate_asked,
    schedule_text,
    search_figure,
    search_results,
    trial_columns,
    trial_progress,
)

SHORT = ["budget.updates=4", "evaluate.every=2", "data.train_rows=100", "data.test_rows=40"]


def load(settings):
    return scenarios.load("digits_private", [*SHORT, *settings])


def search_of(points, **changes):
    given = {
        "name": "small",
        "metric": "accuracy",
        "scheduler": "none",
        "grace": 0,
        "epsilon": None,
    }
    return SearchPlan(**given | changes, trials=trials_of(load, points, changes.get("epsilon")))


def run(folder, trial, **how):
    assert not run_planned(trial.planned(), run_path(folder, trial), RunOptions(**how)).startswith(
        "wanted"
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search of two step sizes on two seeds, another ε that is not started, all run."""
    points = [
        (f"method.lr={lr}", f"seed={seed}", f"privacy.epsilon={epsilon}")
        for lr, seed, epsilon in (
            ("0.01", 0, 1.0),
            ("0.01", 1, 1.0),
            ("1.0", 0, 1.0),
            ("1.0", 1, 1.0),
            ("1.0", 0, 9.0),
        )
    ]
    plan, folder = search_of(points, epsilon=2.0), tmp_path_factory.mktemp("search")
    with search_begun(folder, plan):
        for trial in trials_left(folder, plan):
            run(folder, trial)
    return plan, folder


def test_rows_are_those_of_the_runs(finished):
    plan, folder = finished
    results = search_results(folder, plan)
    assert [row["status"] for row in results.rows] == ["done"] * 4 + ["not started"]
    assert "exceeds 2" in results.rows[4]["reason"]
    for row, trial in zip(results.rows[:4], plan.trials, strict=False):
        summary = json.loads((run_path(folder, trial) / "summary.json").read_text())
        assert [row[n] for n in ("accuracy", "loss", "updates", "digest")] == [
            summary[n] for n in ("accuracy", "loss", "updates", "digest")
        ]
        assert row["epsilon"] == pytest.approx(1.0, rel=1e-3)
        assert (row["adversary"], row["method.lr"], row["seed"]) == (
            "client",
            trial.values["method.lr"],
            trial.spec.seed,
        )
    assert trials_left(folder, plan) == []
    table = results.table()
    assert table.num_rows == 5
    assert str(table.schema.field("method.lr").type) == "double"


def test_the_best_settings_are_those_of_the_best_median_and_its_scenario_is_whole(
    finished, tmp_path
):
    plan, folder = finished
    results = search_results(folder, plan)
    medians = {
        lr: sum(r["accuracy"] for r in results.rows[:4] if r["method.lr"] == lr) / 2
        for lr in (0.01, 1.0)
    }
    assert results.best.values["method.lr"] == max(medians, key=medians.get)
    assert (results.best.spec.seed, len(results.choice.trials)) == (0, 2)
    assert results.choice.median == max(medians.values())
    (tmp_path / "best.toml").write_text(
        best_file(plan, results, as_toml(results.best.spec), "raydpzv tune x")
    )
    assert scenarios.load(str(tmp_path / "best.toml")) == results.best.spec
    said = (tmp_path / "best.toml").read_text().splitlines()[2]
    one, two = (trial.number for trial in results.choice.trials)
    assert said == (
        f"# accuracy at the end: {results.rows[one]['accuracy']:.6g}; trials {one} and {two} share "
        f"the settings with the best median accuracy, {max(medians.values()):.6g}, of those with "
        f"the most finished seeds (2): trial {one} represents them by the lowest seed, 0"
    )
    assert replace(results.choice, trials=results.choice.trials[:1]).reason("accuracy") == ""


def test_the_whole_search_spends_more_than_the_winner_and_says_so(finished):
    plan, folder = finished
    spent = {one.adversary: one for one in search_results(folder, plan).spent}
    client = spent["client"]
    assert client.runs == 4
    assert 1.0 < client.spent < 4.0
    assert client.winner == pytest.approx(1.0, rel=1e-3)
    assert f"ε={client.spent:.4g} of all releases made" in client.sentence()


def test_without_a_winner_the_search_has_spent_as_much(finished):
    """Stopped by the user, or with no trial that came to its end."""
    plan, folder = finished
    won, stopped = (search_results(folder, plan, stopped=how).spent for how in (False, True))
    assert [(one.adversary, one.relation, one.spent) for one in stopped] == [
        (one.adversary, one.relation, one.spent) for one in won
    ]
    assert all(math.isnan(one.winner) and one.cut for one in stopped)
    assert not any(math.isnan(one.winner) or one.cut for one in won)
    assert search_results(folder, plan, stopped=True).best == search_results(folder, plan).best


def test_where_a_trial_broke_off_the_plan_is_claimed(finished, tmp_path):
    """A loss that is no number ends a run: how much it released is no fact fixed before the first
    release.
    """
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "broken")
    path = run_path(tmp_path / "broken", plan.trials[0]) / "summary.json"
    stated = json.loads(path.read_text())
    for claim in stated["epsilon"]:  # of fewer releases than the plan's
        if claim["holds"]:
            claim["epsilon"] = 0.5
    ended = {"status": "failed", "stopped_by": "the loss is no number", "failure": "diverged"}
    path.write_text(json.dumps(stated | ended | {"failure_reason": "no number"}))
    whole, broken = (
        next(one for one in search_results(place, plan).spent if one.adversary == "client")
        for place in (folder, tmp_path / "broken")
    )
    assert (whole.cut, whole.claimed) == (False, whole.spent)
    assert broken.cut
    assert broken.spent < broken.claimed
    assert broken.claimed == pytest.approx(whole.claimed, rel=1e-9), "as if all had been made"
    assert "the plan's is the number to claim" in broken.sentence()


def test_what_all_trials_that_came_to_nothing_released_is_composed(tmp_path):
    """Two steps so large that the loss is no number whatever the noise; a third trial never
    begins.
    """

    def large(settings):
        short = [
            "budget.updates=12",
            "evaluate.every=6",
            "data.train_rows=100",
            "data.test_rows=40",
        ]
        return scenarios.load("digits_dpzv", [*short, *settings])

    points = [(f"method.lr={lr}",) for lr in ("1e10", "1e11", "1e12")]
    plan = SearchPlan("large", "accuracy", "none", 0, None, trials_of(large, points, None))
    with search_begun(tmp_path, plan):
        assert search_results(tmp_path, plan).spent == ()
        for trial in plan.trials[:2]:
            run(tmp_path, trial)
    results = search_results(tmp_path, plan)
    assert [row["status"] for row in results.rows] == ["diverged", "diverged", "not run"]
    assert (results.choice, results.best) == (None, None)
    client = next(
        one for one in results.spent if (one.adversary, one.relation) == ("client", "replace")
    )
    alone = mu_of(results.rows[0]["epsilon"], client.delta)

    def together(runs):
        return pytest.approx(epsilon_of(math.sqrt(runs) * alone, client.delta), rel=1e-3)

    assert (client.runs, client.spent, client.planned) == (2, together(2), together(3))
    # both came to their budget's end, and diverged by what was measured there
    assert (client.cut, client.claimed) == (False, client.spent)
    # a search that learns was to choose a fourth
    drawing = Drawing((Dimension("method.lr", "uniform", (1.0, 1e12)),), 4, 1, 0, large([]))
    learning = search_results(tmp_path, replace(plan, drawing=drawing), stopped=True).spent
    assert [(one.spent, one.claimed) for one in learning if one.relation == "replace"] == [
        (client.spent, together(4))
    ]
    assert client.sentence().startswith("Against client the whole search of 2 runs spent ε=")
    assert trial_progress(tmp_path, plan, 0) == TrialProgress(
        DIVERGED, results.rows[0]["reason"], 12, pytest.approx(math.nan, nan_ok=True)
    )
    assert trial_progress(tmp_path, plan, 2) is None


def test_how_far_a_trial_has_come_is_where_it_stands_or_its_end(finished, tmp_path):
    """One that the user has stopped on its way has come nowhere."""
    plan, folder = finished
    rows = search_results(folder, plan).rows
    for number in range(4):
        assert trial_progress(folder, plan, number) == TrialProgress(
            DONE, "", 4, rows[number]["accuracy"]
        )
    assert trial_progress(folder, plan, 4) is None, "not started"
    shutil.copytree(folder, tmp_path / "diverged")
    path = run_path(tmp_path / "diverged", plan.trials[0]) / "summary.json"
    path.write_text(
        json.dumps(
            json.loads(path.read_text()) | {"failure": "diverged", "failure_reason": "large"}
        )
    )
    found = trial_progress(tmp_path / "diverged", plan, 0)
    assert (found.status, found.why, math.isnan(found.value)) == (DIVERGED, "large", True), (
        "its loss is a number"
    )
    alone = search_of([("method.lr=0.1",)])
    with search_begun(tmp_path / "alone", alone):
        run(tmp_path / "alone", alone.trials[0], until=2)
    assert trial_progress(tmp_path / "alone", alone, 0) is None
    promoting = replace(alone, scheduler="asha", grace=2, promotes=True)
    stands = trial_progress(tmp_path / "alone", promoting, 0)
    assert (stands.status, stands.updates) == (STOPPED, 2)
    assert stands.value == metric_at(run_path(tmp_path / "alone", alone.trials[0]), "accuracy", 2)
    space = (Dimension("method.lr", "uniform", (0.1, 0.2)),)
    population = replace(alone, scheduler="pbt", population=Population(space, 2, 0.5, 0))
    assert trial_progress(tmp_path / "alone", population, 0) == stands


def test_trials_of_users_compose_where_every_user_has_the_same_records(tmp_path):
    """Each is a Gaussian sum every round: n trials of noise multiplier z are μ = √(n T) / z for one
    user.
    """

    def users(settings):
        short = ["data.train_rows=300", "budget.updates=2", "evaluate.every=2"]
        spec = scenarios.load("digits_users", [*short, *settings])
        privacy = spec.privacy.model_copy(update={"epsilon": None, "multiplier": 20.0})
        return spec.model_copy(update={"privacy": privacy})

    def spent(name, points):
        plan = SearchPlan(name, "accuracy", "none", 0, None, trials_of(users, points, None))
        with search_begun(tmp_path / name, plan):
            for trial in plan.trials:
                run(tmp_path / name, trial)
        found = search_results(tmp_path / name, plan).spent
        return next(
            one for one in found if (one.adversary, one.relation) == ("external", "add_remove")
        )

    whole = spent("steps", [("method.server_lr=1.0",), ("method.server_lr=2.0",)])
    assert whole.spent == pytest.approx(epsilon_of(math.sqrt(2 * 2) / 20.0, whole.delta), rel=1e-4)
    assert whole.winner == pytest.approx(epsilon_of(math.sqrt(2) / 20.0, whole.delta), rel=1e-4)
    others = spent("seeds", [("seed=0",), ("seed=1",)])
    assert math.isnan(others.spent)
    assert "the seed that says whose records are whose" in others.missing


def test_the_picture_shows_every_trial_that_was_measured(finished):
    plan, folder = finished
    results = search_results(folder, plan)
    figure = search_figure(plan, results)
    drawn = [c for c in figure.axes[0].collections if c.get_label() == "done"]
    assert sum(len(c.get_offsets()) for c in drawn) == 4
    assert (
        search_figure(plan, partial(type(results), choice=None, spent=())(rows=results.rows[4:]))
        is None
    )


def test_all_epsilons_above_ten_are_at_one_place_of_the_picture(finished):
    plan, folder = finished
    found = search_results(folder, plan)
    rows = [
        {**row, "epsilon": ε} for row, ε in zip(found.rows, (0.5, 8.0, 40.0, 900.0), strict=False)
    ]
    (ax, *_) = search_figure(plan, replace(found, rows=tuple(rows))).axes
    drawn = [x for c in ax.collections if c.get_label() == "done" for x, _ in c.get_offsets()]
    assert drawn == [0.5, 8.0, 15.0, 15.0]
    assert [tick.get_text() for tick in ax.get_xticklabels()][-1] == "> 10"
    assert max(ax.get_xticks()) == 15


def test_settings_drawn_by_loguniform_are_on_logarithmic_scales(finished):
    plan, folder = finished
    found = search_results(folder, plan)
    rows = [
        {**row, "epsilon": math.nan, "method.lr": 0.1 + row["trial"] / 50} for row in found.rows
    ]
    rows = [{**row, "seed": 1 + row["seed"]} for row in rows]

    def scales(*log_scaled):
        axes = search_figure(
            replace(plan, log_scaled=log_scaled), replace(found, rows=tuple(rows))
        ).axes
        return (
            axes[0].get_xlabel(),
            axes[0].get_xscale(),
            axes[1].get_ylabel(),
            axes[1].get_yscale(),
        )

    assert scales() == ("method.lr", "linear", "seed", "linear")
    assert scales("method.lr") == ("method.lr", "log", "seed", "linear")
    assert scales("seed") == ("method.lr", "linear", "seed", "log")


def test_stopped_trials_are_over_only_if_the_scheduler_stopped_them(tmp_path):
    plan = search_of([("method.lr=0.1",), ("method.lr=0.2",)], scheduler="asha", grace=2)
    stop = threading.Event()
    with search_begun(tmp_path, plan), decision_log(tmp_path) as log:
        for trial in plan.trials:
            stop.clear()
            run(
                tmp_path,
                trial,
                stop=stop,
                evaluated=lambda status, metrics: status.updates >= 2 and stop.set(),
            )
        log(Decision(0, 2, 0.1, True))
        log(Decision(1, 2, 0.2, False))
    assert [t.number for t in trials_left(tmp_path, plan)] == [1]
    results = search_results(tmp_path, plan)
    assert [row["status"] for row in results.rows] == ["stopped early", "stopped"]
    assert [row["updates"] for row in results.rows] == [2, 2]
    # the noise is that of the whole budget, ε that of half the releases
    whole = plan.trials[0].spec.privacy.epsilon
    assert all(row["epsilon"] < 0.8 * whole for row in results.rows)
    assert results.best is None


def test_a_trial_that_broke_off_or_is_missing_is_told_apart(finished, tmp_path):
    plan, _ = finished
    with search_begun(tmp_path, plan):
        run_path(tmp_path, plan.trials[1]).mkdir(parents=True)
    rows = search_results(tmp_path, plan, {1: "its process was lost"}).rows
    assert [row["status"] for row in rows[:3]] == ["not run", "failed", "not run"]
    assert rows[1]["reason"] == "its process was lost"
    assert math.isnan(rows[0]["accuracy"])


def test_what_is_set_aside_and_what_nobody_counted_is_charged_as_planned(finished, tmp_path):
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "copy")
    before = search_results(tmp_path / "copy", plan).spent[0]
    path = run_path(tmp_path / "copy", plan.trials[0])
    shutil.copytree(path, path.with_name(f"{path.name}.set-aside-1"))
    after = search_results(tmp_path / "copy", plan).spent[0]
    assert (before.runs, after.runs) == (4, 5)
    assert after.spent > before.spent
    best = search_results(folder, plan).best
    other = next(trial for trial in plan.started() if trial != best)
    (run_path(tmp_path / "copy", other) / "summary.json").unlink()
    broken = search_results(tmp_path / "copy", plan).spent[0]
    assert [one.possible for one in (before, after, broken)] == [0, 1, 2]
    assert "releases made (" in before.sentence()
    assert (
        "releases made or possibly made (nobody knows how far 2 of them came" in broken.sentence()
    )


def test_a_folder_is_that_of_one_search_and_of_no_other(finished, tmp_path):
    plan, folder = finished
    assert is_search(folder)
    with (
        pytest.raises(InputError, match="holds another search"),
        search_begun(folder, search_of([("seed=5",)])),
    ):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="holds something else"), search_begun(tmp_path, plan):
        pass
    with (
        search_begun(folder, plan),
        pytest.raises(InputError, match="another process"),
        search_begun(folder, plan),
    ):
        pass


def test_a_cut_off_last_decision_is_left_out_and_a_damaged_one_named(tmp_path):
    with decision_log(tmp_path) as log:
        log(Decision(0, 20, 0.5, False))
    with (tmp_path / "decisions.jsonl").open("a") as file:
        file.write('{"trial": 1, "upd')
    assert decisions(tmp_path) == [Decision(0, 20, 0.5, False)]
    with decision_log(tmp_path) as log:
        log(Decision(1, 20, 0.4, True))
    assert [d.stop for d in decisions(tmp_path)] == [False, True]
    (tmp_path / "decisions.jsonl").write_text("nonsense\n")
    with pytest.raises(DataError, match="no decision"):
        decisions(tmp_path)


def test_a_trial_names_its_settings():
    assert str(Trial(3, ("a=1", "b=2"), load([]))) == "trial 3 (a=1, b=2)"


def test_of_the_points_with_most_finished_seeds_the_best_median_is_chosen():
    points = [
        (f"method.lr={lr}", f"seed={seed}") for lr in ("0.1", "0.2", "0.3") for seed in (0, 1, 2)
    ]
    plan = search_of(points)

    def chosen(*said):
        rows = [{"status": status, "accuracy": value} for status, value in said]
        choice = _best(plan, plan.trials, rows)
        return (choice.trials[0].number, len(choice.trials)) if choice else None

    low, high, broken = ("done", 0.5), ("done", 0.9), ("diverged", 0.1)
    assert chosen(low, low, high, high, high, broken, low, high, high) == (6, 3)
    assert chosen(
        low, broken, broken, ("stopped early", 1.0), high, broken, low, broken, broken
    ) == (4, 1)
    assert chosen(*[broken] * 9) is None
    unmeasured = ("done", math.nan)
    assert chosen(*[broken] * 6, unmeasured, high, high) == (7, 2), (
        "for whom a trial stands that was measured"
    )


def test_in_a_population_trials_that_came_to_the_same_settings_are_no_seeds_of_one_point():
    alone = search_of([("method.lr=0.1",), ("method.lr=0.2",)])
    space = (Dimension("method.lr", "uniform", (0.1, 0.2)),)
    plan = replace(alone, scheduler="pbt", population=Population(space, 2, 0.5, 0))
    alike = [replace(plan.trials[0], number=n) for n in range(2)] + [
        replace(plan.trials[1], number=2)
    ]
    rows = [{"status": "done", "accuracy": value} for value in (0.5, 0.6, 0.9)]
    (best,) = _best(plan, alike, rows).trials
    assert best.number == 2
    assert len(_best(alone, alike, rows).trials) == 2, "control: without a population they are"


def test_a_proved_epsilon_that_is_too_large_is_cut_in_the_table(finished):
    plan, _ = finished
    rows = [{"rate_asked": math.nan}]
    (column,) = [column for column in trial_columns(plan, rows) if column.title == "proved ε"]
    cells = [
        column.get({"epsilon": value, "adversary": "client"}) for value in (9.5, 53_490.0, math.nan)
    ]
    assert cells == ["9.5 (client)", "> 10 (client)", ""]


def test_changes_of_a_step_size_are_lines_of_the_table():
    assert schedule_text([[241, 0.0038], [321, 0.0014]]) == "0.0038 from 241\n0.0014 from 321"
    assert schedule_text([]) == ""
    assert schedule_text("0 at 40") == "0 at 40"


def test_rates_are_asked_of_a_machine_by_the_wall_clock_alone(small):
    rates = "arrivals.rate=[1, 2, 3, 4.5]"
    assert rate_asked(small("clock.kind=wall", rates)) == 10.5
    assert rate_asked(small("clock.kind=wall", "arrivals.rate=2")) == 8
    for free in (
        small(rates),
        small("clock.kind=wall", "arrivals.kind=immediate"),
        scenarios.load(
            "frozen", ["clock.kind=wall", "method.name=sgd"]
        ),  # a barrier: all wait for all
    ):
        assert math.isnan(rate_asked(free)), free.method.name


def row(asked, seconds, uploads, late=0.0):
    return {
        "rate_asked": asked,
        "throughput": uploads / seconds,
        "late": late,
        "uploads": float(uploads),
    }


def test_a_rate_that_is_kept_is_not_warned_of_whatever_chance_does():
    """A control: Poisson counts of the rate asked are in order nearly always, those of four fifths
    of it never.
    """
    counts = Key(5).generator().poisson(1000, 500)
    assert sum(missed(row(10.0, 100.0, int(count))) != "" for count in counts) <= 2
    slow = Key(6).generator().poisson(800, 500)
    assert all(missed(row(10.0, 100.0, int(count))) for count in slow)
    assert missed(row(10.0, 1.0, 8)) == ""  # so few say nothing


def test_what_was_missed_is_said():
    assert missed(row(10.0, 100.0, 500, late=0.34)) == (
        "34 % of its activations began late and 5 uploads a second came, 10 are asked"
    )
    assert missed(row(math.nan, 100.0, 500, late=0.34)) == ""
    assert missed(row(10.0, math.nan, 0, late=math.nan)) == ""


@pytest.mark.parametrize("late", [0.0, 0.1])
def test_a_tenth_may_be_late(late):
    assert missed(row(10.0, 100.0, 1000, late=late)) == ""
