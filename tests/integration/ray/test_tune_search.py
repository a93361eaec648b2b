import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray

import scenarios
from actors.tune_search import TuneSearch, cluster_needs, scheduler_of, tune_cluster
from raydpzv.compare.run_comparison import run_planned
from raydpzv.errors import Unplaceable
from raydpzv.search.search_folder import (
    cut_short,
    decision_log,
    decisions,
    search_begun,
    trials_left,
)
from raydpzv.search.search_plan import SearchPlan, trials_of
from raydpzv.search.trial_results import search_results

pytestmark = pytest.mark.ray

SHORT = ("privacy.mode=none", "budget.updates=18", "evaluate.every=2", "data.train_rows=200")
LEARNS = ("method.lr=0.03", "method.server_lr=0.2")
POINTS = (LEARNS, *((f"method.lr={lr}", "method.server_lr=1e-9") for lr in ("1e-9", "1e-8")))
"""One point that learns and two that do not."""
BROKEN = ("split.clients=99",)
"""One that fails when its data are split."""


def small(settings):
    return scenarios.load("digits_dpzv", [*SHORT, *settings])


def search_of(points):
    return SearchPlan("small", "loss", "asha", 2, None, trials_of(small, points, None))


class Watched:
    """Keeps what it is told; `after`: called at each report."""

    def __init__(self, after=lambda report: None):
        self.begun, self.over, self._after = [], {}, after

    def began(self, trial):
        self.begun.append(trial)

    def reported(self, trial, report):
        self._after(report)

    def ended(self, trial, reason):
        self.over[trial] = reason


def carry_out(plan, folder, watch, stop, jobs=1):
    todo = trials_left(folder, plan)
    with tune_cluster(None, verbose=False), search_begun(folder, plan):
        TuneSearch(plan, folder, watch, stop, jobs).run(
            todo, cluster_needs(todo, actors=plan.actors)
        )


def test_a_stopped_search_goes_on_and_asha_stops_what_does_not_learn(ray_session, tmp_path):
    plan, stop = search_of([*POINTS, BROKEN]), threading.Event()
    first = Watched(lambda report: report["updates"] >= 4 and stop.set())
    carry_out(plan, tmp_path, first, stop)
    assert first.begun == [0]
    assert [t.number for t in trials_left(tmp_path, plan)] == [0, 1, 2, 3]
    then = Watched()
    carry_out(plan, tmp_path, then, threading.Event())
    assert [then.over[n] for n in range(3)] == ["", "", ""]
    assert "99" in then.over[3]
    assert cut_short(tmp_path) == {1: 2, 2: 2}
    results = search_results(tmp_path, plan, then.over)
    assert [row["status"] for row in results.rows] == [
        "done",
        "stopped early",
        "stopped early",
        "failed",
    ]
    assert [row["updates"] for row in results.rows[:3]] == [18, 2, 2]
    assert results.best.number == 0
    alone = tmp_path / "alone"
    assert run_planned(plan.trials[0].planned(), alone) == ""
    assert json.loads((alone / "summary.json").read_text())["digest"] == results.rows[0]["digest"]


def test_decisions_before_an_interruption_stand_and_count(tmp_path):
    """ASHA of a search that is continued decides as one that was never interrupted."""
    plan = search_of([(f"seed={n}",) for n in range(9)])
    losses = [(n, updates, 1 + ((7 * n + updates) % 5)) for updates in (2, 6) for n in range(9)]

    def told(folder, reports):
        with decision_log(folder) as log:
            scheduler = scheduler_of(plan, folder, log)
            for number, updates, loss in reports:
                if number in cut_short(folder):
                    continue
                trial = SimpleNamespace(
                    config={"trial": number}, trial_id=f"new-{len(decisions(folder))}"
                )
                scheduler.on_trial_result(None, trial, {"updates": updates, "loss": loss})
        return decisions(folder)

    (whole := tmp_path / "whole").mkdir()
    (parts := tmp_path / "parts").mkdir()
    once = told(whole, losses)
    told(parts, losses[:7])
    assert told(parts, losses[7:]) == once
    assert {d.stop for d in once} == {True, False}
    # a trial that was stopped before its run had ended is stopped again where it was, whatever the
    # others did since
    stopped = next(d for d in once if d.stop)
    with decision_log(parts) as log:
        again = SimpleNamespace(config={"trial": stopped.trial}, trial_id="again")
        scheduler = scheduler_of(plan, parts, log)
        assert (
            scheduler.on_trial_result(None, again, {"updates": stopped.updates - 1, "loss": 0.0})
            == "CONTINUE"
        )
        assert (
            scheduler.on_trial_result(None, again, {"updates": stopped.updates, "loss": 0.0})
            == "STOP"
        )
        # no evaluation
        assert scheduler.on_trial_result(None, again, {"updates": stopped.updates}) == "CONTINUE"
    assert decisions(parts) == once


def test_trials_with_actors_have_the_bits_of_runs_and_stop_where_they_are_told(
    ray_session, tmp_path
):
    few = ("split.clients=2", "resources.client_actors=1")
    plan = replace(search_of([(*point, *few) for point in POINTS[:2]]), actors=True)
    carry_out(plan, tmp_path, watch := Watched(), threading.Event())
    assert watch.over == {0: "", 1: ""}
    results = search_results(tmp_path, plan, watch.over)
    assert [(row["status"], row["updates"]) for row in results.rows] == [
        ("done", 18),
        ("stopped early", 2),
    ]
    environment = json.loads((tmp_path / "runs" / "0000" / "environment.json").read_text())
    assert environment["runner"] == "ray"
    assert run_planned(plan.trials[0].planned(), alone := tmp_path / "alone") == ""
    assert json.loads((alone / "summary.json").read_text())["digest"] == results.rows[0]["digest"]
    assert trials_left(tmp_path, plan) == []


def test_trials_that_fit_no_machine_are_refused_with_the_arithmetic(ray_session):
    trials = trials_of(lambda s: small([*s, "resources.client_gpus=0.2"]), [()], None)
    said = (
        r"4 actors ask 0\.8 GPU in all \(server 0, clients 0\.8\), the cluster has 0; lower"
        r" client_gpus"
    )
    with pytest.raises(Unplaceable, match=said):
        cluster_needs(trials, actors=False)
    assert ray.is_initialized()
