import math
import threading
from functools import partial

import numpy as np
import pytest

from actors.transport import frames
from actors.transport.clients import ClientConnection, ClientConversation
from actors.transport.connection import Connection
from raydpzv.errors import Diverged, RunError, Stalled, TransportError
from raydpzv.sim.wall import Answer
from raydpzv.wire.messages import Slopes, Start, pack
from tests.helpers.transport_client import HOW, Service, upload
from tests.helpers.transport_service import served


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def reached(service):
    with served(partial(ClientConversation, service.connection)) as made:
        yield made


@pytest.fixture
def connection(reached):
    connection = ClientConnection(reached, 2.0)
    yield connection
    connection.close()


def test_a_client_goes_through_its_life(service, connection):
    first = connection.first(3)
    assert isinstance(first.order.body, Start)
    for step in range(3):
        answer = connection.exchange(upload(3, step=step), HOW, math.nan)
        assert pack(answer.order.body) == pack(Slopes(np.full(2, step, np.float32)))
        assert answer.order.round == step + 1
    assert connection.wait(3, 0.25) == Answer(None, False)
    connection.finish(3, 7.0)
    names = [call[0] for call in service.calls]
    assert names == ["first", "exchange", "exchange", "exchange", "wait", "finish"]
    assert repr(service.calls[1][1:3]) == repr((upload(3), HOW))
    assert service.calls[-1] == ("finish", 3, 7.0)


def test_the_client_raises_the_servers_errors(service, connection):
    connection.first(0)
    for error, wanted, match in (
        (Diverged("a loss is not finite"), Diverged, "a loss is not finite"),
        (ZeroDivisionError("by zero"), RunError, "an actor failed: ZeroDivisionError: by zero"),
        (Stalled("waited 9 s for the ledger"), Stalled, "waited 9 s for the ledger"),
    ):
        service.error = error
        with pytest.raises(wanted, match=match):
            connection.exchange(upload(), HOW, 0.0)
    service.error = None
    assert connection.exchange(upload(), HOW, 0.0).order is not None  # the connection is as it was


def test_an_upload_of_another_size_than_promised_harms_its_client_alone(reached, service):
    service.promised = upload(rows=3).body.wire_bytes
    good, bad = ClientConnection(reached, 2.0), ClientConnection(reached, 2.0)
    good.first(0)
    bad.first(1)
    with pytest.raises(TransportError, match="client 1 sent 80 bytes where its order promised 60"):
        bad.exchange(upload(1, rows=4), HOW, 0.0)
    with pytest.raises(TransportError):
        bad.exchange(upload(1), HOW, 0.0)
    assert good.exchange(upload(0), HOW, 0.0).order is not None
    assert [call[1].client for call in service.calls if call[0] == "exchange"] == [0]
    good.close()
    bad.close()


def test_no_client_speaks_for_another(reached, service):
    one = Connection(reached, 2.0, frames.request(frames.HELLO))
    frames.read_answer(one.ask(frames.request(frames.FIRST), "an answer"))
    with pytest.raises(TransportError, match="client 0 handed in an upload of client 1"):
        frames.read_answer(one.ask(frames.exchange(upload(1), HOW, 0.0), "an answer"))
    assert [call[0] for call in service.calls] == ["first"]
    one.close()


def test_a_slow_server_is_a_stall_that_names_the_client(service):
    with served(partial(ClientConversation, service.connection)) as made:
        connection = ClientConnection(made, 0.1)
        connection.first(5)
        service.gate.clear()
        match = r"waited 0.1 s for the server's answer to client 5; raise resources.timeout"
        with pytest.raises(Stalled, match=match):
            connection.exchange(upload(5), HOW, 0.0)
        service.gate.set()
        with pytest.raises(TransportError):  # a late answer is not taken for the next one
            connection.exchange(upload(5), HOW, 0.0)
        connection.close()


def test_clients_are_served_while_others_are_slow(reached, service, connection):
    connection.first(0)
    connection.first(1)
    service.gate.clear()
    waiting = threading.Thread(target=connection.exchange, args=(upload(0), HOW, 0.0))
    waiting.start()
    assert connection.wait(1, 0.0) == Answer(None, False)
    service.gate.set()
    waiting.join(5)
    assert not waiting.is_alive()
