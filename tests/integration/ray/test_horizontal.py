"""Horizontal runs on real actors that lose a host or the ledger: the same bits, or one line that says why not."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

import scenarios
from raydpzv.errors import RunError, Stalled
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.rebuild import rebuild
from raydpzv.records.store import digest
from tests.helpers import struck_hosts
from tests.helpers.runs import run_prepared

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

ROUNDS = 12


def spec(*overrides):
    return scenarios.load("digits_decomfl", [f"budget.updates={ROUNDS}", "evaluate.every=6", *overrides])


@pytest.fixture
def mortal(tmp_path):
    """Make a prepared scenario whose host dies; without arguments once."""

    return lambda *overrides, **how: struck_hosts.mortal(
        prepare_horizontal(spec(*overrides)), tmp_path, **how
    )


@pytest.fixture(scope="module", autouse=True)
def _by_value(ray_session):
    """Workers cannot import tests: send the classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(struck_hosts)


def test_beyond_its_restarts_a_run_fails_with_one_line_and_a_readable_folder(mortal, tmp_path):
    prepared = mortal("resources.hosts=1", "resources.restarts=0")
    with pytest.raises(RunError, match=r"host 0 was lost and resources.restarts = 0") as caught:
        run_prepared(prepared, tmp_path / "run", runner="ray")
    assert "\n" not in str(caught.value)
    check_failed(tmp_path / "run")
    assert rebuild(tmp_path / "run").updates >= 7


def test_models_that_only_a_lost_host_had_let_the_run_go_back(mortal, tmp_path):
    more = (
        "method.replicas=per_client",
        "method.revert=add_back",
        "method.momentum=0",
        "method.local_steps=2",
    )
    more += ("record.checkpoint_updates=3",)
    whole = scenarios.run(spec(*more)).summary
    found = run_prepared(mortal(*more, "resources.hosts=2"), tmp_path / "run", runner="ray")
    assert digest({**found.tables, "fault": found.rows("fault").slice(0, 0)}) == whole["digest"]
    for field in ("model_digest", "drift"):
        assert found.summary[field] == whole[field]
    (fault,) = found.summary["faults"]
    assert "all actors are made again (1 of 3), and the run continues from its" in fault["message"]


def test_without_its_ledger_actor_a_run_goes_back_and_on(mortal, tmp_path):
    whole = scenarios.run(spec()).summary
    prepared = mortal("resources.hosts=1", victim="ledger")
    found = run_prepared(prepared, tmp_path / "run", runner="ray")
    assert digest({**found.tables, "fault": found.rows("fault").slice(0, 0)}) == whole["digest"]
    assert found.summary["ledger"]["digest"] == whole["ledger"]["digest"]
    (fault,) = found.summary["faults"]
    assert fault["party"] == "ledger"  # whoever noticed it first: the server, a host or the driver
    assert "all actors are made again (1 of 3), and the run continues from its" in fault["message"]


def check_failed(path):
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["updates"] >= 7


def test_the_wall_clock_is_real_and_goes_on_without_a_client_group(mortal, tmp_path):
    prepared = mortal(
        "method.asynchronous=true",
        "clock.kind=wall",
        "clock.compute=0.05",
        "budget.updates=100000",
        "budget.seconds=60",
        "arrivals.rate=0.3",
        "evaluate.every=25",
        "resources.hosts=2",
        deaths=1,
        after=12,
    )
    stop, marks, complete = threading.Event(), Path(prepared.marks), list[int]()

    def look(status):
        """Host by host: one dies at its 12th piece of work; when the new one has worked with the other, it is over."""
        if len(list(marks.iterdir())) == 3:
            complete.append(status.updates)
            if status.updates >= complete[0] + 40:
                stop.set()

    run = run_prepared(prepared, tmp_path / "run", runner="ray", stop=stop, progress=look)
    assert run.summary["stopped_by"] == "stopped by the user"
    (fault,) = run.rows("fault").to_pylist()
    assert fault["kind"] == "host lost"
    assert "epochs that passed meanwhile are not made up" in fault["message"]
    lost = int(fault["party"].split()[1])
    service, sync = run.rows("service").to_pylist(), run.rows("sync").to_pylist()
    assert [row["round"] for row in service] == list(range(1, len(service) + 1))
    served = [row for row in service if row["client"] % 2 == lost]
    assert min(row["due"] for row in served[12:]) > fault["time"]
    assert len(served) > 15
    assert all(row["read"] + row["lag"] + 1 == row["round"] for row in sync)
    assert max(row["lag"] for row in sync) >= 1
    assert run.rows("evaluation").num_rows >= 3
    rebuilt = rebuild(tmp_path / "run")
    assert rebuilt.verified
    assert rebuilt.updates == len(service)


def test_a_stopped_client_group_is_a_stall_that_says_what_was_waited_for(mortal, tmp_path, monkeypatch):
    """Under the wall clock nobody waits for it but who ends the run; where no loss is allowed that is its end."""
    monkeypatch.setattr("actors.driver.CONTROL_TIMEOUT", 4.0)
    pulls = ("method.asynchronous=true", "clock.kind=wall", "arrivals.rate=1", "evaluate.every=1000")
    prepared = mortal(
        *(*pulls, "resources.hosts=2", "budget.updates=30", "resources.restarts=0"),
        number=signal.SIGSTOP,
        after=6,
    )
    with pytest.raises(Stalled, match="waited 4 s for the hosts to stop"):
        run_prepared(prepared, tmp_path / "run", runner="ray")
    check_failed(tmp_path / "run")
