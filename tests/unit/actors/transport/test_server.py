import resource
import socket
import sys
import threading
import time
from functools import partial

import pytest

from actors.transport import frames
from actors.transport import server as module
from actors.transport.clients import ClientConnection, ClientConversation
from actors.transport.server import MOST_STRANGERS, TransportServer
from actors.transport.sockets import TransportAddress, dial
from raydpzv.errors import Stalled, TransportError
from tests.helpers.transport_client import HOW, Service, upload


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def server(service):
    server = TransportServer(
        partial(ClientConversation, service.connection), "", b"k" * 32, 2.0, peers=2
    )
    yield server
    server.close()


@pytest.fixture
def connection(server):
    connection = ClientConnection(server.address, 2.0)
    yield connection
    connection.close()


def test_a_frame_far_longer_than_promised_is_not_even_read(server, service):
    service.promised = 60
    line = dial(server.address, 2.0)
    line.send(*frames.request(frames.HELLO))
    line.send(*frames.request(frames.FIRST))
    frames.read_answer(line.receive())
    # the frame does not fit into what the system keeps for a peer that reads nothing
    with pytest.raises(TransportError):
        line.send(bytes(10_000_000))
    assert [call[0] for call in service.calls] == ["first"]
    line.close()


def test_a_stranger_is_refused_and_disturbs_nobody(server, service, connection):
    connection.first(0)
    with pytest.raises(TransportError, match="secret"):
        dial(TransportAddress(server.address.host, server.address.port, b"w" * 32), 2.0)
    line = dial(server.address, 2.0)
    line.send(b"\xff" * 30)
    with pytest.raises(TransportError):
        line.receive(begins_within=2.0)
    assert connection.exchange(upload(), HOW, 0.0).order is not None
    assert [call[0] for call in service.calls] == ["first", "exchange"]


def strangers(address, count):
    """Open lines that prove nothing."""
    found = []
    for _ in range(count):
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(5.0)
        end.connect(f"\0{address.port}")
        found.append(end)
    return found


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="abstract names of sockets are Linux's"
)
def test_a_flood_of_strangers_takes_a_few_threads_and_no_actors_place(server, service, connection):
    connection.first(0)
    before, opened = threading.active_count(), []
    for _ in range(5):
        opened += strangers(server.address, MOST_STRANGERS)
        for end in opened[-MOST_STRANGERS:]:
            end.recv(4)  # it was accepted, and challenged
    most, limit = before + MOST_STRANGERS + 4, time.monotonic() + 20
    while threading.active_count() > most and time.monotonic() < limit:
        time.sleep(0.01)  # those whose line was cut are still on their way out
    assert threading.active_count() <= most
    assert opened[0].recv(100) is not None
    assert opened[0].recv(100) == b""
    assert connection.exchange(upload(), HOW, 0.0).order is not None
    late = ClientConnection(server.address, 2.0)
    assert late.first(1).order is not None
    opened += strangers(server.address, MOST_STRANGERS)
    opened[-1].recv(4)
    assert late.exchange(upload(1), HOW, 0.0).order is not None
    late.close()
    for end in opened:
        end.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who connected is known on Linux")
def test_connections_of_other_users_are_hung_up_on_before_those_of_actors(service, monkeypatch):
    monkeypatch.setattr(module, "MOST_STRANGERS", 3)
    users = iter([False, True, True, False, False, True, False, False])
    monkeypatch.setattr(module, "from_another_user", lambda connected: next(users))
    server = TransportServer(
        partial(ClientConversation, service.connection), "", b"k" * 32, 2.0, peers=1
    )
    idle = []
    for _ in range(8):
        idle += strangers(server.address, 1)
        idle[-1].recv(40)
    ended = [hung_up_on(end) for end in idle]
    assert ended == [True, True, True, False, False, True, False, False]
    late = ClientConnection(server.address, 2.0)
    monkeypatch.setattr(module, "from_another_user", lambda connected: False)
    assert late.first(1).order is not None
    late.close()
    server.close()
    for end in idle:
        end.close()


def hung_up_on(end):
    """Tell whether the server has ended a line that it challenged."""
    end.settimeout(0.2)
    try:
        return end.recv(1) == b""
    except TimeoutError:
        return False


@pytest.fixture
def many_files():
    """Let this process open as many files as 500 lines take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard > 0 else 4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("host", ["", "127.0.0.1"], ids=["unix", "tcp"])
@pytest.mark.parametrize(
    "promised", [500, 2], ids=["as many as were to come", "more than were to come"]
)
def test_500_clients_that_connect_at_once_are_all_served(
    service, many_files, monkeypatch, host, promised
):
    monkeypatch.setattr(module, "MOST_STRANGERS", 500)
    server = TransportServer(
        partial(ClientConversation, service.connection), host, b"k" * 32, 20.0, peers=promised
    )
    together, failed, connections = threading.Barrier(500), [], []

    def live(client):
        connection = ClientConnection(server.address, 20.0)
        connections.append(connection)
        together.wait(20)
        try:
            assert connection.first(client).order.client == client
        except (TransportError, Stalled) as error:
            failed.append(str(error))

    threads = [threading.Thread(target=live, args=(client,)) for client in range(500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(call[1] for call in service.calls) == list(range(500))
    for connection in connections:
        connection.close()
    server.close()


def test_a_server_that_cannot_accept_waits_rather_than_spins(server, connection, monkeypatch):
    connection.first(0)
    calls, lock = [], threading.Lock()

    class Refusing:
        def accept(self):
            with lock:
                calls.append(1)
            raise OSError("too many open files")

        def __getattr__(self, name):
            return getattr(listener, name)

    listener = server._listener
    monkeypatch.setattr(server, "_listener", Refusing())
    # ends the wait on the real one, if the server is in it by now; nobody answers if it is not
    with socket.socket(listener.family) as wakes:
        wakes.connect(listener.getsockname())
        time.sleep(0.5)
        with lock:
            assert 1 <= len(calls) <= 15


def test_a_closed_server_ends_every_connection(server, connection):
    connection.first(0)
    server.close()
    with pytest.raises(TransportError):
        connection.exchange(upload(), HOW, 0.0)
    with pytest.raises(TransportError, match="no connection to"):
        ClientConnection(server.address, 1.0).first(0)
