import re
import signal
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.compare.plan import Planned, PlannedLine
from raydpzv.compare.run_comparison import STOPPED, run_planned
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import run
from raydpzv.records.run_folder import RunFolder
from raydpzv.search import asha
from raydpzv.search.asha import SHARE
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
)

RUNGS = (5, 10, 20)
TRIALS = 7
ASHA = ("--scheduler", "asha")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("promotion")


@pytest.fixture(scope="module")
def promoted(place):
    said = searched(place / "free", "digits_dpzv", SPACE, FREE, TRIALS, *ASHA, "--runner", "local")
    return said, place / "free"


@pytest.fixture(scope="module")
def full(place):
    """The search of the same space whose trials all spend their budget."""
    said = searched(place / "full", "digits_dpzv", SPACE, FREE, TRIALS, "--runner", "local")
    return said, place / "full"


def test_decisions_are_by_the_curves_of_whole_runs_and_end_with_who_stays(promoted, full):
    said, folder = promoted
    curves = {n: losses(full[1] / "runs" / f"{n:04d}") for n in range(TRIALS)}
    made = decisions(folder)
    assert all(d.value == curves[d.trial][d.updates] for d in made)
    ways = {n: [(d.updates, d.stop) for d in made if d.trial == n] for n in range(TRIALS)}
    for row in said["trials"]:
        way = ways[row["trial"]]
        assert [updates for updates, _ in way] == [*RUNGS][: len(way)]
        assert [stop for _, stop in way[:-1]] == [False] * (len(way) - 1)
        stays = way[-1][1]
        assert (row["status"], row["updates"]) == (
            ("stopped early", way[-1][0]) if stays else ("done", UPDATES)
        )
    assert sum(row["updates"] for row in said["trials"]) <= SHARE * UPDATES * TRIALS
    ends = {n: curves[n][UPDATES] for n in ways if not ways[n][-1][1]}
    assert said["best"] == min(ends, key=lambda n: ends[n])
    for rung in RUNGS:
        gone = [d.value for d in made if d.updates == rung and not d.stop]
        stayed = [d.value for d in made if d.updates == rung and d.stop]
        assert max(gone, default=0) < min(stayed, default=1e9) or rung == RUNGS[0], (
            "of those that came late too"
        )


def test_who_continues_to_the_end_has_the_bits_of_the_run_alone_and_who_does_not_has_others(
    promoted, full, place
):
    said, folder = promoted
    check_bits_of_whole_runs(said, full[0], folder, place / "best")
    made_by = (folder / "best.toml").read_text().splitlines()[0]
    assert "--samples 7 --metric loss --scheduler asha --draw-seed 1 --set" in made_by, (
        "so that it can be made again"
    )


def test_no_update_is_made_twice(promoted):
    check_no_update_was_made_twice(promoted[1], TRIALS)


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("digits_decomfl", ("method.name=fedavg",)),
        ("digits_decomfl", ("method.replicas=per_client", "method.revert=add_back")),
        ("vafl_digits", ()),
        ("sgd", ()),
    ],
)
def test_runs_of_all_kinds_pause_at_rungs_and_reach_the_same_bits(place, scenario, changes):
    spec = scenarios.load(scenario, ["budget.updates=20", "evaluate.every=5", *changes])
    planned = Planned(PlannedLine("a", None, False, spec), spec, "a")
    path = place / "-".join((scenario, str(len(changes)))).replace(".", "_")
    for rung in (5, 10):
        assert run_planned(planned, path, RunOptions(until=rung)) == STOPPED
        assert RunFolder(path).summary()["updates"] == RunFolder(path).checkpoint().round == rung
    assert run_planned(planned, path) == ""
    assert RunFolder(path).summary()["digest"] == run(spec).summary["digest"]


@pytest.mark.parametrize("moment", ["runs/0006/scenario.toml", "decisions.jsonl"])
def test_killed_at_any_moment_it_continues_to_the_same_table(promoted, place, moment):
    """One at a time, who goes on follows from the results alone."""
    _, whole = promoted
    folder = place / f"killed-{len(moment)}-{moment[8]}"
    words = command(folder, "digits_dpzv", SPACE, FREE, TRIALS, *ASHA, *ALONE)
    killed_at(words, folder, moment)
    check_goes_on(folder, whole)


def test_what_was_promoted_before_a_kill_continues_first_and_stays_promoted(
    promoted, place, monkeypatch
):
    """Also where its results would say otherwise now."""
    folder = place / "promoted"
    plan, ended = read_search(promoted[1] / "search.toml"), asha.Promotion.ended

    def kill(todo, leg):
        ended(todo, leg)
        if leg.since == RUNGS[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(asha.Promotion, "ended", kill)
    raydpzv(*command(folder, "digits_dpzv", SPACE, FREE, TRIALS, *ASHA, *ALONE))
    (one,) = decisions(folder)
    run = folder / "runs" / f"{one.trial:04d}"
    (run / "summary.json").unlink()
    monkeypatch.setattr(asha, "metric_at", lambda path, metric, updates: 1.0)
    todo = asha.Promotion(folder, plan)
    first = todo.next_leg()
    assert (first.trial, first.since, first.until) == (one.trial, RUNGS[0], RUNGS[1])
    assert decisions(folder) == [one], "not decided again"


def test_a_decision_of_another_search_is_damage(promoted, place):
    folder = place / "other"
    folder.mkdir()
    (folder / "decisions.jsonl").write_text(
        '{"trial": 0, "updates": 7, "value": 0.5, "stop": false}\n'
    )
    plan = read_search(promoted[1] / "search.toml")
    with pytest.raises(asha.DataError, match=r"trial 0, 7 updates\) is none of this search"):
        asha.Promotion(folder, plan)


def test_noise_is_that_of_the_whole_budget_and_epsilon_that_of_the_releases(place):
    space = "method.lr.loguniform = [0.05, 1.0]\n"
    said = searched(
        place / "noised", "digits_private", space, NOISED, 4, *ASHA, "--runner", "local"
    )
    by_end = epsilon_by_end(said, place / "noised")
    assert {min(by_end), max(by_end)} <= {*RUNGS, UPDATES}
    assert len(by_end) > 1


def test_nobody_waits_for_a_trial_that_breaks_off(place):
    space = "method.lr.grid = [0.01, 0.02]\nsplit.clients.grid = [4, 99]\n"
    folder = place / "broken"
    words = command(folder, "digits_dpzv", space, FREE, 1, *ASHA, *ALONE)
    done = raydpzv(*words)
    assert done.exit_code == 1, done.output
    assert "2 of 4 trials failed" in " ".join(done.stderr.split())
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    became = {4: set(), 99: set()}
    for row in rows:
        became[row["split.clients"]].add(row["status"])
    assert became == {4: {"done", "stopped early"}, 99: {"failed"}}
    todo = asha.Promotion(folder, read_search(folder / "search.toml"))
    assert [todo.next_leg().trial for _ in range(2)] == [
        r["trial"] for r in rows if r["split.clients"] == 99
    ]


def test_stopped_by_the_user_nobody_is_left_behind(place, monkeypatch):
    """Who stands then is neither stopped by the search nor lost to it."""
    folder = place / "stopped"
    ended = asha.Promotion.ended

    def stop(todo, leg):
        ended(todo, leg)
        if len(decisions(folder)) == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(asha.Promotion, "ended", stop)
        done = raydpzv(*command(folder, "digits_dpzv", SPACE, FREE, 4, *ASHA, *ALONE))
    assert done.exit_code == 130, done.output
    assert not any(d.stop for d in decisions(folder))
    assert raydpzv("resume", folder, *ALONE).exit_code == 0
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert {r["status"] for r in rows} == {"done", "stopped early"}


def test_the_rule_is_said_and_each_promotion_and_what_it_saved(place):
    words = command(place / "said", "digits_dpzv", SPACE, FREE, 4, *ASHA)
    done = raydpzv(*words, "--runner", "local")
    assert done.exit_code == 0, done.output
    assert (
        "asha promotes: trials pause at 5, 10, 20 updates, the best 50 % of those that are"
        in done.stderr
    )
    assert " after 5 updates) continues to 10 updates" in done.stderr
    assert " after 20 updates) continues to the end" in done.stderr
    rows = pq.read_table(place / "said" / "trials.parquet").to_pylist()
    assert f"updates: {sum(r['updates'] for r in rows):.0f} of 200 that all trials" in done.stdout


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            ("budget.seconds=100",),
            r"budget.seconds: trial 0 \(.*\) may end before it has made its updates",
        ),
        (
            ("clock.kind=wall",),
            r"trial 0 \(.*\) leaves no checkpoint to continue from: real time cannot stand still",
        ),
    ],
)
def test_where_trials_cannot_stand_the_reason_for_rays_rule_is_said(place, changes, why):
    """Without Ray here, so that it goes no further."""
    words = command(
        place / "never", "digits_dpzv", SPACE, (*FREE, *changes), 4, *ASHA, "--runner", "local"
    )
    ended = raydpzv(*words)
    assert ended.exit_code == 2
    assert re.search(
        f"asha stops trials by Ray Tune's rule: {why}; use ray", " ".join(ended.stderr.split())
    )
    assert not (place / "never").exists()


def test_a_search_that_was_begun_by_rays_rule_stays_with_it(promoted, place):
    """Its plan says nothing of promotions."""
    plan = replace(read_search(promoted[1] / "search.toml"), promotes=False)
    folder = place / "older"
    folder.mkdir()
    (folder / "search.toml").write_text(plan.as_toml())
    assert "promotes" not in (folder / "search.toml").read_text()
    assert read_search(folder / "search.toml") == plan
    ended = raydpzv("resume", folder, *ALONE)
    said = " ".join(ended.stderr.split())
    assert (ended.exit_code, "Ray Tune's rule: this search was started by it; use ray" in said) == (
        2,
        True,
    )
