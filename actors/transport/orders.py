"""Orders to an actor of clients over one line, and the uploads that come back in the order of the orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from actors.transport import requests
from actors.transport.connection import Connection
from raydpzv.errors import Stalled, TransportError
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.wall import Answer

LONGEST_WAIT = 1e6
"""Seconds in which the server must take an upload: under the virtual clock it may want it long after it was made."""


class Sent:
    """What a peer was told to do, and what came of it: a result, or what is raised in its place.

    what: the result in words; most: bytes of the frame that brings it; read: returns the result, or what the peer
    raised. Raises TransportError where that is not what was asked for.
    """

    def __init__(self, what: str, most: int, read: Callable[[memoryview], Any]) -> None:
        self.what, self.most, self.read = what, most, read
        self.outcome: Any = None


def ordered(order: Order) -> Sent:
    """Return what is known of an order before its upload is there."""

    def read(frame: memoryview) -> Upload | BaseException:
        outcome = requests.read_done(frame)
        if isinstance(outcome, Upload) and outcome.client != order.client:
            raise TransportError(
                f"client {order.client} was to upload, got an upload of client {outcome.client}"
            )
        return outcome

    return Sent(f"the upload of client {order.client}", requests.most_bytes([order.upload_bytes]), read)


class OrderSession:
    """The server's end. timeout: seconds that a result may be waited for.

    Nothing is received before it is wanted, or the actor, at sending it, would take no order.
    """

    def __init__(self, line: Connection, timeout: float) -> None:
        self._line, self._timeout = line, timeout
        self._due: deque[Sent] = deque()

    def send(self, sent: Sent, frame: Sequence[bytes]) -> Sent:
        """Send an order's frame; where the line is broken, receiving will tell."""
        self._due.append(sent)
        with suppress(TransportError):
            self._line.send(*frame, meanwhile=self.receive)
        return sent

    def receive(self) -> None:
        """Wait for what comes of the first order on its way. Raises TransportError, Stalled."""
        sent = self._due[0]
        try:
            frame = self._line.receive(sent.most, begins_within=self._timeout)
        except Stalled:
            raise Stalled(
                f"waited {self._timeout:g} s for {sent.what}; raise resources.timeout if the work is that long"
            ) from None
        sent.outcome = sent.read(frame)
        self._due.popleft()

    def finish(self) -> None:
        """Say that no order follows. Raises TransportError."""
        self._line.send(*requests.answered(Answer(None, True)))

    def close(self) -> None:
        """Close the line."""
        self._line.close()


def serve_orders(line: Connection, process: Callable[[Order], Upload]) -> None:
    """Carry out the server's orders one by one until none follows. Raises TransportError if the connection ends early.

    What a client raises takes the place of its upload, and the next order is done.
    """
    while (order := requests.read_answer(line.receive()).order) is not None:
        try:
            frame = requests.done(process(order))
        except Exception as error:
            frame = requests.failed(error)
        line.send(*frame)
