import socket
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from raydpzv.compare import live
from raydpzv.compare.live import serve

PAGE = SimpleNamespace(version="1", page=lambda: "<p>a page")


@contextmanager
def served():
    """Serve a page while the block runs; yield its token and port."""
    stop, known, place = threading.Event(), threading.Event(), []

    def started(url, port):
        place.append((url.rsplit("/", 2)[1], port))
        known.set()

    thread = threading.Thread(target=serve, args=(PAGE, 20_000, started, stop))
    thread.start()
    try:
        assert known.wait(60)
        yield place[0]
    finally:
        stop.set()
        thread.join()


def asked(port, path):
    """Ask for a path, and return the status."""
    with connected(port) as line:
        line.sendall(b"GET " + path + b" HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n" % port)
        return int(received(line).split()[1])


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def received(line):
    """Return all that comes until the other side ends the connection."""
    found = b""
    while part := line.recv(4096):
        found += part
    return found


@pytest.mark.parametrize("path", [b"/\xff\xfe/", b"/\xc3\xa9/version", b"/%ff/", b"/\xff"])
def test_a_path_beyond_ascii_is_not_found(path):
    with served() as (token, port):
        assert asked(port, path) == 404
        assert asked(port, b"/" + token.encode() + b"/") == 200, "control: the page is there"


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
def test_a_connection_that_asks_for_nothing_is_ended(monkeypatch, sent):
    monkeypatch.setattr(live, "_IDLE", 0.2)
    with served() as (_, port), connected(port) as line:
        line.sendall(sent)
        assert received(line) == b""


def test_a_connection_that_sends_a_byte_now_and_then_is_ended(monkeypatch):
    monkeypatch.setattr(live, "_IDLE", 0.5)
    with served() as (_, port), connected(port) as line:
        line.settimeout(0.05)
        while is_open(line):
            line.sendall(b"G")


def is_open(line):
    """Return whether the other side has not ended a connection."""
    try:
        return bool(line.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_connection_beyond_the_most_is_ended_at_once(monkeypatch):
    monkeypatch.setattr(live, "_MOST_CONNECTIONS", 3)
    with served() as (token, port), ExitStack() as lines:
        held = [lines.enter_context(connected(port)) for _ in range(3)]
        with connected(port) as line:
            assert received(line) == b""
        held[0].close()
        path = b"/" + token.encode() + b"/version"
        while True:  # until the server has seen that the first has gone
            try:
                assert asked(port, path) == 200
                break
            except (ConnectionError, IndexError):
                continue
