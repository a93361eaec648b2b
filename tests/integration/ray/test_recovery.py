"""Clients whose actor is killed are rebuilt from their key and the ledger. One Ray serves all tests."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

import scenarios
from actors.vertical.driver import _Driver
from raydpzv.errors import RunError
from raydpzv.experiment.finalize import RunFinalizer
from raydpzv.experiment.parties import ClientFactory
from raydpzv.experiment.rebuild import rebuild_client
from raydpzv.experiment.reexecute import replay, resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.records.run_folder import RunFolder
from tests.helpers import struck as struck_roles
from tests.helpers.runs import run_prepared
from tests.helpers.struck import Struck

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@dataclasses.dataclass(frozen=True)
class KilledRecipe(ClientFactory):
    method: str = "process"
    calls: int = 20
    marks: tuple[str, ...] = ()

    def make(self, device="cpu"):
        return Struck(ClientFactory.make(self, device), self.method, self.calls, self.marks)


@pytest.fixture(scope="session", autouse=True)
def _by_value(ray_session):
    """Workers cannot import this file: send its classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.cloudpickle.register_pickle_by_value(struck_roles)


@pytest.fixture
def killing(tmp_path):
    """An experiment in which clients' processes are killed `times` times, at calls of the methods given."""

    def make(spec, methods, calls=20, times=1):
        experiment, recipes = prepare_vertical(spec), []
        for recipe in experiment.clients:
            marks = tuple(str(tmp_path / f"mark {recipe.client} {n}") for n in range(times))
            if recipe.client in methods:
                for mark in marks:
                    Path(mark).touch()
                recipe = KilledRecipe(**vars(recipe), method=methods[recipe.client], calls=calls, marks=marks)
            recipes.append(recipe)
        return dataclasses.replace(experiment, clients=tuple(recipes))

    return make


def lost_rows(run):
    return [row for row in run.rows("fault").to_pylist() if row["kind"] == "Lost"]


def test_a_loss_beyond_the_limit_ends_the_run(small, killing, tmp_path, monkeypatch):
    """Here orders are calls, and the server's machine is not that of the run folder, where the ledger is kept."""
    monkeypatch.setattr("actors.ledger_control._here", lambda: "another machine")
    spec = small("resources.client_actors=1", "resources.restarts=1", "resources.lane=ray")
    with pytest.raises(RunError, match="an actor was lost"):
        run_prepared(killing(spec, {2: "process"}, calls=16, times=2), tmp_path / "run", runner="ray")
    summary = RunFolder.open(tmp_path / "run").summary()
    faults = RunFolder.open(tmp_path / "run").rows()["fault"].column("kind").to_pylist()
    assert (summary["status"], faults) == ("failed", ["Lost", "Lost"])
    assert summary["ledger"]["updates"] == summary["updates"] > 10
    assert summary["ledger"]["bytes"] > 0
    # the ledger is free, and what was released is sent again
    experiment, folder, _ = resuming(tmp_path / "run")
    found = run_prepared(experiment, folder, runner="local").summary["ledger"]
    assert found["digest"] == scenarios.run(small()).summary["ledger"]["digest"]


def test_under_the_wall_clock_a_lost_answer_is_applied_and_no_release_is_drawn_twice(
    small, killing, tmp_path, monkeypatch
):
    """Client 0 is killed with an answer in its hands, client 1 in the midst of its work."""
    accounts, done = [], RunFinalizer.done
    monkeypatch.setattr(RunFinalizer, "done", lambda self, *a: accounts.append(a[2]) or done(self, *a))
    spec = small(
        "clock.kind=wall", "privacy.noise=system", "budget.updates=150", "arrivals.rate=12",
        "resources.client_actors=2", "evaluate.every=100",
    )  # fmt: skip
    run = run_prepared(killing(spec, {0: "apply", 1: "work"}, calls=6), tmp_path / "run", runner="ray")
    assert (run.summary["status"], run.summary["updates"]) == ("done", 150)
    faults = {row["party"]: row["message"] for row in lost_rows(run)}
    assert faults.keys() == {"client actor 0", "client actor 1"}
    silent = r"; not heard of until now: client 1 for [\d.e-]+ s, client 3 for [\d.e-]+ s$"
    assert re.search(silent, faults["client actor 1"])
    rows = run.rows("release").to_pylist()
    addresses = {(row["client"], row["step"], row["perturbation"]) for row in rows}
    assert len(addresses) == len(rows) == accounts[0].releases == run.summary["ledger"]["pairs"] == 150
    for client in range(4):
        assert rebuild_client(tmp_path / "run", client).verified
        due = [row["due"] for row in run.rows("service").to_pylist() if row["client"] == client]
        assert due == sorted(due)
        assert len(set(due)) == len(due)
    assert replay(tmp_path / "run").verified


def test_a_client_that_is_killed_when_all_are_to_stop_is_replaced_too(small, tmp_path, monkeypatch):
    import ray

    stop = _Driver._stop_loops

    def kill_and_stop(self, timeout):
        ray.kill(self._actor_set.actors[1])
        stop(self, timeout)

    monkeypatch.setattr(_Driver, "_stop_loops", kill_and_stop)
    spec = small("clock.kind=wall", "arrivals.rate=40", "resources.client_actors=2")
    run = scenarios.run(spec, tmp_path / "run", runner="ray")
    assert (run.summary["status"], run.summary["updates"]) == ("done", 120)
    assert [row["party"] for row in lost_rows(run)] == ["client actor 1"]
    assert replay(tmp_path / "run").verified
