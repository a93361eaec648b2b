"""`raydpzv tune --scheduler halving`: who goes on, the bits of who does, kills, what it spends, and what waits."""

from __future__ import annotations

import math

import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.compare.plan import Planned, PlannedLine
from raydpzv.compare.run_comparison import STOPPED, run_planned
from raydpzv.experiment.runner import run
from raydpzv.records.run_folder import RunFolder
from raydpzv.search import halving
from raydpzv.search.halving import to_go
from raydpzv.search.search_folder import decisions
from raydpzv.search.search_plan import read_search
from tests.helpers.searches import (
    ALONE,
    FREE,
    NOISED,
    SPACE,
    UPDATES,
    check_bits_of_whole_runs,
    check_goes_on,
    check_no_update_was_made_twice,
    command,
    epsilon_by_end,
    killed_at,
    losses,
    raydpzv,
    searched,
    table,
)

RUNGS = (10, 20)
TRIALS = 7


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("halving")


@pytest.fixture(scope="module")
def halved(place):
    how = ("--scheduler", "halving", "--runner", "local")
    return searched(place / "free", "digits_dpzv", SPACE, FREE, TRIALS, *how), place / "free"


@pytest.fixture(scope="module")
def full(place):
    """The search of the same space whose trials all spend their budget."""
    how = ("--runner", "local")
    return searched(place / "full", "digits_dpzv", SPACE, FREE, TRIALS, *how), place / "full"


def test_the_better_half_of_whole_runs_goes_on_from_each_rung(halved, full):
    """The full search's curves say who should."""
    said, folder = halved
    curves = {n: losses(full[1] / "runs" / f"{n:04d}") for n in range(TRIALS)}
    standing, stopped = list(range(TRIALS)), {}
    for rung in RUNGS:
        ranked = sorted(standing, key=lambda n: (curves[n][rung], n))
        standing = sorted(ranked[: math.ceil(len(ranked) / 2)])
        stopped |= dict.fromkeys(set(ranked) - set(standing), rung)
    assert len(standing) == 2
    assert sorted(stopped.values()) == [10, 10, 10, 20, 20]
    for row in said["trials"]:
        rung = stopped.get(row["trial"])
        assert (row["status"], row["updates"]) == (("stopped early", rung) if rung else ("done", UPDATES))
    ends = {row["trial"]: row["loss"] for row in full[0]["trials"]}
    assert {r["trial"]: r["loss"] for r in said["trials"] if r["status"] == "done"} == {
        n: ends[n] for n in standing
    }
    assert said["best"] == min(standing, key=lambda n: ends[n])
    made = decisions(folder)
    assert [(d.trial, d.updates) for d in made] == sorted(
        ((d.trial, d.updates) for d in made), key=lambda one: (one[1], one[0])
    )
    assert all(d.value == curves[d.trial][d.updates] for d in made)


def test_who_goes_on_to_the_end_has_the_bits_of_the_run_alone_and_who_does_not_has_others(
    halved, full, place
):
    said, folder = halved
    check_bits_of_whole_runs(said, full[0], folder, place / "best")


def test_no_update_is_made_twice(halved):
    check_no_update_was_made_twice(halved[1], TRIALS)


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("digits_decomfl", ("method.name=fedavg",)),
        ("digits_decomfl", ("method.replicas=per_client", "method.revert=add_back")),
        ("vafl_digits", ()),
        ("sgd", ()),
    ],
)
def test_runs_of_all_kinds_stand_at_rungs_and_come_to_the_bits_of_the_run_alone(place, scenario, changes):
    spec = scenarios.load(scenario, ["budget.updates=20", "evaluate.every=5", *changes])
    planned = Planned(PlannedLine("a", None, False, spec), spec, "a")
    path = place / "-".join((scenario, str(len(changes)))).replace(".", "_")
    for rung in (5, 10):
        assert run_planned(planned, path, until=rung) == STOPPED
        assert RunFolder(path).summary()["updates"] == RunFolder(path).checkpoint().round == rung
    assert run_planned(planned, path) == ""
    assert RunFolder(path).summary()["digest"] == run(spec).summary["digest"]


@pytest.mark.parametrize("moment", ["runs/0002/scenario.toml", "runs/0006/summary.json", "decisions.jsonl"])
def test_killed_at_any_moment_it_goes_on_to_the_same_table(halved, place, moment):
    _, whole = halved
    folder = place / f"killed-{len(moment)}"
    words = command(folder, "digits_dpzv", SPACE, FREE, TRIALS, "--scheduler", "halving", *ALONE)
    killed_at(words, folder, moment)
    check_goes_on(folder, whole)


def test_a_kill_before_a_stopped_trials_summary_leaves_it_stopped(halved, place):
    """Its record is whole, and its row says what became of it."""
    _, whole = halved
    folder = place / "unsummed"
    words = command(folder, "digits_dpzv", SPACE, FREE, TRIALS, "--scheduler", "halving", *ALONE)
    assert raydpzv(*words).exit_code == 0
    stopped = next(d for d in decisions(folder) if d.stop)
    (folder / "runs" / f"{stopped.trial:04d}" / "summary.json").unlink()
    assert raydpzv("resume", folder, *ALONE).exit_code == 0
    assert table(folder) == table(whole)


def test_a_trial_that_has_gone_on_is_not_waited_for_at_the_rung_behind_it(place, monkeypatch):
    """Killed on its way it has no summary."""
    decide = halving.halve

    def once(folder, plan, rung):
        return decide(folder, plan, rung) if rung == RUNGS[0] else (_ for _ in ()).throw(KeyboardInterrupt)

    monkeypatch.setattr(halving, "halve", once)
    folder = place / "between"
    raydpzv(*command(folder, "digits_dpzv", SPACE, FREE, 4, "--scheduler", "halving", *ALONE))
    on = [d.trial for d in decisions(folder) if not d.stop]
    assert len(on) == 2
    plan = read_search(folder / "search.toml")
    assert [to_go(folder, plan, rung) for rung in RUNGS] == [[], []]
    (folder / "runs" / f"{on[0]:04d}" / "summary.json").unlink()
    assert [[t.number for t in to_go(folder, plan, rung)] for rung in RUNGS] == [[], [on[0]]]


def test_noise_is_that_of_the_whole_budget_and_epsilon_that_of_the_releases(place):
    space, how = "method.lr.loguniform = [0.05, 1.0]\n", ("--scheduler", "halving", "--runner", "local")
    said = searched(place / "noised", "digits_private", space, NOISED, 4, *how)
    by_end = epsilon_by_end(said, place / "noised")
    assert by_end.keys() == {*RUNGS, UPDATES}
    assert by_end[10] < by_end[20] < by_end[UPDATES]


def test_a_trial_that_breaks_off_holds_the_rung_up(place):
    space = "method.lr.grid = [0.01, 0.02]\nsplit.clients.grid = [4, 99]\n"
    done = raydpzv(
        *command(place / "broken", "digits_dpzv", space, FREE, 1, "--scheduler", "halving", *ALONE)
    )
    assert done.exit_code == 1, done.output
    assert "2 of 4 trials failed" in " ".join(done.stderr.split())
    assert decisions(place / "broken") == []
    rows = pq.read_table(place / "broken" / "trials.parquet").to_pylist()
    assert [(r["status"], r["updates"]) for r in rows if r["split.clients"] == 4] == [("stopped", 10)] * 2
    plan = read_search(place / "broken" / "search.toml")
    waited_for = [t.number for t in to_go(place / "broken", plan, 10)]
    assert waited_for == [r["trial"] for r in rows if r["split.clients"] == 99]
    stands = next(r["trial"] for r in rows if r["split.clients"] == 4)
    (place / "broken" / "runs" / f"{stands:04d}" / "summary.json").unlink()
    assert stands in [t.number for t in to_go(place / "broken", plan, 10)], "killed before it was written"


def test_each_step_is_said(place):
    words = command(place / "said", "digits_dpzv", SPACE, FREE, 4, "--scheduler", "halving")
    done = raydpzv(*words, "--runner", "local")
    assert done.exit_code == 0, done.output
    for line in (
        "4 of 4 trials go to 10 updates",
        "2 of 4 trials go to 20 updates",
        "1 of 4 trials go to the end",
    ):
        assert line in done.stderr
    assert "after 10 updates 2 of 4 trials go on: " in done.stderr
    again = raydpzv("resume", place / "said", "--runner", "local")
    assert (again.exit_code, "trials go on" in again.stderr) == (0, False), "nothing is decided now"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--actors",), "--actors: --scheduler halving has each trial whole in one process"),
        (("--grace", "12"), "--grace: wanted a multiple of evaluate.every (5)"),
        (("--interval", "10"), "--interval: goes with --scheduler pbt"),
        (("--set", "clock.kind=wall"), "clock.kind: --scheduler halving"),
    ],
)
def test_what_cannot_be_halved_ends_with_2_before_anything_is_written(place, more, said):
    words = command(place / "never", "digits_dpzv", SPACE, FREE, 4, "--scheduler", "halving", *more)
    ended = raydpzv(*words)
    assert (ended.exit_code, said in " ".join(ended.stderr.split())) == (2, True), ended.output
    assert not (place / "never").exists()
