"""Runs over the lane: what they have on record, and what becomes of its ends that are lost.

What `test_recovery.py` and `test_vertical.py` test under the virtual clock is over the lane too, which is the default.
"""

from __future__ import annotations

import signal

import pytest

import scenarios
from actors.remote import get
from actors.transport.peers import open_transport
from actors.vertical.driver import _Driver
from raydpzv.errors import RunError, SpecError, Stalled, TransportError
from raydpzv.experiment.reexecute import replay
from raydpzv.records.run_folder import RunFolder
from tests.helpers import struck as struck_roles
from tests.helpers.runs import run_prepared
from tests.helpers.struck import strikes

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

NOISE = ("privacy.mode=paper", "privacy.epsilon=1.0", "privacy.delta=1e-5", "privacy.clip=1.0")
LIVE = ("clock.kind=wall", "arrivals.rate=40", "budget.updates=120", "resources.client_actors=2")
ALONE = "resources.restarts=0"
"""No new leg in place of one that lost a process."""


@pytest.fixture(scope="session", autouse=True)
def _by_value(ray_session):
    """Workers cannot import tests: send the classes along."""
    import ray

    ray.cloudpickle.register_pickle_by_value(struck_roles)


@pytest.fixture
def struck(tmp_path):
    return strikes(tmp_path, client={"call": "work", "calls": 8}, server={"calls": 40})


@pytest.mark.parametrize("lane", ["socket", "ray"])
def test_a_live_run_is_computed_again_to_the_same_bits(small, lane, tmp_path):
    run = scenarios.run(small(*LIVE, f"resources.lane={lane}"), tmp_path / "run", runner="ray")
    assert (run.summary["status"], run.summary["updates"]) == ("done", 120)
    assert {row["bytes"] for row in run.rows("message").to_pylist() if row["kind"] == "Slopes"} == {4}
    assert replay(tmp_path / "run").verified


def test_the_virtual_clocks_digest_does_not_hang_on_the_lane(small, monkeypatch):
    opened = []
    monkeypatch.setattr("actors.vertical.driver.open_transport", lambda *a: opened.append(open_transport(*a)))
    local = scenarios.run(small()).summary
    for lane in ("socket", "ray"):
        spec = small(f"resources.lane={lane}", "resources.client_actors=2")
        assert scenarios.run(spec, runner="ray").summary["digest"] == local["digest"]
        assert len(opened) == 1


def test_noise_that_clients_add_has_its_receipts_on_record(tmp_path):
    spec = scenarios.load(
        "vafl",
        [*LIVE, *NOISE, "privacy.noise=seeded", "budget.updates=40"],
    )
    run = scenarios.run(spec, tmp_path / "run", runner="ray")
    releases = run.rows("release").to_pylist()
    assert len(releases) >= 40
    assert {row["mechanism"] for row in releases} == {"gaussian rows"}
    assert replay(tmp_path / "run").verified


def test_machines_that_differ_talk_over_tcp(small, tmp_path, monkeypatch):
    listening(monkeypatch, "127.0.0.1")
    run = scenarios.run(small(*LIVE), tmp_path / "run", runner="ray")
    assert run.summary["updates"] == 120
    assert replay(tmp_path / "run").verified


def test_a_server_that_cannot_listen_fails_the_run_in_one_line(small, tmp_path, monkeypatch):
    listening(monkeypatch, "203.0.113.1")  # of a range that is nobody's
    with pytest.raises(
        TransportError, match=r'cannot listen on 203\.0\.113\.1 .*; set resources.lane = "ray"'
    ):
        scenarios.run(small(*LIVE), tmp_path / "run", runner="ray")
    assert RunFolder.open(tmp_path / "run").summary()["status"] == "failed"


def listening(monkeypatch, host):
    def opened(server, actors, timeout, peers):
        return get(server.open_transport.remote(host, b"k" * 32, peers), timeout, "the server to listen")

    monkeypatch.setattr("actors.vertical.driver.open_transport", opened)


@pytest.mark.parametrize("method", ["apply", "work"])
def test_a_killed_client_comes_back_on_a_line_of_its_own(small, struck, method, tmp_path):
    run = run_prepared(struck(small(*LIVE), "client", call=method), tmp_path / "run", runner="ray")
    assert (run.summary["status"], run.summary["updates"]) == ("done", 120)
    (lost,) = [row for row in run.rows("fault").to_pylist() if row["kind"] == "Lost"]
    assert lost["party"] == "client actor 1"
    addresses = [(r["client"], r["step"], r["perturbation"]) for r in run.rows("release").to_pylist()]
    assert len(set(addresses)) == len(addresses) == 120
    assert replay(tmp_path / "run").verified


def test_a_client_that_is_killed_when_all_are_to_stop_is_replaced_too(small, tmp_path, monkeypatch):
    import ray

    stop = _Driver._stop_clients

    def kill_and_stop(self, actor_set, timeout):
        ray.kill(actor_set.actors[1])
        stop(self, actor_set, timeout)

    monkeypatch.setattr(_Driver, "_stop_clients", kill_and_stop)
    run = scenarios.run(small(*LIVE), tmp_path / "run", runner="ray")
    assert (run.summary["status"], run.summary["updates"]) == ("done", 120)
    assert [row["party"] for row in run.rows("fault").to_pylist() if row["kind"] == "Lost"] == [
        "client actor 1"
    ]
    assert replay(tmp_path / "run").verified


def test_a_killed_server_ends_the_run_with_one_line(small, struck, tmp_path):
    with pytest.raises(RunError, match="an actor was lost") as caught:
        run_prepared(struck(small(*LIVE, ALONE), "server"), tmp_path / "run", runner="ray")
    assert "\n" not in str(caught.value)
    assert RunFolder.open(tmp_path / "run").summary()["status"] == "failed"


def test_a_stopped_client_is_a_stall_that_says_what_was_waited_for(small, struck, tmp_path):
    scenarios.run(small(*LIVE, "budget.updates=8"), runner="ray")  # leaves processes that come up in time
    spec = small(*LIVE, ALONE, "resources.timeout=5", "budget.updates=100000")
    with pytest.raises(Stalled, match="waited 5 s for"):
        run_prepared(struck(spec, "client", number=signal.SIGSTOP), tmp_path / "run", runner="ray")
    assert RunFolder.open(tmp_path / "run").summary()["status"] == "failed"


def test_a_socket_is_refused_where_there_are_no_actors_if_it_was_asked_for(small, tmp_path):
    with pytest.raises(SpecError, match=r'resources\.lane: wanted "auto" or "ray" with the local'):
        scenarios.run(small("resources.lane=socket"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
