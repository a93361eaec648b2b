"""Tasks that the server orders from actors of clients on sockets; results come in the tasks'
order.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from actors.remote import get, lost, stalled
from actors.transport import frames
from actors.transport.server import TransportServer
from actors.transport.sockets import FrameSocket, TransportAddress, dial
from raydpzv.errors import Stalled, TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.wall import Answer

LONGEST_WAIT = 1e6
"""Seconds in which the server must read an upload: under the virtual clock it may want it long
after it was made.
"""


class Task:
    """A task of one actor. Its outcome is the result, or the exception that was raised in its
    place.

    awaited: the result in words; most: bytes of its frame; read: decodes that frame into the
    result, or into the exception that the actor raised, and raises TransportError for any other
    frame; frame: the task itself, until sent.
    """

    def __init__(
        self, awaited: str, most: int, read: Callable[[memoryview], Any], frame: Sequence[bytes]
    ) -> None:
        self.awaited, self.most, self.read, self.frame = awaited, most, read, frame
        self.outcome: Any = None

    def result(self) -> Any:
        """Return the result or raise the exception."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def order_task(order: Order) -> Task:
    """Return the task of one order, whose result is its upload."""

    def read(frame: memoryview) -> Upload | BaseException:
        outcome = frames.read_done(frame)
        if isinstance(outcome, Upload) and outcome.client != order.client:
            raise TransportError(
                f"client {order.client} was to upload, got an upload of client {outcome.client}"
            )
        return outcome

    most = frames.most_bytes([order.upload_bytes])
    return Task(
        f"the upload of client {order.client}", most, read, frames.answered(Answer(order, False))
    )


class Peers:
    """The actors on which a server orders, by number; each does its tasks one after the other. They
    are reached on sockets, each opened when it is first used. party: an actor's name before its
    number.

    An actor serves its socket inside a call of Ray. When a socket breaks, that call shows whether
    the actor was lost.
    """

    def __init__(
        self, server: TransportServer, actors: Sequence[Any], timeout: float, party: str
    ) -> None:
        self._server, self._actors, self._timeout, self._party = (
            server,
            list(actors),
            timeout,
            party,
        )
        self._queues: dict[int, TaskQueue] = {}
        self._calls: dict[int, Any] = {}
        self._numbers = itertools.count()

    def send(self, actor: int, task: Task) -> Task:
        """Send a task; if the actor is lost, waiting for the result raises."""
        try:
            return self._queue(actor).send(task)
        except Exception as error:
            if not lost(error):
                raise
            task.outcome = error
            return task

    def result(self, actor: int, task: Task) -> Any:
        """Wait for a task's result. Raises Stalled past the time limit, Ray's error if the actor is
        lost, TransportError if the connection broke but the actor is not lost.
        """
        while task.outcome is None:
            try:
                self._queues[actor].receive()
            except TransportError:
                get(
                    self._calls[actor],
                    self._timeout,
                    f"{self._party} {actor}, whose connection broke",
                )
                raise
        return task.result()

    def replace(self, actor: int, new: Any) -> None:
        """Send to a new actor in place of a lost one."""
        self._actors[actor] = new
        if queue := self._queues.pop(actor, None):
            queue.close()

    def finish(self) -> None:
        """Let the actors end their calls. The next call finds an actor that is lost by now."""
        for queue in self._queues.values():
            with suppress(TransportError):
                queue.finish()

    def _queue(self, actor: int) -> TaskQueue:
        if actor not in self._queues:
            number, new = next(self._numbers), self._actors[actor]
            joining = new.join.remote(self._server.address, number)
            get(joining, self._timeout, f"{self._party} {actor} to open its connection")
            self._calls[actor] = new.serve_orders.remote()
            self._queues[actor] = TaskQueue(self._server.joined(number), self._timeout)
        return self._queues[actor]


class TaskQueue:
    """The server's end of one socket. timeout: seconds to wait for a result.

    It receives nothing before a result is wanted: the actor reads no task while it sends a result.
    """

    def __init__(self, connected: FrameSocket, timeout: float) -> None:
        self._socket, self._timeout = connected, timeout
        self._due: deque[Task] = deque()

    def send(self, task: Task) -> Task:
        """Send a task; if the socket is broken, receiving raises."""
        self._due.append(task)
        with suppress(TransportError):
            self._socket.send(*task.frame, meanwhile=self.receive)
        task.frame = ()
        return task

    def receive(self) -> None:
        """Wait for the outcome of the first task that has none. Raises TransportError, Stalled."""
        task = self._due[0]
        try:
            frame = self._socket.receive(task.most, begins_within=self._timeout)
        except Stalled:
            raise stalled(self._timeout, task.awaited) from None
        task.outcome = task.read(frame)
        self._due.popleft()

    def finish(self) -> None:
        """Send the actor the end of tasks. Raises TransportError."""
        self._socket.send(*frames.answered(Answer(None, True)))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class TaskPort:
    """The calls of an actor by which the server orders tasks on a socket."""

    def __init__(self) -> None:
        self._socket: FrameSocket | None = None

    def join(self, address: TransportAddress, number: int) -> None:
        """Open a socket on which the server orders; number: of this connection at the server."""
        self._socket = dial(address, LONGEST_WAIT)
        self._socket.send(*frames.request(frames.JOIN, number))

    def serve_orders(self) -> None:
        """Do the server's tasks on that socket one by one until no task follows. Raises
        TransportError if it breaks.
        """
        assert self._socket is not None
        try:
            while (task := self._task(self._socket.receive())) is not None:
                self._socket.send(*_done(task))
        finally:
            self._socket.close()

    def _task(self, frame: memoryview) -> Callable[[], Sequence[bytes]] | None:
        """Decode a task into a function that does it and returns the result's frame; None: no task
        follows.
        """
        raise NotImplementedError


def _done(task: Callable[[], Sequence[bytes]]) -> Sequence[bytes]:
    """Do a task; an exception takes the place of its result, and the next task can be done."""
    try:
        return task()
    except Exception as error:
        return frames.failed(error)


def open_transport(
    server: Any, actors: Sequence[Any], timeout: float, peers: int
) -> TransportAddress:
    """Let the server listen for `peers` connections, beyond its machine only if an actor is on
    another machine.
    """
    nodes = get([actor.node.remote() for actor in (server, *actors)], timeout, "the actors")
    host = (
        "" if len(set(nodes)) == 1 else get(server.host.remote(), timeout, "the server's address")
    )
    return cast(
        TransportAddress,
        get(
            server.open_transport.remote(host, secrets.token_bytes(32), peers),
            timeout,
            "the server to listen",
        ),
    )
