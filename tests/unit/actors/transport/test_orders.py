"""Orders and uploads on one line: their order, their size, what is raised, and ends that are at sending both."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import numpy as np
import pytest

from actors.transport import requests
from actors.transport.connection import Connection
from actors.transport.orders import LONGEST_WAIT, OrderSession, ordered, serve_orders
from raydpzv.errors import Diverged, RunError, Stalled, TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.wall import Answer
from raydpzv.wire.messages import Embeddings, Gradient

LARGE = 100_000
"""Rows of a message that does not fit into what the system keeps for a peer that receives nothing."""


def order(client, rows=1, promised=None):
    return Order(client, Gradient(np.full((rows, 4), client, np.float32)), 7, upload_bytes=promised)


def upload(order, rows=1):
    """Embeddings that tell what the order's body held."""
    values = np.full((rows, 4), order.body.values.sum(), np.float32)
    return Upload(order.client, order.round, Embeddings(np.arange(rows, dtype=np.int32), values))


@pytest.fixture
def actor():
    """The server's end of a line to an actor that does orders by a function, and the actor's thread."""
    threads, lines = [], []

    def make(process, timeout=5.0):
        here, there = socket.socketpair()
        lines.extend([Connection(here, timeout), Connection(there, LONGEST_WAIT)])
        peer = lines[-1]

        def serve():
            with suppress(TransportError):  # the test is over
                serve_orders(peer, process)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return OrderSession(lines[-2], timeout), threads[-1]

    yield make
    for line in lines:
        line.cut()
    for thread in threads:
        thread.join(5)
    for line in lines:
        line.close()


def send(line, order):
    return line.send(ordered(order), requests.answered(Answer(order, False)))


def received(line, sent):
    while sent.outcome is None:
        line.receive()
    return sent.outcome


def test_every_order_gets_its_own_upload_whichever_is_wanted_first(actor):
    line, thread = actor(upload)
    sent = [send(line, order(client, rows=client + 1)) for client in range(5)]
    for n in (3, 0, 4, 1, 2):
        found = received(line, sent[n])
        assert (found.client, found.step) == (n, 7)
        assert found.body.values.tolist() == [[4.0 * n * (n + 1)] * 4]
    line.finish()
    thread.join(5)
    assert not thread.is_alive()


def test_what_a_client_raises_takes_the_place_of_its_upload_alone(actor):
    failures = {1: Diverged("not finite"), 2: ZeroDivisionError("by zero")}

    def process(order):
        if order.client in failures:
            raise failures[order.client]
        return upload(order)

    line, _ = actor(process)
    sent = [send(line, order(client)) for client in range(4)]
    assert received(line, sent[3]).client == 3
    assert isinstance(sent[1].outcome, Diverged)
    assert str(sent[1].outcome) == "not finite"
    assert isinstance(sent[2].outcome, RunError)
    assert str(sent[2].outcome) == "an actor failed: ZeroDivisionError: by zero"


def test_ends_that_both_send_large_frames_do_not_wait_for_one_another(actor):
    line, _ = actor(lambda order: upload(order, LARGE), timeout=30.0)
    sent = [send(line, order(client, LARGE)) for client in range(3)]
    assert [received(line, s).client for s in sent] == [0, 1, 2]


def test_an_end_that_only_sends_is_not_heard(actor):
    """Control of the test above."""
    line, _ = actor(lambda order: upload(order, LARGE), timeout=0.3)
    frame = requests.answered(Answer(order(0, LARGE), False))
    line._line.send(*frame)
    with pytest.raises(TransportError, match="timed out"):
        line._line.send(*frame)


def test_an_upload_that_is_late_is_a_stall_and_says_whose(actor):
    hold = threading.Event()
    line, _ = actor(lambda order: hold.wait(5) and upload(order), timeout=0.1)
    sent = send(line, order(3))
    with pytest.raises(Stalled, match=r"waited 0.1 s for the upload of client 3; raise resources.timeout"):
        line.receive()
    hold.set()
    assert received(line, sent).client == 3


@pytest.mark.parametrize(
    ("process", "match"),
    [
        (lambda order: upload(order, LARGE), "came where at most"),
        (lambda o: upload(order(1)), "client 0 was to upload, got an upload of client 1"),
    ],
    ids=["longer than promised", "of another client"],
)
def test_what_was_not_ordered_is_refused(actor, process, match):
    line, _ = actor(process)
    send(line, order(0, promised=20))
    with pytest.raises(TransportError, match=match):
        line.receive()


def test_a_broken_line_is_told_where_an_upload_is_waited_for():
    a, b = socket.socketpair()
    line = OrderSession(Connection(a, 5.0), 5.0)
    b.close()
    sent = [send(line, order(0)), send(line, order(1))]
    assert [s.outcome for s in sent] == [None, None]
    for _ in range(2):
        with pytest.raises(TransportError, match="the line broke"):
            line.receive()
    with pytest.raises(TransportError):
        line.finish()
