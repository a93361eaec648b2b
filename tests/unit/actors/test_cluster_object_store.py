"""The object store of a local Ray has room for what a run puts there."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import actors.driver
import actors.horizontal.driver
import actors.vertical.driver
import scenarios
from actors.cluster import OBJECT_STORE
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare


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
