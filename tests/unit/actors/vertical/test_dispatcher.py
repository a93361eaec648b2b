"""Dispatcher over the lane where actors are lost or lines break. Ray's word on a call is a stand-in here."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from actors.lane import actor_lines as module
from actors.lane import requests
from actors.lane.line import dial
from actors.lane.orders import serve_orders
from actors.lane.server import LaneServer
from actors.vertical.dispatcher import LaneDispatcher
from raydpzv.errors import LaneError
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.messages import Slopes, Start


class Lost(Exception):
    """What Ray says of an actor that is lost."""


class Actor:
    """A client actor in threads: `join` and `serve_orders` as of `ClientActor`, killed at its n-th order or before."""

    def __init__(self, killed_at=0):
        self._orders_left, self._line, self.dead = killed_at, None, killed_at < 0
        self.join = SimpleNamespace(remote=lambda *given: lambda: self._join(*given))
        self.serve_orders = SimpleNamespace(remote=self._serve)

    def _join(self, address, number):
        if self.dead:
            raise Lost
        self._line = dial(address, 5.0)
        self._line.send(*requests.join(number))

    def _serve(self):
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()

        def told():
            thread.join(5)
            if self.dead:
                raise Lost

        return told

    def _work(self):
        with suppress(LaneError):
            serve_orders(self._line, self._process)
        self._line.close()

    def _process(self, order):
        self._orders_left -= 1
        if self._orders_left == 0:
            self.dead = True
            self._line.close()
        return Upload(order.client, order.round, Slopes(np.ones(1, np.float32)))


@pytest.fixture
def lane(monkeypatch):
    monkeypatch.setattr(module, "get", lambda call, timeout, what: call())
    monkeypatch.setattr(module, "lost", lambda error: isinstance(error, Lost))
    server = LaneServer(None, "", b"k" * 32, 5.0, peers=2)
    yield server
    server.close()


def order(client, round):
    return Order(client, Start(), round, upload_bytes=4)


def test_a_lost_actor_is_told_by_its_upload_and_its_replacement_goes_on(lane):
    dispatcher = LaneDispatcher(lane, [Actor(), Actor(killed_at=2)], 5.0)
    sent = [dispatcher.send(client, order(client, round)) for round in (1, 2) for client in (0, 1)]
    assert dispatcher.upload(1, sent[1], 1).step == 1
    for handle in (sent[3], dispatcher.send(1, order(1, 3))):  # whatever is sent to it then
        with pytest.raises(Lost):
            dispatcher.upload(1, handle, 1)
    dispatcher.replace(1, Actor(killed_at=-1))
    handle = dispatcher.send(1, order(1, 2))
    with pytest.raises(Lost):
        dispatcher.upload(1, handle, 1)
    dispatcher.replace(1, Actor())
    assert dispatcher.upload(1, dispatcher.send(1, order(1, 2)), 1).step == 2
    assert dispatcher.upload(0, sent[2], 0).step == 2
    dispatcher.finish()


def test_a_line_that_breaks_is_an_error_of_its_own_if_its_actor_lives(lane):
    actor = Actor()
    dispatcher = LaneDispatcher(lane, [actor], 5.0)
    assert dispatcher.upload(0, dispatcher.send(0, order(0, 1)), 0).step == 1
    actor._line.cut()
    with pytest.raises(LaneError):
        dispatcher.upload(0, dispatcher.send(0, order(0, 2)), 0)
