"""Client and server of the lane in one process: what is asked and answered, and peers that break their word."""

from __future__ import annotations

import math
import resource
import socket
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.transport import requests
from actors.transport import server as module
from actors.transport.client_service import ClientConversation
from actors.transport.connection import TransportAddress, dial
from actors.transport.server import MOST_STRANGERS, TransportServer
from actors.vertical.executor import ClientConnection
from raydpzv.errors import Diverged, RunError, Stalled, TransportError
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer
from raydpzv.wire.messages import Embeddings, Slopes, Start, pack

HOW = Activation(1.0, 1.25, True, 1.5)
NUMBERS = st.floats(allow_nan=True)


def upload(client=0, rows=3, releases=(), step=0):
    body = Embeddings(np.arange(rows, dtype=np.int32), np.ones((rows, 4), np.float32))
    return Upload(client, step, body, 0.5, releases)


def same(a, b):
    """Equal, NaN to NaN too."""
    return repr(a) == repr(b)


@given(
    st.integers(0, 2**31 - 1), st.integers(0, 2**40), NUMBERS, NUMBERS, st.booleans(), st.booleans(),
    st.lists(st.tuples(st.integers(0, 9), NUMBERS, st.none() | st.integers(0, 99)), max_size=3),
)  # fmt: skip
def test_an_upload_arrives_as_it_was_sent(client, step, number, applied, late, is_query, drawn):
    receipt = Receipt("gaussian rows", "system", 0.1, 2.0, 1.0, 64, 60, 0)
    releases = tuple(Release(p, v, receipt, s, np.arange(p) if p % 2 else None) for p, v, s in drawn)
    sent = Upload(client, step, Slopes(np.ones(2, np.float32)), number, releases, is_query)
    how = Activation(number, applied, late, number)
    frame = b"".join(requests.exchange(sent, how, applied))
    found = requests.read_request(memoryview(frame))
    assert found.upload is not None
    assert same(found.how, how)
    assert same(found.seconds, applied)
    assert same(found.upload, sent)
    for size in range(len(frame)):
        with pytest.raises(TransportError):
            requests.read_request(memoryview(frame[:size]))


@given(
    *(st.booleans(), st.integers(0, 99), st.integers(0, 2**40), st.none() | st.integers(0, 2**40)),
    st.integers(0, 2**40),
)
def test_an_answer_arrives_as_it_was_sent(over, client, round, promised, version):
    order = Order(
        client, Slopes(np.ones(2, np.float32)), round, True, False, promised, version=version, asks=over
    )
    for answer in (Answer(order, over), Answer(None, over)):
        found = requests.read_answer(memoryview(b"".join(requests.answered(answer))))
        assert same(found, answer)


@given(st.binary(max_size=100))
def test_other_bytes_are_the_named_error_or_what_they_say(data):
    for read in (requests.read_request, requests.read_answer):
        try:
            read(memoryview(data))
        except RunError:  # TransportError, or what the bytes say that the server raised
            continue


class Served:
    """A server whose answers are those that a test wants."""

    def __init__(self):
        self.calls, self.gate = [], threading.Event()
        self.error = None
        self.promised = None
        self.gate.set()

    def first_answer(self, client, warm_up):
        self.calls.append(("first", client, warm_up))
        return Answer(Order(client, Start(), upload_bytes=self.promised), False)

    def exchange_answer(self, upload, how, applied, warm_up):
        self.gate.wait(5)
        if self.error:
            raise self.error
        self.calls.append(("exchange", upload, how, applied))
        return Answer(
            Order(upload.client, Slopes(np.full(2, upload.step, np.float32)), upload.step + 1), False
        )

    def wait_answer(self, client, seconds, warm_up):
        self.calls.append(("wait", client, seconds))
        return Answer(None, False)

    def finish(self, client, applied, warm_up):
        self.calls.append(("finish", client, applied))


@pytest.fixture
def service():
    return Served()


@pytest.fixture
def lane(service):
    server = TransportServer(partial(ClientConversation, service), "", b"k" * 32, 2.0, peers=2)
    yield server
    server.close()


@pytest.fixture
def connection(lane):
    connection = ClientConnection(lane.address, 2.0)
    yield connection
    connection.close()


def test_a_client_goes_through_its_life(service, connection):
    first = connection.first(3)
    assert first.order is not None
    assert isinstance(first.order.body, Start)
    for step in range(3):
        answer = connection.exchange(upload(3, step=step), HOW, math.nan)
        assert answer.order is not None
        assert pack(answer.order.body) == pack(Slopes(np.full(2, step, np.float32)))
        assert answer.order.round == step + 1
    assert connection.wait(3, 0.25) == Answer(None, False)
    connection.finish(3, 7.0)
    assert [call[0] for call in service.calls] == [
        "first",
        "exchange",
        "exchange",
        "exchange",
        "wait",
        "finish",
    ]
    sent = service.calls[1][1]
    assert same(sent, upload(3))
    assert service.calls[1][2] == HOW
    assert service.calls[-1] == ("finish", 3, 7.0)


def test_what_the_server_raises_the_client_raises(service, connection):
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
    assert connection.exchange(upload(), HOW, 0.0).order is not None  # the line is as it was


def test_a_server_that_takes_too_long_is_a_stall_and_says_for_whom(lane, service):
    connection = ClientConnection(lane.address, 0.1)
    connection.first(5)
    service.gate.clear()
    with pytest.raises(
        Stalled, match=r"waited 0.1 s for the server's answer to client 5; raise resources.timeout"
    ):
        connection.exchange(upload(5), HOW, 0.0)
    service.gate.set()
    connection.close()


def test_an_upload_of_another_size_than_promised_ends_its_line_alone(lane, service):
    service.promised = upload(rows=3).body.wire_bytes
    good, bad = ClientConnection(lane.address, 2.0), ClientConnection(lane.address, 2.0)
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


def test_a_frame_far_longer_than_promised_is_not_even_read(lane, service):
    service.promised = 60
    line = dial(lane.address, 2.0)
    line.send(*requests.hello(0, False))
    line.send(*requests.plain(requests.FIRST))
    requests.read_answer(line.receive())
    with pytest.raises(
        TransportError
    ):  # the frame does not fit into what the system keeps for a peer that reads nothing
        line.send(bytes(10_000_000))
    assert [call[0] for call in service.calls] == ["first"]
    line.close()


@pytest.mark.parametrize("rows", [0, 1, 20_000])
def test_what_was_promised_leaves_room_for_receipts_of_all_rows(rows):
    """The least body a row can have, an embedding of one number, beside the longest row number in its receipt."""
    ids = np.arange(2**31 - 1 - rows, 2**31 - 1, dtype=np.int32)
    body = Embeddings(ids, np.ones((rows, 1), np.float32))
    receipt = Receipt("gaussian rows", "system", 0.1, 2.0, 1.0, rows, rows, 0)
    sent = Upload(2**31 - 1, 2**40, body, 0.1, (Release(0, math.nan, receipt, 2**40, ids),))
    size = sum(map(len, requests.exchange(sent, HOW, 0.1)))
    assert body.wire_bytes < size <= requests.most_bytes([body.wire_bytes, 0])
    assert rows < 2 or size > requests.OVERHEAD + body.wire_bytes, (
        "control: the body's own bytes would not do"
    )


def test_nobody_speaks_for_another(connection):
    connection.first(0)
    connection._lines[1] = connection._lines[0]
    with pytest.raises(TransportError, match="client 0 handed in an upload of client 1"):
        connection.exchange(upload(1), HOW, 0.0)


def test_a_stranger_is_not_heard_and_disturbs_nobody(lane, service, connection):
    connection.first(0)
    with pytest.raises(TransportError, match="secret"):
        dial(TransportAddress(lane.address.host, lane.address.port, b"w" * 32), 2.0)
    line = dial(lane.address, 2.0)
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="abstract names of sockets are Linux's")
def test_a_flood_of_strangers_takes_a_few_threads_and_no_actors_place(lane, service, connection):
    connection.first(0)
    before, opened = threading.active_count(), []
    for _ in range(5):
        opened += strangers(lane.address, MOST_STRANGERS)
        for end in opened[-MOST_STRANGERS:]:
            end.recv(4)  # it was accepted, and challenged
    most, limit = before + MOST_STRANGERS + 4, time.monotonic() + 20
    while threading.active_count() > most and time.monotonic() < limit:
        time.sleep(0.01)  # those whose line was cut are still on their way out
    assert threading.active_count() <= most
    assert opened[0].recv(100) is not None
    assert opened[0].recv(100) == b""
    assert connection.exchange(upload(), HOW, 0.0).order is not None
    late = ClientConnection(lane.address, 2.0)
    assert late.first(1).order is not None
    opened += strangers(lane.address, MOST_STRANGERS)
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
    server = TransportServer(partial(ClientConversation, service), "", b"k" * 32, 2.0, peers=1)
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
@pytest.mark.parametrize("promised", [500, 2], ids=["as many as were to come", "more than were to come"])
def test_500_clients_that_connect_at_once_are_all_served(service, many_files, monkeypatch, host, promised):
    monkeypatch.setattr(module, "MOST_STRANGERS", 500)
    server = TransportServer(partial(ClientConversation, service), host, b"k" * 32, 20.0, peers=promised)
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


def test_a_server_that_cannot_accept_waits_rather_than_spins(lane, connection, monkeypatch):
    connection.first(0)
    calls, lock = [], threading.Lock()

    class Refusing:
        def accept(self):
            with lock:
                calls.append(1)
            raise OSError("too many open files")

        def __getattr__(self, name):
            return getattr(listener, name)

    listener = lane._listener
    monkeypatch.setattr(lane, "_listener", Refusing())
    # ends the wait on the real one, if the server is in it by now; nobody answers if it is not
    with socket.socket(listener.family) as wakes:
        wakes.connect(listener.getsockname())
        time.sleep(0.5)
        with lock:
            assert 1 <= len(calls) <= 15


def test_a_closed_server_ends_every_line(lane, connection):
    connection.first(0)
    lane.close()
    with pytest.raises(TransportError):
        connection.exchange(upload(), HOW, 0.0)
    with pytest.raises(TransportError, match="no line to"):
        ClientConnection(lane.address, 1.0).first(0)


def test_clients_are_served_while_others_are_slow(lane, service, connection):
    connection.first(0)
    connection.first(1)
    service.gate.clear()
    waiting = threading.Thread(target=connection.exchange, args=(upload(0), HOW, 0.0))
    waiting.start()
    assert connection.wait(1, 0.0) == Answer(None, False)
    service.gate.set()
    waiting.join(5)
    assert not waiting.is_alive()
