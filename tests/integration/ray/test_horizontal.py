"""Horizontal runs on real actors: the same bits as in one process, whoever computes and whoever dies."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
from pathlib import Path

import pytest

import scenarios
from actors.placement import Share, plan_hosts
from actors.transport.peers import open_transport
from raydpzv.errors import RunError, Stalled, Unplaceable
from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from raydpzv.experiment.rebuild import rebuild, resuming_horizontal
from raydpzv.records.store import digest
from raydpzv.registry import METHODS
from tests.helpers.gate import Gate, StopAtGate
from tests.helpers.runs import run_prepared

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

ROUNDS = 12
SLOW_LINKS = ("clock.compute=0.3", "clock.compute_law=exponential", "network.latency=0.05", "network.up=5000")


def spec(*overrides):
    return scenarios.load("digits_decomfl", [f"budget.updates={ROUNDS}", "evaluate.every=6", *overrides])


@dataclasses.dataclass(frozen=True)
class Mortal(PreparedHorizontal):
    """A prepared one of whose hosts ends by kill -9 (or ends the ledger) in the midst of its work, `deaths` times."""

    marks: str = ""
    deaths: int = 1
    after: int = 8
    victim: str = "host"
    number: int = signal.SIGKILL

    def client_group(self, updates=None, device="cpu"):
        client_group = PreparedHorizontal.client_group(self, updates, device)
        process, calls = client_group.process, []

        def dying(orders):
            calls.append(len(orders))
            if len(calls) == self.after:
                self._die(updates)
            return process(orders)

        client_group.process = dying
        return client_group

    def _die(self, updates):
        marks = Path(self.marks)
        number = next(i for i in range(100) if _first(marks / str(i)))
        if number >= self.deaths:
            return
        if self.victim == "ledger":
            import ray

            ray.kill(updates._connection._actor)
        else:
            signal.pthread_kill(threading.get_ident(), self.number)


@dataclasses.dataclass(frozen=True)
class Gated(PreparedHorizontal):
    """A prepared one whose hosts wait at a gate."""

    gate: Gate | None = None

    def client_group(self, updates=None, device="cpu"):
        client_group = PreparedHorizontal.client_group(self, updates, device)
        process, calls = client_group.process, []

        def waiting(orders):
            calls.append(len(orders))
            self.gate.passed(len(calls))
            return process(orders)

        client_group.process = waiting
        return client_group


def fields_of(prepared):
    return {field.name: getattr(prepared, field.name) for field in dataclasses.fields(prepared)}


def _first(mark):
    """Tell whether this process is the one that makes the mark."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.fixture
def mortal(tmp_path):
    """Make a prepared scenario whose host dies; without arguments once."""

    def make(*overrides, **how):
        marks = tmp_path / "deaths"
        marks.mkdir()
        return Mortal(**fields_of(prepare_horizontal(spec(*overrides))), marks=str(marks), **how)

    return make


@pytest.fixture(scope="module", autouse=True)
def _by_value(ray_session):
    """Workers cannot import this file: send its classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("lane", ["socket", "ray"])
def test_rounds_have_the_same_bits_for_two_messages_per_client_group(lane, monkeypatch):
    """On three hosts here; on one and two in the tests of a continued run and of a killed host."""
    opened = []
    monkeypatch.setattr(
        "actors.horizontal.driver.open_transport", lambda *a: opened.append(open_transport(*a))
    )
    hosts, local = 3, scenarios.run(spec()).summary
    found = scenarios.run(spec(f"resources.hosts={hosts}", f"resources.lane={lane}"), runner="ray").summary
    assert len(opened) == (2 if lane == "socket" else 0)  # the server and the ledger listen
    assert found["digest"] == local["digest"]
    assert found["model_digest"] == local["model_digest"]
    assert found["ledger"]["digest"] == local["ledger"]["digest"]
    facts = found["ray"]
    assert facts["hosts"] == hosts
    # one message to each host a round; one range for each but in round 1, and at most one for each evaluation
    assert facts["host_calls"] == hosts * ROUNDS
    assert 0 <= facts["ledger_reads"] - hosts * (ROUNDS - 1) <= 3


@pytest.mark.parametrize(
    "overrides",
    [
        ("method.asynchronous=true", "arrivals.rate=0.5", "budget.updates=40", *SLOW_LINKS),
        ("method.name=fedavg", "budget.updates=6", "network.up=100000", "data.source=synthetic_clients"),
    ],
)
def test_other_methods_have_the_same_bits(overrides):
    overrides = list(overrides)
    local = scenarios.run(of(overrides)).summary
    found = scenarios.run(of([*overrides, "resources.hosts=2"]), runner="ray").summary
    assert found["digest"] == local["digest"]
    assert found["model_digest"] == local["model_digest"]
    assert local["updates"] > 5


def of(overrides):
    """digits_decomfl, or the same prepared with FedAvg."""
    if "method.name=fedavg" not in overrides:
        return spec(*overrides)
    return spec(*overrides[1:]).model_copy(update={"method": METHODS["fedavg"].config()})


@pytest.mark.parametrize(
    "more",
    [
        ("resources.hosts=1", "record.snapshots=60"),
        (
            *("resources.hosts=2", "method.replicas=per_client", "method.revert=add_back"),
            *("method.momentum=0", "method.local_steps=2"),
        ),
    ],
    ids=["shared", "add_back"],
)
def test_a_run_goes_on_on_the_other_runner_to_the_same_bits(tmp_path, more):
    more = ("budget.updates=90", "record.flush=0.05", *more)
    whole = scenarios.run(spec(*more)).summary
    path = tmp_path / "run"
    on_ray = StopAtGate(Gate(tmp_path / "open", at=30), after=15)
    gated, folder = Gated(**fields_of(prepare_horizontal(spec(*more))), gate=on_ray.gate), path
    first = run_prepared(gated, folder, runner="ray", stop=on_ray.stop, progress=on_ray).summary
    assert first["status"] == "stopped"
    assert 15 < first["updates"] < 90
    assert (path / "checkpoint.state").is_file()
    prepared, folder, _ = resuming_horizontal(path)
    here = StopAtGate(on_ray.gate, after=first["updates"] + 15)
    second = run_prepared(prepared, folder, stop=here.stop, progress=here).summary
    assert second["status"] == "stopped"
    assert first["updates"] < second["updates"] < 90
    prepared, folder, _ = resuming_horizontal(path)
    last = run_prepared(prepared, folder, runner="ray").summary
    for field in ("digest", "model_digest", "drift"):
        assert last.get(field) == whole.get(field), field
    assert last["ledger"]["digest"] == whole["ledger"]["digest"]
    assert rebuild(path).verified


@pytest.mark.parametrize(
    ("replicas", "hosts", "lane"),
    [("shared", 2, "socket"), ("per_client", 1, "socket"), ("shared", 1, "ray")],
)
def test_a_client_group_that_is_killed_is_rebuilt_to_the_same_bits(mortal, replicas, hosts, lane):
    local = scenarios.run(spec(f"method.replicas={replicas}"))
    killed = mortal(f"method.replicas={replicas}", f"resources.hosts={hosts}", f"resources.lane={lane}")
    found = run_prepared(killed, None, runner="ray")
    assert found.summary["model_digest"] == local.summary["model_digest"]
    assert found.summary["ledger"]["digest"] == local.summary["ledger"]["digest"]
    tables = {**found.tables, "fault": local.rows("fault")}
    assert digest(tables) == local.summary["digest"]
    (fault,) = found.rows("fault").to_pylist()
    assert fault["kind"] == "host lost"
    assert fault["party"] in ("host 0", "host 1")
    assert "replaced (1 of 3)" in fault["message"]


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
    assert "all actors are made again (1 of 3), and the run goes on from its" in fault["message"]


def test_without_its_ledger_actor_a_run_goes_back_and_on(mortal, tmp_path):
    whole = scenarios.run(spec()).summary
    prepared = mortal("resources.hosts=1", victim="ledger")
    found = run_prepared(prepared, tmp_path / "run", runner="ray")
    assert digest({**found.tables, "fault": found.rows("fault").slice(0, 0)}) == whole["digest"]
    assert found.summary["ledger"]["digest"] == whole["ledger"]["digest"]
    (fault,) = found.summary["faults"]
    assert fault["party"] == "ledger"  # whoever noticed it first: the server, a host or the driver
    assert "all actors are made again (1 of 3), and the run goes on from its" in fault["message"]


def test_without_its_ledger_and_restarts_a_run_fails_with_one_line(mortal, tmp_path):
    prepared = mortal("resources.hosts=1", "resources.restarts=0", victim="ledger")
    with pytest.raises(RunError, match="the ledger actor was lost"):
        run_prepared(prepared, tmp_path / "run", runner="ray")
    check_failed(tmp_path / "run")


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


@pytest.mark.parametrize("lane", ["socket", "ray"])
def test_a_stopped_client_group_is_a_stall_that_says_what_was_waited_for(mortal, lane, tmp_path, monkeypatch):
    """Under the wall clock nobody waits for it but who ends the run; where no loss is allowed that is its end."""
    monkeypatch.setattr("actors.driver.CONTROL_TIMEOUT", 4.0)
    pulls = ("method.asynchronous=true", "clock.kind=wall", "arrivals.rate=1", "evaluate.every=1000")
    prepared = mortal(
        *(*pulls, "resources.hosts=2", "budget.updates=30", f"resources.lane={lane}", "resources.restarts=0"),
        number=signal.SIGSTOP,
        after=6,
    )
    with pytest.raises(Stalled, match="waited 4 s for the hosts to stop"):
        run_prepared(prepared, tmp_path / "run", runner="ray")
    check_failed(tmp_path / "run")


def test_what_cannot_be_placed_fails_at_once_with_the_arithmetic(tmp_path):
    with pytest.raises(
        Unplaceable, match=r"2 actors ask 1 GPU in all \(server 0, hosts 1\), the cluster has 0"
    ):
        scenarios.run(spec("resources.host_gpus=0.5", "resources.hosts=2"), tmp_path / "run", runner="ray")
    assert not (tmp_path / "run").exists()


def test_client_groups_are_as_many_as_fit():
    assert plan_hosts(spec(), {"CPU": 4.0}).actors == (Share(0.8, 0.0),) * 4
    with pytest.raises(Unplaceable, match=r"1\.5 GPUs asked; above 1 a share must be a whole number"):
        plan_hosts(spec("resources.host_gpus=1.5", "resources.hosts=1"), {"CPU": 4.0, "GPU": 4.0})
    assert len(plan_hosts(spec(), {"CPU": 64.0}).actors) == 10  # the cohort
    assert len(plan_hosts(spec("method.asynchronous=true"), {"CPU": 64.0}).actors) == 64
    assert len(plan_hosts(spec("resources.hosts=50"), {"CPU": 64.0}).actors) == 10
    assert len(plan_hosts(spec("resources.host_cpus=2"), {"CPU": 8.0}).actors) == 3  # the server needs some
    assert plan_hosts(spec("resources.host_cpus=2"), {"CPU": 8.5}).server == Share(0.5, 0.0)
    whole = plan_hosts(spec("resources.host_cpus=2", "resources.server_cpus=1"), {"CPU": 8.0})
    assert len(whole.actors) == 3
    assert len(plan_hosts(spec("resources.host_gpus=0.3"), {"CPU": 8.0, "GPU": 2.0}).actors) == 6
    with pytest.raises(
        Unplaceable, match=r"ask 5 CPU in all \(server 1, hosts 4\), the cluster has 2; lower server_c"
    ):
        plan_hosts(
            spec("resources.host_cpus=2", "resources.server_cpus=1", "resources.hosts=2"), {"CPU": 2.0}
        )
