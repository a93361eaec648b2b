"""Dispatcher over the lane where actors are lost or lines break. Ray's word on a call is a stand-in here."""

from __future__ import annotations

import numpy as np
import pytest

from actors.transport.orders import serve_orders
from actors.vertical.dispatcher import LaneDispatcher
from raydpzv.errors import TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.messages import Slopes, Start
from tests.helpers.lane_actors import LaneActor, Lost, lane_server


class Actor(LaneActor):
    """A client actor in threads, as `ClientActor`; killed at its n-th order or before."""

    def _serve_line(self, line):
        serve_orders(line, self._process)

    def _process(self, order):
        self._count()
        return Upload(order.client, order.round, Slopes(np.ones(1, np.float32)))


@pytest.fixture
def lane(monkeypatch):
    with lane_server(monkeypatch, b"k" * 32, 5.0) as server:
        yield server


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
    with pytest.raises(TransportError):
        dispatcher.upload(0, dispatcher.send(0, order(0, 2)), 0)
