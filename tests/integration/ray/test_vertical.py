import time
from itertools import islice, pairwise

import numpy as np
import pytest
from scipy import stats

import scenarios
from raydpzv.audit.canaries import chosen
from raydpzv.audit.ledger_audit import audit_ledger
from raydpzv.audit.recorded import recorded_run
from raydpzv.errors import SpecError, Unplaceable
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.records import metrics
from tests.helpers.naps import overslept
from tests.helpers.runs import run_prepared
from tests.helpers.sound_runs import sound, table

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def test_a_proved_epsilon_holds_under_the_wall_clock(small, tmp_path):
    """Clients arrive as they like; the ledger is audited with the real order of its releases."""
    spec = scenarios.load(
        "digits_private",
        [
            "data.train_rows=200",
            "method.batch=50",
            "method.perturbations=2",
            "budget.updates=60",
            "clock.kind=wall",
            "arrivals.rate=20",
            "evaluate.every=60",
        ],
    )
    summary = scenarios.run(spec, tmp_path / "run", runner="ray").summary
    assert summary["private"]
    run = recorded_run(tmp_path / "run")
    found = audit_ledger(run, chosen(run.prepared, "replace", count=2))
    assert found.hidden == 0
    assert all(canary.others > 0 for canary in found.canaries)
    assert (
        0 < epsilon_of(found.worst.apart, found.claim["delta"]) <= found.claim["epsilon"] <= 1.0001
    )


def test_the_wall_clock_is_real(small, tmp_path):
    """Everything that can be said of one live run: epochs, lateness, staleness, replay.

    How well a machine serves the rates is measured in benchmarks. Here it may be as busy as it
    likes: the epochs are those of the clients' clocks, lateness is what the times say, and waits
    are held against other waits.
    """
    rates = [12.0, 12.0, 12.0, 1.2]
    spec = small(
        "clock.kind=wall",
        f"arrivals.rate={rates}",
        "budget.updates=100000",
        "budget.seconds=6",
        "privacy.epsilon=1.0",
        "evaluate.every=100",
    )
    with overslept() as naps:
        began = time.monotonic()
        run = scenarios.run(spec, tmp_path / "run", runner="ray")
        elapsed = time.monotonic() - began
    assert run.summary["stopped_by"] == "the budget of 6 seconds is spent"
    assert elapsed > 6
    service = run.rows("service").sort_by("round").to_pylist()
    assert [row["round"] for row in service] == list(range(1, len(service) + 1))
    # it went on until then: what it did last is no longer ago than its services are apart
    served = [row["served"] for row in service]
    assert 6 - 2 * np.diff(served).max() < run.summary["simulated_seconds"] == served[-1] < elapsed
    assert all(row["woke"] < row["served"] <= row["applied"] for row in service)
    arrivals, waits, pooled = prepare_vertical(spec).timing.arrivals, [], []
    for client, rate in enumerate(rates):
        trips = [row for row in service if row["client"] == client]
        epochs = np.array(list(islice(arrivals.epochs(client), int(6 * rate))))
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


def test_a_run_that_fits_nowhere_fails_at_once_with_the_arithmetic(small, tmp_path, monkeypatch):
    def started(*_, **__):
        raise AssertionError("an actor was asked for")

    monkeypatch.setattr("ray.actor.ActorClass._remote", started)
    greedy = small("resources.client_cpus=1", "resources.server_cpus=0.5")
    with pytest.raises(
        Unplaceable, match=r"4 actors ask 2 GPU in all .*clients 2\), the cluster has 0"
    ):
        scenarios.run(small("resources.client_gpus=0.5"), tmp_path / "run", runner="ray")
    with pytest.raises(
        Unplaceable, match=r"ask 4.5 CPU in all \(server 0.5, clients 4\), the cluster has 2"
    ):
        scenarios.run(greedy, tmp_path / "run", runner="ray")
    hosts = scenarios.load("digits_decomfl", ["resources.host_gpus=0.5", "resources.hosts=2"])
    with pytest.raises(
        Unplaceable, match=r"2 actors ask 1 GPU in all \(server 0, hosts 1\), the cluster has"
    ):
        scenarios.run(hosts, tmp_path / "run", runner="ray")
    assert not (tmp_path / "run").exists()


def test_clients_need_actors_of_their_own_under_the_wall_clock(small):
    with pytest.raises(SpecError, match="client_actors: wanted at least 1"):
        scenarios.run(small("clock.kind=wall", "resources.client_actors=0"), runner="ray")


def test_proved_releases_given_out_again_make_the_same_bits_here_and_on_actors(tmp_path):
    overrides = ("method.gather=2", "method.batch=5", "model.engine=torch", "method.average=0.5")
    experiment = prepare_vertical(sound(table(tmp_path / "rows.csv"), *overrides))
    here = run_prepared(experiment, tmp_path / "run")
    releases = {
        (r["client"], r["step"], r["perturbation"]): r["value"]
        for r in here.rows("release").to_pylist()
    }
    there = run_prepared(experiment.with_record(releases, continues=False), runner="ray")
    assert there.summary["model_digest"] == here.summary["model_digest"]
    assert there.summary["ledger"]["digest"] == here.summary["ledger"]["digest"]
    assert there.summary["evaluated_model"] == here.summary["evaluated_model"]
    assert there.summary["epsilon"] == here.summary["epsilon"]
