"""Searches by the command line, on Ray Tune: their folders, kills, schedulers and storages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

import raydpzv
from raydpzv.config.toml import as_toml
from raydpzv.records.run_folder import RunFolder
from scenarios.search_progress import SearchProgress
from tests.helpers.commands import call, changed
from tests.helpers.searches import table

pytestmark = pytest.mark.ray

SPACE = 'method.lr.loguniform = [1e-3, 1e-1]\nmethod.server.choice = ["sgd", "zo"]\nseed.grid = [0, 1]\n'
SHORT = ("budget.updates=12", "evaluate.every=6", "data.train_rows=200", "privacy.noise=seeded")
SEARCH = ["tune", "digits_dpzv", "--samples", "3", *changed(*SHORT)]
WITHIN = 120.0
"""Seconds in which a search must have begun."""


def rows(folder):
    return table(pq.read_table(folder / "trials.parquet").to_pylist())


def written(folder):
    return {
        path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()
    }


def found(*words, status=0):
    done = call(*words, "--quiet", "--json")
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def ran(scenario, out, *more):
    return found("run", scenario, *more, "--out", out)


def killed(words, folder, pattern, count=1):
    """Start a command with a Ray of its own, and kill it once so many files are in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "raydpzv", *map(str, words)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as program:
        until = time.monotonic() + WITHIN
        while len(list(folder.glob(pattern))) < count:
            assert program.poll() is None, program.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.02)
        program.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    (folder / "space.toml").write_text(SPACE)
    (folder / "steps.toml").write_text("method.lr.loguniform = [1e-3, 1e-1]\n")
    return folder


@pytest.fixture(scope="module")
def searched(ray_session, place):
    return found(*SEARCH, "--space", place / "space.toml", "--out", place / "out"), place / "out"


def test_the_folder_holds_tables_a_picture_and_the_best_scenario(searched):
    said, folder = searched
    assert [row["status"] for row in said["trials"]] == ["done"] * 6
    best = said["trials"][said["best"]]
    alike = [row for row in said["trials"] if row["method.lr"] == best["method.lr"]]
    assert (said["seeds"], said["median"]) == (2, sum(row["accuracy"] for row in alike) / 2)
    assert (folder / "trials.png").read_bytes().startswith(b"\x89PNG")
    assert len((folder / "trials.csv").read_text().splitlines()) == 7
    assert (folder / "best.toml").read_text().startswith("# Made by: raydpzv tune digits_dpzv")


def test_a_trial_has_the_bits_of_the_run_with_its_settings(searched, place):
    said, folder = searched
    row = said["trials"][said["best"]]
    names = ("method.lr", "method.server", "seed")
    words = changed(*SHORT, *(f"{name}={row[name]}" for name in names))
    assert ran("digits_dpzv", place / "alone", *words)["digest"] == row["digest"]
    assert ran(folder / "best.toml", place / "best")["digest"] == row["digest"]


def test_a_whole_search_that_continues_runs_nothing(searched):
    said, folder = searched
    before = written(folder)
    again = call("resume", folder)
    assert again.exit_code == 0, again.output
    text = " ".join(again.stdout.split())
    assert f"best: trial {said['best']}, run it again with: raydpzv run" in text
    assert written(folder) == before
    assert call("resume", folder, "--runner", "local").exit_code == 2


def test_a_search_killed_twice_comes_to_the_table_of_one_that_was_not(searched, place):
    _, whole = searched
    folder = place / "killed"
    words = [*SEARCH, "--space", place / "space.toml", "--jobs", "1", "--quiet", "--out", folder]
    killed(words, folder, "runs/*/summary.json")
    first = folder / "runs" / "0000" / "summary.json"
    before = first.stat().st_mtime_ns
    killed(["resume", folder, "--quiet"], folder, "runs/*/summary.json", 3)
    done = call("resume", folder, "--quiet")
    assert done.exit_code == 0, done.output
    assert first.stat().st_mtime_ns == before, "a finished trial is kept"
    assert rows(folder) == rows(whole)


def test_a_search_of_private_trials_charges_each_start_after_a_kill(ray_session, place):
    """Their noise is on record, so a trial that resumes releases nothing twice."""
    (place / "private.toml").write_text("method.lr.grid = [0.1, 0.2, 0.3]\n")
    folder = place / "private"
    words = ["tune", "digits_private", "--space", place / "private.toml", "--jobs", "1"]
    words += [*changed("budget.updates=40", "evaluate.every=10", "data.train_rows=200")]
    killed([*words, "--quiet", "--out", folder], folder, "runs/0001/scenario.toml")
    said = found("resume", folder)
    assert [row["status"] for row in said["trials"]] == ["done"] * 3
    whole = found(*words, "--out", place / "undisturbed")
    for one, other in zip(said["spent"], whole["spent"], strict=True):
        assert one["runs"] == 3 + sum(row["restarts"] for row in said["trials"])
        assert one["spent"] >= other["spent"] * (1 - 1e-9)
        if not any(row["restarts"] for row in said["trials"]):
            assert one["spent"] == pytest.approx(other["spent"])


def test_a_search_that_the_user_stops_says_what_it_spent_and_goes_on(
    ray_session, place, monkeypatch
):
    (place / "two.toml").write_text("method.lr.grid = [0.1, 0.2]\n")
    few = changed("budget.updates=40", "evaluate.every=2", "data.train_rows=100")
    words = ["tune", "digits_private", "--space", place / "two.toml", "--jobs", "1", *few]
    ended = SearchProgress.ended

    def stop(watch, trial, reason):
        ended(watch, trial, reason)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(SearchProgress, "ended", stop)
        done = call(*words, "--out", place / "two")
    assert done.exit_code == 130, done.output
    text = " ".join(done.stdout.split())
    assert "the plan's is the number to claim of all trials together" in text
    assert "best.toml is written when the search is over" in text
    assert not (place / "two" / "best.toml").exists()
    on = call("resume", place / "two")
    assert on.exit_code == 0, on.output
    assert "the winner alone spent ε=" in " ".join(on.stdout.split())


def test_trials_that_fail_or_diverge_are_rows_and_the_exit_status(ray_session, place):
    (place / "bad.toml").write_text("method.batch.grid = [64, 250]\n")
    words = ["tune", "digits_dpzv", *changed("privacy.mode=none", *SHORT[:3])]
    ended = call(*words, "--space", place / "bad.toml", "--out", place / "bad", "--quiet")
    assert ended.exit_code == 1
    assert "1 of 2 trials failed" in ended.stderr
    assert "method.batch: wanted at most 200" in ended.stderr
    statuses = pq.read_table(place / "bad" / "trials.parquet")["status"].to_pylist()
    assert statuses == ["done", "failed"]
    (place / "large.toml").write_text("method.lr.grid = [1e11, 1e12]\n")
    words = ["tune", "digits_dpzv", "--space", place / "large.toml", *changed(*SHORT[:3])]
    ended = call(*words, "--out", place / "large")
    assert ended.exit_code == 1
    assert "no trial of digits_dpzv came to its end" in ended.stderr
    spent = found("resume", place / "large", status=1)["spent"]
    assert {one["runs"] for one in spent} == {2}
    assert not (place / "large" / "best.toml").exists()


def test_asha_and_hyperband_stop_weak_trials_and_the_plan_is_claimed(ray_session, place):
    few = changed("budget.updates=60", "evaluate.every=10", "data.train_rows=200")
    for scheduler in ("asha", "hyperband"):
        said = found(
            *("tune", "digits_dpzv", "--space", place / "steps.toml", "--samples", "9"),
            *("--scheduler", scheduler, *few, "--out", place / scheduler),
        )
        statuses = [row["status"] for row in said["trials"]]
        assert set(statuses) == {"done", "stopped early"}, scheduler
        for one in said["spent"]:
            assert one["cut"]
            assert one["spent"] < one["planned"]
        best = said["trials"][said["best"]]
        assert best["status"] == "done"
        assert best["accuracy"] == max(
            row["accuracy"] for row in said["trials"] if row["status"] == "done"
        )


def test_pbt_changes_step_sizes_and_its_best_runs_again_to_the_same_bits(ray_session, place):
    few = ("budget.updates=40", "evaluate.every=10", "data.train_rows=200", "privacy.mode=none")
    said = found(
        *("tune", "digits_dpzv", "--space", place / "steps.toml", "--samples", "4", "--draw-seed"),
        *("1", "--scheduler", "pbt", "--quantile", "0.5", "--metric", "loss"),
        *(*changed(*few), "--out", place / "pbt"),
    )
    assert [row["status"] for row in said["trials"]] == ["done"] * 4
    assert any(row["copied"] for row in said["trials"])
    for row in said["trials"]:
        path = place / "pbt" / "runs" / f"{row['trial']:04d}"
        rounds = RunFolder(path).rows()["service"]["round"].to_pylist()
        assert rounds == list(range(1, 41)), "each update once"
        assert bool(row["method.lr_at"]) == bool(row["copied"])
        assert not any(change[0] > 40 for change in row["method.lr_at"] or ())
    best = said["trials"][said["best"]]
    assert ran(place / "pbt" / "best.toml", place / "pbt-best")["digest"] == best["digest"]


def test_a_storage_holds_the_runs_for_another_machine(ray_session, place):
    uri = (place / "storage").as_uri()
    words = [*SEARCH, "--space", place / "steps.toml", "--storage", uri]
    said = found(*words, "--out", place / "here")
    assert {row["status"] for row in said["trials"]} == {"done"}
    again = found(*words, "--out", place / "elsewhere")
    assert table(again["trials"]) == table(said["trials"])
    assert (place / "elsewhere" / "runs" / "0002" / "summary.json").is_file()
    other = call(*words, "--draw-seed", "3", "--out", place / "other")
    assert other.exit_code == 2
    assert "holds another search; choose another --storage" in other.stderr
    private = ["tune", "digits_private", "--space", place / "steps.toml", "--storage", uri]
    private += ["--samples", "1", *changed(*SHORT[:3])]
    assert call(*private, "--quiet", "--out", place / "kept").exit_code == 0
    lost = call(*private, "--quiet", "--out", place / "lost")
    assert lost.exit_code == 2
    assert "noise of the operating system" in lost.stderr


def test_trials_with_actors_have_the_bits_of_runs(ray_session, place):
    few = changed("split.clients=2", "resources.client_actors=1")
    words = [*SEARCH[:3], "1", *SEARCH[4:], "--space", place / "steps.toml", *few]
    on_actors = found(*words, "--actors", "--jobs", "1", "--out", place / "actors")
    whole = found(*words, "--out", place / "whole")
    assert table(on_actors["trials"]) == table(whole["trials"])
    path = place / "actors" / "runs" / "0000" / "environment.json"
    assert json.loads(path.read_text())["runner"] == "ray"


COMPARISON = """
scenario = "vafl"
set = ["evaluate.every=20", "budget.updates=40"]
seeds = [0]

[[methods]]
label = "VAFL"
"""


def test_methods_of_a_comparison_are_tuned_on_rows_and_seeds_of_their_own(ray_session, place):
    (place / "pair.toml").write_text(COMPARISON)
    (place / "pair_space.toml").write_text(
        "seed.grid = [7]\nmethod.lr.grid = [1e-9, 0.1]\n"
        '[[methods]]\nlabel = "central SGD (control)"\nspace.method.lr.grid = [0.05]\n'
    )
    words = ("tune", place / "pair.toml", "--space", place / "pair_space.toml")
    said = found(*words, "--out", place / "pair")
    assert [(c["label"], c["chosen"], c["combinations"]) for c in said["choices"]] == [
        ("VAFL", ["method.lr=0.1"], 2),
        ("central SGD (control)", ["method.lr=0.05"], 1),
    ]
    assert said["choices"][0]["edges"] == ["method.lr=0.1"]
    assert said["metric"] == "validation_accuracy"
    done = call(*words, "--out", place / "pair", "--quiet")
    assert "compare on other seeds with: raydpzv compare" in " ".join(done.stdout.split())
    compared = raydpzv.compare(str(place / "pair" / "best.toml"), place / "compared")
    lines = compared.runs.to_pylist()
    assert {(row["label"], row["seed"]) for row in lines} == {
        (label, 0) for label in ("VAFL", "central SGD (control)", "frozen clients (control)")
    }
    comparison = (place / "compared" / "comparison.toml").read_text()
    assert "lr = 0.1\n" in comparison
    assert "lr = 0.05\n" in comparison


def test_tunes_callbacks_and_loggers_are_called(ray_session, place):
    from ray import tune

    class Counts(tune.Callback):
        ended = 0

        def on_trial_complete(self, iteration, trials, trial, **info):
            Counts.ended += 1

    scenario = raydpzv.load("digits_dpzv", SHORT)
    made = raydpzv.tune(
        scenario, {"seed": {"grid": [0, 1]}}, place / "called", callbacks=[Counts()]
    )
    assert (Counts.ended, made.table.num_rows, made.stopped) == (2, 2, False)
    assert as_toml(made.best) in (place / "called" / "best.toml").read_text()
    assert "2 trials by accuracy" in made._repr_html_()
    words = [*SEARCH[:3], "1", *SEARCH[4:], "--space", place / "steps.toml", "--log", "csv"]
    found(*words, "--out", place / "logged")
    (progress,) = (place / "logged" / "tune").glob("*/progress.csv")
    assert "accuracy" in progress.read_text()
