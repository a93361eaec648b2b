"""Rows, choices and the ε of a whole search, read from the folders of its trials."""

import json
import math
import shutil
import threading
from dataclasses import replace

import pytest

import scenarios
from raydpzv.compare.run_comparison import set_aside
from raydpzv.config.toml import as_toml
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import run_local
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.search.run_tune import _best_scenario
from raydpzv.search.search_terms import TrialOutcomes
from raydpzv.search.trial_checkpoint import TrialRun
from raydpzv.search.trial_plots import search_figure
from raydpzv.search.tune_plan import run_path
from raydpzv.search.tune_results import (
    SOONEST,
    _edges,
    missed,
    rate_asked,
    schedule_text,
    search_results,
    trial_columns,
)
from tests.helpers.searches import plan_of, run, table

OVER = TrialOutcomes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search of two step sizes on two seeds, and another ε that is not started."""
    space = {"lr": {"grid": [0.01, 1.0]}, "seed": {"grid": [0, 1]}}
    plan = plan_of(space | {"privacy.epsilon": {"grid": [1.0, 9.0]}}, epsilon=2.0)
    folder = tmp_path_factory.mktemp("search")
    for trial in plan.started:
        assert run(folder, trial) == ""
    return plan, folder


@pytest.fixture
def copy(finished, tmp_path):
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "copy")
    return plan, tmp_path / "copy"


def test_rows_are_those_of_the_runs(finished):
    plan, folder = finished
    results = search_results(folder, plan, OVER)
    assert [row["status"] for row in results.rows] == ["done", "not started"] * 4
    assert "exceeds 2" in results.rows[1]["reason"]
    for trial in plan.started:
        row = results.row(trial)
        summary = json.loads((run_path(folder, trial) / "summary.json").read_text())
        for name in ("accuracy", "loss", "updates", "digest"):
            assert row[name] == summary[name]
        assert row["epsilon"] == pytest.approx(1.0, rel=1e-3)
        assert (row["adversary"], row["seed"]) == ("client", trial.spec.seed)
    made = results.table()
    assert made.num_rows == 8
    assert str(made.schema.field("method.lr").type) == "double"
    assert [row["status"] for row in results.ranked(plan)][:4] == ["done"] * 4
    heads = [column.title for column in trial_columns(plan, results.rows)]
    assert heads[:4] == ["trial", "method.lr", "seed", "privacy.epsilon"]


def test_the_best_settings_have_the_best_median_and_a_whole_scenario(finished, tmp_path):
    plan, folder = finished
    results = search_results(folder, plan, OVER)
    (choice,) = results.choices
    medians = {
        lr: sum(r["accuracy"] for r in results.rows if r["method.lr"] == lr and r["updates"] > 0)
        / 2
        for lr in (0.01, 1.0)
    }
    assert choice.median == max(medians.values())
    assert choice.trial.values["method.lr"] == max(medians, key=medians.get)
    assert [trial.spec.seed for trial in choice.trials] == [0, 1]
    assert choice.edges == (f"method.lr={choice.trial.values['method.lr']:g}",) or choice.edges
    path = tmp_path / "best.toml"
    path.write_text(_best_scenario(plan, results, "raydpzv tune x"))
    assert scenarios.load(str(path)) == results.best.spec
    assert as_toml(results.best.spec) in path.read_text()
    one, two = (trial.number for trial in choice.trials)
    assert (
        f"trials {one} and {two} share the settings with the best median accuracy, "
        f"{choice.median:.6g}, of those with the most finished seeds (2): trial {one} represents "
        "them by the lowest seed, 0"
    ) in path.read_text()
    assert replace(choice, trials=choice.trials[:1]).reason("accuracy") == ""
    assert search_figure(plan, results) is not None


def test_a_step_size_that_a_trial_changed_to_is_at_no_edge_of_the_others(finished):
    plan, _ = finished
    first, second = plan.started[:2]
    copied = replace(first, settings=(*first.settings, "method.lr_at=[[10, 0.5]]"))
    assert [*_edges(copied, [copied, second, plan.started[2]])] == [first.settings[0]]


def test_fewer_finished_seeds_and_diverged_trials_are_no_best(copy):
    plan, folder = copy
    (choice,) = search_results(folder, plan, OVER).choices
    path = run_path(folder, choice.trial) / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"failure": "diverged", "failure_reason": "too far"}))
    results = search_results(folder, plan, OVER)
    assert results.row(choice.trial)["status"] == "diverged"
    (other,) = results.choices
    assert other.trial.point != choice.trial.point
    assert len(other.trials) == 2


def test_what_became_of_a_trial_follows_from_its_folder_and_from_tune(copy, finished):
    plan, folder = copy
    first, second = plan.started[:2]
    shutil.rmtree(run_path(folder, first))

    def status(**outcome):
        return search_results(folder, plan, TrialOutcomes(**outcome)).row(first)

    assert status()["status"] == "not run"
    failed = status(reasons={first.number: "its process was lost"})
    assert (failed["status"], failed["reason"]) == ("failed", "its process was lost")
    run(folder, first, until=2)
    assert status()["status"] == "stopped early"
    assert status(stopped=True)["status"] == "stopped"
    assert status(stopped=True, ended=frozenset([first.number]))["status"] == "stopped early"
    shutil.copytree(run_path(finished[1], second), run_path(folder, first), dirs_exist_ok=True)
    assert "delete the folder to make the run" in status()["reason"]


def spent(folder, plan, outcome=OVER):
    return {one.adversary: one for one in search_results(folder, plan, outcome).spent}["client"]


def together(count):
    return epsilon_of(math.sqrt(count) * mu_of(1.0, DELTA), DELTA)


DELTA = 1e-3


def test_the_whole_search_spends_more_than_the_winner(finished):
    plan, folder = finished
    client = spent(folder, plan)
    assert (client.runs, client.possible, client.cut) == (4, 0, False)
    assert client.delta == DELTA
    assert client.winner == pytest.approx(1.0, rel=1e-3)
    assert client.claimed == client.spent == pytest.approx(together(4), rel=1e-3)


def test_every_run_that_was_started_is_charged_and_none_that_was_not(copy):
    plan, folder = copy
    path = run_path(folder, plan.started[3])
    shutil.rmtree(path)
    assert spent(folder, plan).spent == pytest.approx(together(3), rel=1e-3)
    path.mkdir()  # begun, and nobody knows how far
    client = spent(folder, plan)
    assert (client.runs, client.possible) == (4, 1)
    assert client.spent == pytest.approx(together(4), rel=1e-3)
    path.rmdir()
    lost = TrialOutcomes(started=frozenset([plan.started[3].number]))  # on a machine that is lost
    assert spent(folder, plan, lost).spent == pytest.approx(together(4), rel=1e-3)
    again = run_path(folder, plan.started[0])
    shutil.copytree(again, set_aside(again)[0])  # a run that started again
    client = spent(folder, plan, lost)
    assert (client.runs, client.possible) == (5, 2)
    assert client.spent == pytest.approx(together(5), rel=1e-3)
    row = search_results(folder, plan, lost).row(plan.started[0])
    assert row["restarts"] == 1
    assert spent(folder, replace(plan), TrialOutcomes(stopped=True)).cut


def test_a_trial_that_copied_another_is_that_run_and_charges_what_it_left_once(tmp_path):
    """With --scheduler pbt: the folder that it left has made as many updates as the copy."""
    space = {"lr": {"choice": [0.1, 0.3]}}
    plan = plan_of(space, "method.batch=8", scenario="digits_private", samples=8, scheduler="pbt")
    plan = replace(plan, trials=plan.trials[:2])
    donor, taker = (
        TrialRun(run_path(tmp_path, t), t.spec, f"{t.number:04d}", t.settings) for t in plan.trials
    )
    (tmp_path / "copied").mkdir()

    def stopped(trial):
        stop = threading.Event()

        def evaluated(status, metrics):
            if status.updates == 2 and not stop.is_set():
                trial.save(tmp_path / "copied", {"updates": 2}, paused=True)
                stop.set()

        make(trial, evaluated=evaluated, stop=stop)

    def make(trial, **how):
        prepared, folder = trial.started()
        run_local(prepared, RunOptions(folder, keep_evaluated=True, **how))

    stopped(taker)
    shutil.rmtree(tmp_path / "copied")
    (tmp_path / "copied").mkdir()
    stopped(donor)
    taker.load(tmp_path / "copied")
    make(taker)
    make(donor)
    results = search_results(tmp_path, plan, OVER)
    row = results.row(plan.trials[1])
    first, then = (trial.values["method.lr"] for trial in plan.trials)
    assert row["status"] == "done", row["reason"]
    assert (row["method.lr"], row["method.lr_at"]) == (first, [[3, then]])
    assert (row["copied"], row["restarts"]) == ("0 at 2", 0)
    assert results.row(plan.trials[0])["method.lr_at"] is None
    client = {one.adversary: one for one in results.spent}["client"]
    assert (client.runs, client.possible) == (2, 0)
    both = math.sqrt(2) * mu_of(row["epsilon"], DELTA)
    assert client.spent == pytest.approx(epsilon_of(both, DELTA))
    # a folder left further than the copy is charged beside it
    (tmp_path / "runs" / "0001" / "trial.json").write_text("{}")
    client = {one.adversary: one for one in search_results(tmp_path, plan, OVER).spent}["client"]
    assert (client.runs, client.possible) == (3, 1)


def test_the_soonest_settings_reach_the_target_first(tmp_path):
    plan = plan_of({"lr": {"grid": [1e-9, 0.3]}}, soonest=0.0)
    for trial in plan.trials:
        run(tmp_path, trial)
    results = search_results(tmp_path, plan, OVER)
    assert all(0 <= row[SOONEST] < math.inf for row in results.rows)
    never = search_results(tmp_path, replace(plan, soonest=1.1), OVER)
    assert [row[SOONEST] for row in never.rows] == [math.inf] * 2
    assert never.choices[0].median == max(row["accuracy"] for row in never.rows)


def test_settings_of_several_kinds_are_a_column_of_text(copy):
    plan, folder = copy
    results = search_results(folder, plan, OVER)
    rows = [dict(row) for row in results.rows]
    rows[0]["method.lr"], rows[1]["method.lr"] = "fast", None
    made = replace(results, rows=tuple(rows)).table()
    assert made["method.lr"].to_pylist()[:3] == ["fast", None, "0.01"]
    assert table(results.rows) == table(search_results(folder, plan, OVER).rows)


def test_a_pace_that_a_machine_missed_is_said():
    row = {"rate_asked": 100.0, "throughput": 50.0, "late": 0.0, "uploads": 1000.0}
    assert "50 uploads a second came, 100 are asked" in missed(row)
    assert "20 % of its activations began late" in missed({**row, "late": 0.2})
    assert missed({**row, "throughput": 99.0}) == ""
    assert missed({**row, "rate_asked": math.nan}) == ""
    wall = scenarios.load("digits_dpzv", ["clock.kind=wall", "arrivals.rate=7"])
    assert rate_asked(wall) == 4 * 7
    assert math.isnan(rate_asked(scenarios.load("digits_dpzv")))
    assert schedule_text([[3, 0.1], [5, 0.2]]) == "0.1 from 3\n0.2 from 5"
    assert (schedule_text(None), schedule_text(0.5)) == ("", "0.5")
