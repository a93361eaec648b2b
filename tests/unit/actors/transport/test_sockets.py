import errno
import hmac
import os
import socket
import struct
import sys
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.transport import sockets as module
from actors.transport.sockets import FrameSocket, TransportAddress, dial, listen, prove
from raydpzv.errors import Stalled, TransportError

SECRET = b"s" * 32


@pytest.fixture
def pair():
    ends = socket.socketpair()
    sockets = [FrameSocket(end, 5.0) for end in ends]
    yield sockets
    for end in sockets:
        end.close()


def raw(line):
    return line._socket


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_frames_come_as_they_were_sent(frames):
    a, b = (FrameSocket(end, 5.0) for end in socket.socketpair())
    for frame in frames:
        a.send(frame[:100], frame[100:])
    assert [bytes(b.receive()) for _ in frames] == frames
    a.close()
    with pytest.raises(TransportError, match="closed by the peer"):
        b.receive()


def test_a_frame_larger_than_the_systems_buffers_arrives_whole(pair):
    data = os.urandom(5_000_000)
    sending = threading.Thread(target=pair[0].send, args=(data,))
    sending.start()
    assert bytes(pair[1].receive()) == data
    sending.join()


def test_a_frame_longer_than_promised_closes_the_socket(pair):
    pair[0].send(b"x" * 101)
    with pytest.raises(TransportError, match="101 bytes came where at most 100 were promised"):
        pair[1].receive(100)
    with pytest.raises(TransportError):
        pair[0].receive()


@pytest.mark.parametrize("sent", [b"\1", struct.pack("<Q", 10), struct.pack("<Q", 10) + b"12345"])
def test_a_frame_that_is_cut_off_is_an_error_wherever_it_is_cut(pair, sent):
    raw(pair[0]).sendall(sent)
    pair[0].close()
    with pytest.raises(TransportError, match="cut off"):
        pair[1].receive()


def test_a_peer_that_stops_in_the_midst_of_a_frame_is_given_up(pair):
    pair[1]._timeout = 0.1
    raw(pair[0]).sendall(struct.pack("<Q", 10) + b"123")
    began = time.monotonic()
    with pytest.raises(TransportError, match="cut off after 3 of 10 bytes"):
        pair[1].receive()
    assert time.monotonic() - began >= 0.1


def test_a_peer_that_drips_a_frame_byte_by_byte_is_given_up(pair):
    pair[1]._timeout = 0.3
    ended = threading.Event()

    def drip():
        for _ in range(60):
            if ended.wait(0.05):
                return
            with suppress(OSError):  # it was hung up on
                raw(pair[0]).sendall(b"\3")

    dripping = threading.Thread(target=drip)
    dripping.start()
    began = time.monotonic()
    with pytest.raises(TransportError, match=r"cut off after \d+ of"):
        pair[1].receive()
    assert time.monotonic() - began < 1.5
    ended.set()
    dripping.join()


def test_a_peer_has_a_time_limit_to_prove_itself(pair, monkeypatch):
    """Also if later frames may take longer."""
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT", 0.2)
    pair[1]._timeout = 60.0
    raw(pair[0]).sendall(b"\x20")
    began = time.monotonic()
    with pytest.raises(TransportError, match="cut off"):
        prove(pair[1], SECRET, listens=True)
    assert time.monotonic() - began < 10
    ends = [FrameSocket(end, 60.0) for end in socket.socketpair()]
    proving = threading.Thread(target=prove, args=(ends[0], SECRET), kwargs={"listens": True})
    proving.start()
    prove(ends[1], SECRET, listens=False)
    proving.join()
    assert [end._timeout for end in ends] == [60.0, 60.0]
    for end in ends:
        end.close()


def test_a_peer_that_says_nothing_is_a_stall_not_a_broken_connection(pair):
    with pytest.raises(Stalled):
        pair[1].receive(begins_within=0.05)
    pair[0].send(b"late")
    assert bytes(pair[1].receive()) == b"late"


def test_a_peer_that_reads_nothing_is_given_up(pair):
    pair[0]._timeout = 0.1
    with pytest.raises(TransportError, match="broke while"):
        pair[0].send(bytes(50_000_000))


@pytest.fixture(params=["", "127.0.0.1"], ids=["unix", "tcp"])
def listening(request):
    listener, address = listen(request.param, SECRET)
    yield listener, address
    listener.close()


def serve(listener, secret, found):
    connected, _ = listener.accept()
    line = FrameSocket(connected, 5.0)
    try:
        prove(line, secret, listens=True)
        line.send(bytes(line.receive(100, begins_within=5)))
    except TransportError as error:
        found.append(error)
    finally:
        line.close()


@pytest.mark.parametrize("wrong", ["neither", "client", "server"])
def test_both_ends_prove_that_they_have_the_secret(listening, wrong):
    listener, address = listening
    errors: list[TransportError] = []
    secret = b"x" * 32 if wrong == "server" else SECRET
    serving = threading.Thread(target=serve, args=(listener, secret, errors))
    serving.start()
    dialled = TransportAddress(
        address.host, address.port, b"y" * 32 if wrong == "client" else SECRET
    )
    if wrong == "neither":
        line = dial(dialled, 5.0)
        line.send(b"hello")
        assert bytes(line.receive()) == b"hello"
        line.close()
    else:
        with pytest.raises(TransportError, match="does not have the run's secret"):
            dial(dialled, 5.0)
    serving.join()
    assert [str(e) for e in errors if "secret" not in str(e)] == []
    assert bool(errors) == (wrong != "neither")


def test_an_answer_of_one_end_is_none_at_the_other():
    """A peer without the secret that sends everything back proves nothing."""
    a, b = socket.socketpair()
    mirror, line = FrameSocket(a, 5.0), FrameSocket(b, 5.0)

    def reflect():
        try:
            while True:
                mirror.send(bytes(mirror.receive(begins_within=5)))
        except (TransportError, Stalled):
            return

    reflecting = threading.Thread(target=reflect)
    reflecting.start()
    with pytest.raises(TransportError, match="does not have the run's secret"):
        prove(line, SECRET, listens=True)
    reflecting.join()


def test_a_proof_that_leaves_the_peers_own_challenge_out_is_refused(pair):
    """A proof covers both challenges, so that none of another handshake is valid in this one."""
    peer, line = pair

    def prove_half():
        challenge = bytes(peer.receive(begins_within=5.0))
        peer.send(os.urandom(len(challenge)))
        peer.receive(begins_within=5.0)
        peer.send(hmac.digest(SECRET, b"client" + challenge, "sha256"))

    proving = threading.Thread(target=prove_half)
    proving.start()
    with pytest.raises(TransportError, match="does not have the run's secret"):
        prove(line, SECRET, listens=True)
    proving.join()


def test_an_address_without_a_listener_is_named(monkeypatch):
    with pytest.raises(TransportError, match=r"no connection to 127\.0\.0\.1:1"):
        dial(TransportAddress("127.0.0.1", 1, SECRET), 1.0)
    with pytest.raises(TransportError, match="no connection to the Unix socket"):
        dial(TransportAddress("", "raydpzv-nobody", SECRET), 1.0)

    def refuse(*_, **__):
        raise OSError("no more addresses")

    monkeypatch.setattr(module.socket, "create_server", refuse)
    with pytest.raises(
        TransportError,
        match=r"cannot listen on 127\.0\.0\.1: no more addresses",
    ):
        listen("127.0.0.1", SECRET)


@pytest.fixture
def crowded(monkeypatch):
    """A Unix socket with so many who wait to be accepted that the next one must wait to connect."""
    monkeypatch.setattr(module, "_BACKLOG", 1)
    listener, address = listen("", SECRET)
    waiting = []
    while True:
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        try:
            waiting[-1].connect(listener.getsockname())
        except BlockingIOError:
            break
    yield listener, address, waiting
    for end in (listener, *waiting):
        end.close()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="abstract names of sockets are Linux's"
)
def test_a_peer_waits_to_connect_while_too_many_others_wait(crowded):
    listener, address, waiting = crowded
    found: list[bytes] = []

    def connect():
        line = dial(address, 5.0)
        line.send(b"hello")
        found.append(bytes(line.receive()))
        line.close()

    dialling = threading.Thread(target=connect)
    dialling.start()
    dialling.join(0.3)
    assert dialling.is_alive()
    for _ in waiting[:-1]:
        listener.accept()[0].close()
    serve(listener, SECRET, [])
    dialling.join()
    assert found == [b"hello"]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="abstract names of sockets are Linux's"
)
def test_a_peer_waits_no_longer_to_connect_than_a_handshake_may_take(crowded, monkeypatch):
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT", 0.1)
    with pytest.raises(TransportError, match="no connection to the Unix socket"):
        dial(crowded[1], 5.0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who connected is known on Linux")
def test_another_users_connection_is_recognised(monkeypatch):
    ours, _ = ends = socket.socketpair()
    assert not module.from_another_user(ours)
    another = os.getuid() + 1
    monkeypatch.setattr(module.os, "getuid", lambda: another)
    assert module.from_another_user(ours)
    with socket.socket() as over_the_network:
        assert not module.from_another_user(over_the_network)
    for end in ends:
        end.close()


def test_actors_on_one_machine_listen_on_that_machine_alone():
    listener, address = listen("", SECRET)
    with listener:
        assert listener.family == socket.AF_UNIX or listener.getsockname()[0] == "127.0.0.1"
    assert SECRET.decode() not in repr(address) + str(address)


class Silent:
    """A connection whose peer's machine is gone, as the system reports it."""

    family = socket.AF_INET

    def setsockopt(self, *option):
        pass

    def settimeout(self, seconds):
        pass

    def recv_into(self, buffer):
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    def close(self):
        pass


def test_a_machine_that_is_gone_broke_the_connection_and_is_no_slow_answer():
    with pytest.raises(TransportError, match=r"the connection broke: .*timed out"):
        FrameSocket(Silent(), 5.0).receive(begins_within=300.0)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has these settings")
@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 50),
        ({"period_ms": "1000", "timeout_ms": "500", "failure_threshold": "4"}, 4),
        ({"timeout_ms": "20000"}, 100),
    ],
)
def test_a_silent_machine_breaks_connections_when_ray_gives_it_up(settings, seconds, monkeypatch):
    for name in ("period_ms", "timeout_ms", "failure_threshold"):
        monkeypatch.delenv(f"RAY_health_check_{name}", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(f"RAY_health_check_{name}", value)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connected,
    ):
        FrameSocket(connected, 5.0)
        asked = [
            connected.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert asked[0] + asked[1] * asked[2] == pytest.approx(seconds, abs=1)
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * seconds
