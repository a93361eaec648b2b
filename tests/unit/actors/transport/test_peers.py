import socket
import threading

import numpy as np
import pytest

from actors.transport import frames, work
from actors.transport.peers import Task, TaskQueue, order_task
from actors.transport.sockets import MOST, FrameSocket
from raydpzv.errors import Diverged, RunError, Stalled, TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.messages import Embeddings, Gradient
from tests.helpers.transport_service import Handle, Lost, TaskActor, ordering

LARGE = 100_000
"""Rows of a message that does not fit into the system's buffers for a peer that receives
nothing.
"""


def order(client, rows=1, promised=None):
    return Order(client, Gradient(np.full((rows, 4), client, np.float32)), 7, upload_bytes=promised)


def upload(order, rows=1):
    """Embeddings with the sum of the order's body."""
    values = np.full((rows, 4), order.body.values.sum(), np.float32)
    return Upload(order.client, order.round, Embeddings(np.arange(rows, dtype=np.int32), values))


def actor(process=upload, killed_at=0):
    """The handle of an actor that does orders by a function."""

    def do(frame):
        found = frames.read_answer(frame).order
        return found and (lambda: frames.done(process(found)))

    return Handle(TaskActor(do, killed_at))


@pytest.fixture
def peers(monkeypatch):
    with ordering(monkeypatch) as made:
        yield made


@pytest.fixture
def socket_peers(monkeypatch):
    with ordering(monkeypatch, 0.5) as made:
        yield made


def test_every_order_gets_its_own_upload_in_any_order(peers):
    to = peers(actor(), actor())
    sent = [(n % 2, to.send(n % 2, order_task(order(n, rows=n + 1)))) for n in range(5)]
    for n in (3, 0, 4, 1, 2):
        found = to.result(*sent[n])
        assert (found.client, found.step) == (n, 7)
        assert found.body.values.tolist() == [[4.0 * n * (n + 1)] * 4]
    to.finish()


def test_an_error_takes_the_place_of_its_upload_alone(peers):
    failures = {1: Diverged("not finite"), 2: ZeroDivisionError("by zero")}

    def process(order):
        if order.client in failures:
            raise failures[order.client]
        return upload(order)

    to = peers(actor(process))
    sent = [to.send(0, order_task(order(client))) for client in range(4)]
    assert to.result(0, sent[3]).client == 3
    with pytest.raises(Diverged, match="not finite"):
        to.result(0, sent[1])
    with pytest.raises(RunError, match="an actor failed: ZeroDivisionError: by zero"):
        to.result(0, sent[2])


def test_an_upload_of_another_client_is_refused(peers):
    to = peers(actor(lambda o: upload(order(1))))
    task = to.send(0, order_task(order(0)))
    with pytest.raises(TransportError, match="client 0 was to upload, got an upload of client 1"):
        to.result(0, task)


def test_a_lost_actor_is_reported_and_its_replacement_continues(peers):
    to = peers(actor(), actor(killed_at=2))
    sent = [to.send(client, order_task(order(client))) for _ in range(2) for client in (0, 1)]
    assert to.result(1, sent[1]).client == 1
    for task in (sent[3], to.send(1, order_task(order(1)))):
        with pytest.raises(Lost):
            to.result(1, task)
    to.replace(1, actor(killed_at=-1))
    task = to.send(1, order_task(order(1)))
    with pytest.raises(Lost):
        to.result(1, task)
    to.replace(1, actor())
    assert to.result(1, to.send(1, order_task(order(1)))).client == 1
    assert to.result(0, sent[2]).client == 0
    to.finish()


def test_hosts_do_batches_and_probes_in_the_order_in_which_they_were_sent(peers):
    done = []

    def do(frame):
        asked = work.read_task(frame)
        if asked is None:
            return None
        if asked.probe:
            return lambda: work.probed(asked.probe, (float(len(done)), asked.version / 7))
        done.append([order.client for order in asked.orders])
        return lambda: work.uploads([upload(order) for order in asked.orders])

    def batch(*clients):
        orders = [order(client) for client in clients]
        frame = work.work(orders, lean=False)
        return Task("uploads", work.most_bytes(orders), work.read_uploads, frame)

    to = peers(Handle(TaskActor(do)))
    sent = [to.send(0, batch(1, 3)), to.send(0, batch(5))]
    read, frame = lambda data: work.read_probed("drift", data), work.probe("drift", 3)
    assert to.result(0, to.send(0, Task("a probe", MOST, read, frame))) == (2.0, 3 / 7)
    assert [[u.client for u in to.result(0, task)] for task in sent] == [[1, 3], [5]]
    assert done == [[1, 3], [5]]


def test_ends_that_both_send_large_frames_do_not_wait_for_each_other(monkeypatch):
    with ordering(monkeypatch) as made:
        to = made(actor(lambda order: upload(order, LARGE)))
        sent = [to.send(0, order_task(order(client, LARGE))) for client in range(3)]
        assert [to.result(0, task).client for task in sent] == [0, 1, 2]


def test_an_end_that_only_sends_waits_in_vain(socket_peers):
    """Control of the test above."""
    to = socket_peers(actor(lambda order: upload(order, LARGE)))
    to.send(0, order_task(order(0, LARGE)))
    queue = to._queues[0]
    with pytest.raises(TransportError, match="timed out"):
        queue._socket.send(*order_task(order(0, LARGE)).frame)


def test_a_late_upload_is_a_stall_that_names_its_client(socket_peers):
    hold = threading.Event()
    to = socket_peers(actor(lambda order: hold.wait(5) and upload(order)))
    task = to.send(0, order_task(order(3)))
    with pytest.raises(
        Stalled, match=r"waited 0.5 s for the upload of client 3; raise resources.timeout"
    ):
        to.result(0, task)
    hold.set()
    assert to.result(0, task).client == 3


def test_an_upload_far_longer_than_promised_is_not_read(socket_peers):
    to = socket_peers(actor(lambda order: upload(order, LARGE)))
    task = to.send(0, order_task(order(0, promised=20)))
    with pytest.raises(TransportError, match="came where at most"):
        to.result(0, task)


def test_a_socket_that_breaks_is_a_transport_error_if_its_actor_lives(socket_peers):
    handle = actor()
    to = socket_peers(handle)
    assert to.result(0, to.send(0, order_task(order(0)))).client == 0
    handle.actor.cut()
    task = to.send(0, order_task(order(0)))
    with pytest.raises(TransportError):
        to.result(0, task)


def test_a_broken_socket_raises_when_a_result_is_awaited():
    a, b = socket.socketpair()
    queue = TaskQueue(FrameSocket(a, 5.0), 5.0)
    b.close()
    sent = [queue.send(order_task(order(0))), queue.send(order_task(order(1)))]
    assert [task.outcome for task in sent] == [None, None]
    for _ in range(2):
        with pytest.raises(TransportError, match="the connection broke"):
            queue.receive()
    with pytest.raises(TransportError):
        queue.finish()
