import threading
from functools import partial

import numpy as np
import pytest

from actors.transport import frames
from actors.transport.connection import Connection
from actors.transport.hosts import HostConnection, HostConversation
from raydpzv.errors import Diverged, Stalled, TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.wire.seeds import CatchUp, Scalars
from tests.helpers.transport_service import served

HOW = Activation(1.0, 1.25, True, 1.5)


class Service:
    """A server of clients that pull."""

    def __init__(self, separate):
        self.separate, self.calls, self.over, self.error = separate, [], False, None

    def wake(self, client):
        body = CatchUp(np.ones(2, np.uint64), np.ones(2, np.float32), np.ones(1, np.uint64))
        return None if self.over else Order(client, body, 8, upload_bytes=12)

    def exchange(self, upload, how):
        if self.error:
            raise self.error
        self.calls.append((upload.client, how))
        return not self.over


@pytest.fixture(params=[False, True], ids=["shared", "separate"])
def service(request):
    return Service(request.param)


@pytest.fixture
def reached(service):
    with served(partial(HostConversation, service, service.separate)) as made:
        yield made


@pytest.fixture
def connection(reached):
    connection = HostConnection(reached, 2.0, 0)
    yield connection
    connection.close()


def upload(client, size=3):
    return Upload(client, 8, Scalars(np.ones((1, size), np.float32)))


def test_clients_of_a_host_pull_and_hand_in_side_by_side(service, connection):
    ordered = [connection.wake(client) for client in (4, 2)]
    found = [(order.client, order.round, order.body.wire_bytes) for order in ordered]
    assert found == [(4, 8, 32), (2, 8, 32)]
    assert (
        hasattr(ordered[0].body, "seeds") == service.separate
    )  # else the host has it from the ledger
    assert connection.exchange(upload(2), HOW)
    assert connection.exchange(upload(4), HOW)
    assert service.calls == [(2, HOW), (4, HOW)]
    connection.wake(4)
    service.over = True
    assert not connection.exchange(upload(4), HOW)
    assert connection.wake(4) is None


def test_the_servers_error_is_raised_at_the_host_and_the_connection_stays(service, connection):
    connection.wake(1)
    service.error = Diverged("not finite")
    with pytest.raises(Diverged, match="not finite"):
        connection.exchange(upload(1), HOW)
    assert connection.wake(1).client == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (upload(1, size=4), "sent 16 bytes where its order promised 12"),
        (upload(2), "that nobody ordered"),
    ],
)
def test_a_host_that_breaks_the_protocol_harms_itself_alone(
    reached, connection, service, given, match
):
    other = HostConnection(reached, 2.0, 1)
    connection.wake(1)
    with pytest.raises(TransportError, match=match):
        connection.exchange(given, HOW)
    assert service.calls == []
    with pytest.raises(TransportError):
        connection.wake(1)
    assert other.wake(1).client == 1
    other.close()


def test_a_vertical_client_is_refused(reached, connection):
    wrong = Connection(reached, 2.0, frames.request(frames.HELLO))
    with pytest.raises(TransportError, match="a host sent a request of kind"):
        frames.read_answer(wrong.ask(frames.request(frames.FIRST), "an answer"))
    wrong.close()
    assert connection.wake(0).client == 0


def test_a_slow_server_is_a_stall_that_names_the_client(service):
    hold = threading.Event()
    service.wake = lambda client: hold.wait(5) and None
    with served(partial(HostConversation, service, service.separate)) as made:
        slow = HostConnection(made, 0.1, 0)
        with pytest.raises(
            Stalled, match=r"waited 0.1 s for the server's answer to client 3; raise resou"
        ):
            slow.wake(3)
        hold.set()
        with pytest.raises(TransportError):  # a late answer would be taken for this one's
            slow.wake(3)
        slow.close()
