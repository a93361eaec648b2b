import os
import pickle
from dataclasses import replace
from unittest.mock import Mock

import pytest
import ray
from ray._private import services
from ray._private.node import Node

import actors.driver
import actors.horizontal.driver
import actors.vertical.driver
import scenarios
from actors.cluster import OBJECT_STORE, connected, set_defaults
from raydpzv.errors import InputError, RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare


@pytest.mark.parametrize(
    ("error", "wanted", "words"),
    [
        (
            Exception("The current node timed out during startup."),
            RunError,
            "Ray did not start: The current node",
        ),
        (ConnectionError("nobody there"), InputError, "cannot reach Ray at local: nobody there"),
        (TypeError("wrong option"), TypeError, "wrong option"),
    ],
)
def test_a_ray_that_does_not_come_up_is_reported_and_ended(
    error: Exception, wanted: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(
        ray, "is_initialized", lambda: False
    )  # whatever other tests of this process left
    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    with pytest.raises(wanted, match=words), connected("local"):
        pass
    assert ended


@pytest.mark.parametrize(("own", "found"), [(None, "120"), ("7", "7")])
def test_processes_of_ray_have_two_minutes_to_come_up_or_the_users_limit(
    own: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_gcs_server_port_wait_time_s", "RAY_raylet_start_wait_time_s"):
        monkeypatch.setenv(name, own) if own else monkeypatch.delenv(name)
        set_defaults()
        assert os.environ[name] == found


def test_our_own_ray_looks_for_its_node_as_long_as_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    look, found = Mock(side_effect=[RuntimeError("not known yet"), "the node"]), []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(services, "get_node", look)
    monkeypatch.setattr(
        ray, "init", lambda **options: found.append(services.get_node("here", "own"))
    )
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connected("local"):
        assert services.get_node is look
    assert found == ["the node"]


@pytest.mark.parametrize("verbose", [False, True])
def test_our_own_ray_starts_no_process_that_nobody_asked_for(
    verbose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (
        "start_monitor",
        "start_api_server",
        "start_log_monitor",
        "start_gcs_server",
        "start_raylet",
    )
    own, started = {name: vars(Node)[name] for name in names}, []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(
        ray, "init", lambda **options: started.extend(n for n in names if vars(Node)[n] is own[n])
    )
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connected("local", verbose=verbose):
        pass
    assert started == [
        *(["start_log_monitor"] if verbose else []),
        "start_gcs_server",
        "start_raylet",
    ]
    assert {name: vars(Node)[name] for name in names} == own


# The object store of a local Ray has room for what a run puts there.


class Asked(Exception):
    """Ended a run where it starts Ray."""


def asked_by(run, prepared, monkeypatch):
    """Return the bytes of object store that a run asks for beyond those for messages."""

    def connected(address, *, verbose, object_store_memory):
        raise Asked(object_store_memory - OBJECT_STORE)

    monkeypatch.setattr(actors.driver, "connected", connected)
    with pytest.raises(Asked) as asked:
        run(prepared, RunOptions())
    return asked.value.args[0]


def pickled(*things):
    return sum(len(pickle.dumps(thing)) for thing in things)


@pytest.mark.parametrize("holder", ["clients' actors", "the server's actor"])
def test_a_vertical_run_asks_for_what_its_actors_are_sent(small, holder, monkeypatch):
    alone = ("resources.client_actors=0",) if holder == "the server's actor" else ()
    prepared = prepare(small(*alone))
    room = asked_by(actors.vertical.driver.run_vertical, prepared, monkeypatch)
    sent = [prepared] if alone else [replace(prepared, clients=()), *prepared.clients]
    assert room == pytest.approx(pickled(*sent), rel=0.05)


def test_a_horizontal_run_asks_for_the_data_once(monkeypatch):
    prepared = prepare(scenarios.load("digits_decomfl", []))
    room = asked_by(actors.horizontal.driver.run_horizontal, prepared, monkeypatch)
    assert room == pytest.approx(pickled(prepared), rel=0.05)
