"""Lines of hosts in one process: orders and looks, clients that pull, and hosts that break their word."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from actors.transport import requests
from actors.transport.connection import TransportAddress, dial
from actors.transport.connections import Connections
from actors.transport.hosts import HostConnection, HostConnections, HostConversation, serve_host
from actors.transport.server import TransportServer
from raydpzv.errors import Diverged, Stalled, TransportError
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.wire.messages import Slopes
from raydpzv.wire.seeds import CatchUp, Scalars
from tests.helpers.lane_actors import LaneActor, Lost, lane_server

SECRET = b"k" * 32
HOW = Activation(1.0, 1.25, True, 1.5)
LARGE = 300_000
"""Numbers of a message that does not fit into what the system keeps for a peer that receives nothing."""


class Host(LaneActor):
    """A host in threads, as `ClientGroupActor`; killed at its n-th batch of orders."""

    def __init__(self, killed_at=0, size=1):
        super().__init__(killed_at)
        self._size, self.done = size, []

    def _serve_line(self, line):
        serve_host(line, self._process, self._look)

    def _process(self, orders):
        self._count()
        self.done.append([order.client for order in orders])
        if orders[0].client < 0:
            raise Diverged("not finite")
        return [
            Upload(order.client, order.round, Slopes(np.full(self._size, order.body.values[0], np.float32)))
            for order in orders
        ]

    def _look(self, name, version):
        return {
            "evaluate": Metrics(version / 7, 0.5, 0.1),
            "state": np.full((1, 3), version, np.float32),
            "drift": (0.5, version / 7),
        }[name]


def orders(*clients, size=1, promised=None):
    return [
        Order(client, Slopes(np.full(size, client, np.float32)), 4, upload_bytes=promised)
        for client in clients
    ]


@pytest.fixture
def lines(monkeypatch):
    """Make the server's lines to hosts."""
    with lane_server(monkeypatch, SECRET, 30.0) as server:
        yield lambda *hosts: HostConnections(Connections(server, hosts, 10.0, "host"), lean=False)


def clients(uploads):
    return [(upload.client, upload.step, float(upload.body.values[0])) for upload in uploads]


def test_a_batch_of_orders_is_one_piece_of_work_and_looks_come_after_it(lines):
    hosts = Host(), Host()
    way = lines(*hosts)
    sent = [(host, way.work(host, orders(*batch))) for host, batch in ((0, (1, 3)), (1, (2,)), (0, (5,)))]
    assert way.look(0, "evaluate", 3) == Metrics(3 / 7, 0.5, 0.1)
    assert hosts[0].done == [[1, 3], [5]]
    assert np.array_equal(way.look(0, "state", 5), np.full((1, 3), 5, np.float32))
    assert way.look(1, "drift", 3) == (0.5, 3 / 7)
    found = [clients(way.uploads(host, handle)) for host, handle in sent]
    assert found == [[(1, 4, 1.0), (3, 4, 3.0)], [(2, 4, 2.0)], [(5, 4, 5.0)]]
    way.finish()


def test_ends_that_both_send_models_do_not_wait_for_one_another(lines):
    way = lines(Host(size=LARGE))
    sent = [way.work(0, orders(client, size=LARGE)) for client in range(3)]
    assert [clients(way.uploads(0, handle)) for handle in sent] == [[(n, 4, float(n))] for n in range(3)]


def test_what_a_host_raises_takes_the_place_of_its_uploads_alone(lines):
    way = lines(Host())
    bad, good = way.work(0, orders(-1)), way.work(0, orders(1))
    assert clients(way.uploads(0, good)) == [(1, 4, 1.0)]
    with pytest.raises(Diverged, match="not finite"):
        way.uploads(0, bad)


def test_a_lost_host_is_told_and_its_replacement_does_the_work(lines):
    way = lines(Host(killed_at=2))
    first, second = way.work(0, orders(1)), way.work(0, orders(2))
    assert clients(way.uploads(0, first)) == [(1, 4, 1.0)]
    with pytest.raises(Lost):
        way.uploads(0, second)
    with pytest.raises(Lost):
        way.look(0, "state", 1)
    way.replace(0, Host())
    assert clients(way.uploads(0, way.work(0, orders(2)))) == [(2, 4, 2.0)]


def test_a_line_that_breaks_is_an_error_of_its_own_if_its_host_lives(lines):
    host = Host()
    way = lines(host)
    assert clients(way.uploads(0, way.work(0, orders(1)))) == [(1, 4, 1.0)]
    host._line.cut()
    with pytest.raises(TransportError):
        way.uploads(0, way.work(0, orders(2)))


def test_uploads_far_longer_than_promised_are_not_even_read(lines):
    way = lines(Host(size=LARGE))
    with pytest.raises(TransportError, match="came where at most"):
        way.uploads(0, way.work(0, orders(1, promised=4)))


class Served:
    """A server of clients that pull."""

    def __init__(self, separate):
        self.separate, self.calls, self.over, self.error = separate, [], False, None

    def wake_order(self, client):
        body = CatchUp(np.ones(2, np.uint64), np.ones(2, np.float32), np.ones(1, np.uint64))
        return None if self.over else Order(client, body, 8, upload_bytes=12)

    def exchange_upload(self, upload, how):
        if self.error:
            raise self.error
        self.calls.append((upload.client, how))
        return not self.over


@pytest.fixture(params=[False, True], ids=["shared", "separate"])
def service(request):
    return Served(request.param)


@pytest.fixture
def lane(service):
    server = TransportServer(partial(HostConversation, service), "", SECRET, 2.0, peers=2)
    yield server
    server.close()


@pytest.fixture
def connection(lane):
    connection = HostConnection(lane.address, 2.0, 0)
    yield connection
    connection.close()


def upload(client, size=3):
    return Upload(client, 8, Scalars(np.ones((1, size), np.float32)))


def test_clients_of_a_host_pull_and_hand_in_side_by_side(service, connection):
    ordered = [connection.wake(client) for client in (4, 2)]
    assert [(order.client, order.round, order.body.wire_bytes) for order in ordered] == [
        (4, 8, 32),
        (2, 8, 32),
    ]
    assert hasattr(ordered[0].body, "seeds") == service.separate  # else the host has it from the ledger
    assert connection.exchange(upload(2), HOW)
    assert connection.exchange(upload(4), HOW)
    assert service.calls == [(2, HOW), (4, HOW)]
    connection.wake(4)
    service.over = True
    assert not connection.exchange(upload(4), HOW)
    assert connection.wake(4) is None


def test_what_the_server_raises_is_raised_at_the_host_and_the_line_goes_on(service, connection):
    connection.wake(1)
    service.error = Diverged("not finite")
    with pytest.raises(Diverged, match="not finite"):
        connection.exchange(upload(1), HOW)
    assert connection.wake(1).client == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [(upload(1, size=4), "sent 16 bytes where its order promised 12"), (upload(2), "that nobody ordered")],
)
def test_a_host_that_breaks_its_word_is_told_and_its_line_ended_alone(lane, connection, given, match):
    other = HostConnection(lane.address, 2.0, 1)
    connection.wake(1)
    with pytest.raises(TransportError, match=match):
        connection.exchange(given, HOW)
    with pytest.raises(TransportError):
        connection.wake(1)
    assert other.wake(1).client == 1
    other.close()


def test_who_lacks_the_secret_or_asks_as_a_vertical_client_gets_no_word(lane, connection):
    with pytest.raises(TransportError):
        HostConnection(TransportAddress(lane.address.host, lane.address.port, b"w" * 32), 2.0, 0)
    line = dial(lane.address, 2.0)
    line.send(*requests.hello(0, False))
    line.send(*requests.plain(requests.FIRST))
    with pytest.raises(TransportError, match="in the midst of a line"):
        requests.read_answer(line.receive())
    line.close()
    assert connection.wake(0).client == 0


def test_a_server_that_takes_too_long_is_a_stall_and_says_for_whom(lane, service):
    hold = threading.Event()
    service.wake_order = lambda client: hold.wait(5) and None
    slow = HostConnection(lane.address, 0.1, 0)
    with pytest.raises(
        Stalled, match=r"waited 0.1 s for the server's answer to client 3; raise resources.timeout"
    ):
        slow.wake(3)
    hold.set()
    slow.close()
