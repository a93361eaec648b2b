"""Runs on real actors. One Ray serves them all."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from itertools import islice, pairwise

import numpy as np
import pytest
from scipy import stats

import scenarios
from raydpzv.audit.canaries import chosen
from raydpzv.audit.ledger_audit import audit_ledger
from raydpzv.audit.recorded import recorded_run
from raydpzv.errors import RunError, SpecError, Unplaceable
from raydpzv.experiment.parties import ClientFactory
from raydpzv.experiment.reexecute import replay, resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.keys import Key
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.records import metrics
from tests.helpers.gate import Gate, StopAtGate
from tests.helpers.naps import overslept
from tests.helpers.runs import run_prepared
from tests.helpers.sound_runs import sound, table

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

MESSY = (
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "clock.service=0.02",
    "network.latency=0.05",
    "network.up=50000",
    "arrivals.rate=[1.0, 2.0, 0.5, 1.5]",
)


class Delayed:
    """A client's role whose work takes real time that nobody can foresee."""

    def __init__(self, role, client):
        self._role, self._draws = role, Key(99) / client
        self._calls = 0

    def process(self, order):
        self._calls += 1
        time.sleep(float((self._draws / self._calls).generator().uniform(0, 0.02)))
        return self._role.process(order)

    def __getattr__(self, name):
        return getattr(self._role, name)


@dataclasses.dataclass(frozen=True)
class DelayedRecipe(ClientFactory):
    def make(self, device="cpu"):
        return Delayed(ClientFactory.make(self, device), self.client)


class Gated:
    """A client's role that waits at a gate."""

    def __init__(self, role, gate):
        self._role, self._gate, self._calls = role, gate, 0

    def process(self, order):
        self._calls += 1
        self._gate.passed(self._calls)
        return self._role.process(order)

    def __getattr__(self, name):
        return getattr(self._role, name)


@dataclasses.dataclass(frozen=True)
class GatedRecipe(ClientFactory):
    gate: Gate | None = None

    def make(self, device="cpu"):
        return Gated(ClientFactory.make(self, device), self.gate)


class Dying:
    """A client's role whose process ends at its 20th order."""

    def __init__(self, role):
        self._role, self._calls = role, 0

    def process(self, order):
        self._calls += 1
        if self._calls == 20:
            sys.stdout.flush()
            import os

            os._exit(1)
        return self._role.process(order)

    def __getattr__(self, name):
        return getattr(self._role, name)


@dataclasses.dataclass(frozen=True)
class DyingRecipe(ClientFactory):
    def make(self, device="cpu"):
        return Dying(ClientFactory.make(self, device))


@pytest.fixture(scope="session", autouse=True)
def _by_value(ray_session):
    """Workers cannot import this file: send its classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_the_digest_is_the_same_on_any_number_of_actors_with_delays_in_them(small):
    """1 actor: all in the server's; 3: one for two clients each."""
    local = scenarios.run(small(*MESSY)).summary
    for client_actors, delayed in ((0, False), (2, True)):
        experiment = prepare_vertical(small(*MESSY, f"resources.client_actors={client_actors}"))
        if delayed:
            experiment = dataclasses.replace(
                experiment, clients=tuple(DelayedRecipe(**vars(r)) for r in experiment.clients)
            )
        found = run_prepared(experiment, runner="ray").summary
        assert found["digest"] == local["digest"], client_actors
        assert found["model_digest"] == local["model_digest"]
        assert found["staleness"] == local["staleness"]


def test_the_synchronous_control_gives_the_same_digest(small):
    spec = scenarios.load("sgd", ["budget.updates=80", "network.latency=0.1", "resources.client_actors=2"])
    assert scenarios.run(spec, runner="ray").summary["digest"] == scenarios.run(spec).summary["digest"]


def test_a_proved_epsilon_holds_under_the_wall_clock(small, tmp_path):
    """Clients arrive as they like; the ledger is audited with the real order of its releases."""
    spec = scenarios.load(
        "digits_private",
        [
            *("data.train_rows=200", "method.batch=50", "method.perturbations=2", "budget.updates=60"),
            *("clock.kind=wall", "arrivals.rate=20", "evaluate.every=60"),
        ],
    )
    summary = scenarios.run(spec, tmp_path / "run", runner="ray").summary
    assert summary["private"]
    run = recorded_run(tmp_path / "run")
    found = audit_ledger(run, chosen(run.prepared, "replace", count=2))
    assert found.hidden == 0
    assert all(canary.others > 0 for canary in found.canaries)
    assert 0 < epsilon_of(found.worst.apart, found.claim["delta"]) <= found.claim["epsilon"] <= 1.0001


def test_the_wall_clock_is_real(small, tmp_path):
    """Everything that can be said of one live run: epochs, lateness, staleness, replay.

    How well a machine serves the rates is measured in benchmarks. Here it may be as busy as it likes: the epochs are
    those of the clients' clocks, lateness is what the times say, and waits are held against other waits.
    """
    rates = [6.0, 6.0, 6.0, 0.6]
    spec = small(
        "clock.kind=wall",
        f"arrivals.rate={rates}",
        "budget.updates=100000",
        "budget.seconds=12",
        "privacy.epsilon=1.0",
        "evaluate.every=100",
    )
    with overslept() as naps:
        began = time.monotonic()
        run = scenarios.run(spec, tmp_path / "run", runner="ray")
        elapsed = time.monotonic() - began
    assert run.summary["stopped_by"] == "the budget of 12 seconds is spent"
    assert elapsed > 12
    service = run.rows("service").sort_by("round").to_pylist()
    assert [row["round"] for row in service] == list(range(1, len(service) + 1))
    # it went on until then: what it did last is no longer ago than its services are apart
    served = [row["served"] for row in service]
    assert 12 - 2 * np.diff(served).max() < run.summary["simulated_seconds"] == served[-1] < elapsed
    assert all(row["woke"] < row["served"] <= row["applied"] for row in service)
    arrivals, waits, pooled = prepare_vertical(spec).timing.arrivals, [], []
    for client, rate in enumerate(rates):
        trips = [row for row in service if row["client"] == client]
        epochs = np.array(list(islice(arrivals.epochs(client), int(12 * rate))))
        # every epoch is served, one after the other, however late
        due = [row["due"] for row in trips]
        assert due[: len(epochs)] == epochs[: len(due)].tolist()
        gaps = np.diff(epochs, prepend=0.0)
        assert stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue > 0.05
        pooled.append(gaps * rate)
        for before, trip in pairwise(trips):
            # two calls of one client never overlap; late is whose epoch fell into the trip before
            assert trip["woke"] >= before["applied"]
            assert trip["late"] == (trip["due"] < before["applied"])
            # a trip starts at its epoch, or at once when the trip before is over
            waits.append(trip["woke"] - max(trip["due"], before["applied"]))
    everything = np.concatenate(pooled)
    assert stats.kstest(everything, "expon").pvalue > 0.05
    assert stats.kstest(everything, "expon", args=(0, 1 / 2)).pvalue < 1e-4
    assert np.median(waits) < 0.05 + 5 * np.median(naps)
    # nobody waits for the slow client's epochs
    counts = np.bincount([row["client"] for row in service])
    assert counts[:3].min() >= 2 * counts[3] > 0
    ages = [c.mean for c in metrics.staleness(run.rows("staleness"), 4)]
    assert ages[3] > 1.5 * max(ages[:3])
    assert replay(tmp_path / "run").verified


def test_the_synchronous_control_runs_live_and_replays(tmp_path):
    spec = scenarios.load(
        "sgd", ["clock.kind=wall", "budget.updates=60", "arrivals.rate=10", "resources.client_actors=2"]
    )
    run = scenarios.run(spec, tmp_path / "run", runner="ray")
    assert run.summary["updates"] == 60
    assert replay(tmp_path / "run").verified


def test_a_stop_is_clean_and_the_run_resumes_on_ray_to_the_same_bits(small, tmp_path):
    whole = scenarios.run(small("budget.updates=200")).summary
    experiment = prepare_vertical(small("budget.updates=200", "resources.client_actors=1"))
    look = StopAtGate(Gate(tmp_path / "open", at=25), after=20)
    clients = tuple(GatedRecipe(**vars(r), gate=look.gate) for r in experiment.clients)
    gated = dataclasses.replace(experiment, clients=clients)
    first = run_prepared(gated, tmp_path / "run", runner="ray", stop=look.stop, progress=look)
    assert first.summary["status"] == "stopped"
    assert 20 < first.summary["updates"] < 200
    experiment, folder, _ = resuming(tmp_path / "run")
    second = run_prepared(experiment, folder, runner="ray")
    assert second.summary["digest"] == whole["digest"]


def test_a_lost_actor_ends_the_run_with_one_line_and_a_readable_folder(small, tmp_path):
    experiment = prepare_vertical(small("resources.restarts=0", "resources.client_actors=2"))
    clients = tuple(DyingRecipe(**vars(r)) if r.client == 2 else r for r in experiment.clients)
    with pytest.raises(RunError, match="an actor was lost") as caught:
        run_prepared(dataclasses.replace(experiment, clients=clients), tmp_path / "run", runner="ray")
    assert "\n" not in str(caught.value)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["updates"] > 10
    fault = (tmp_path / "run" / "rows" / "fault").glob("*.parquet")
    assert len(list(fault)) == 1


def test_what_cannot_be_placed_fails_at_once_with_the_arithmetic(small, tmp_path, monkeypatch):
    def started(*_, **__):
        raise AssertionError("an actor was asked for")

    monkeypatch.setattr("ray.actor.ActorClass._remote", started)
    greedy = small("resources.client_cpus=1", "resources.server_cpus=0.5")
    with pytest.raises(Unplaceable, match=r"4 actors ask 2 GPU in all .*clients 2\), the cluster has 0"):
        scenarios.run(small("resources.client_gpus=0.5"), tmp_path / "run", runner="ray")
    with pytest.raises(Unplaceable, match=r"ask 4.5 CPU in all \(server 0.5, clients 4\), the cluster has 2"):
        scenarios.run(greedy, tmp_path / "run", runner="ray")
    assert not (tmp_path / "run").exists()


def test_clients_need_actors_of_their_own_under_the_wall_clock(small):
    with pytest.raises(SpecError, match="client_actors: wanted at least 1"):
        scenarios.run(small("clock.kind=wall", "resources.client_actors=0"), runner="ray")


@pytest.mark.parametrize(
    "overrides",
    [(), ("method.gather=2", "method.batch=5", "model.engine=torch", "method.average=0.5")],
)
def test_sound_releases_given_out_again_make_the_same_bits_here_and_on_actors(tmp_path, overrides):
    spec = sound(table(tmp_path / "rows.csv"), *overrides, "resources.client_actors=1")
    experiment = prepare_vertical(spec)
    here = run_prepared(experiment, tmp_path / "run")
    releases = {
        (r["client"], r["step"], r["perturbation"]): r["value"] for r in here.rows("release").to_pylist()
    }
    there = run_prepared(experiment.with_record(releases, continues=False), runner="ray")
    assert there.summary["model_digest"] == here.summary["model_digest"]
    assert there.summary["ledger"]["digest"] == here.summary["ledger"]["digest"]
    assert there.summary["evaluated_model"] == here.summary["evaluated_model"]
    assert there.summary["epsilon"] == here.summary["epsilon"]
