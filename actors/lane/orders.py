"""Orders to an actor of clients over one line, and the uploads that come back in the order of the orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from actors.lane import requests
from actors.lane.line import LaneSocket
from raydpzv.errors import LaneError, Stalled
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.wall import Answer

PATIENCE = 1e6
"""Seconds in which the server must take an upload: under the virtual clock it may want it long after it was made."""


class Sent:
    """An order on its way, and what came of it: an upload, or what is raised in its place."""

    def __init__(self, order: Order, outcome: Upload | BaseException | None = None) -> None:
        self.order, self.outcome = order, outcome


class OrderLine:
    """The server's end. timeout: seconds that an upload may be waited for.

    Nothing is received before it is wanted, or the actor, at sending it, would take no order.
    """

    def __init__(self, line: LaneSocket, timeout: float) -> None:
        self._line, self._timeout = line, timeout
        self._due: deque[Sent] = deque()

    def send(self, order: Order) -> Sent:
        """Send an order; where the line is broken, receiving will tell."""
        sent = Sent(order)
        self._due.append(sent)
        with suppress(LaneError):
            self._line.send(*requests.answered(Answer(order, False)), meanwhile=self.receive)
        return sent

    def receive(self) -> None:
        """Wait for what comes of the first order on its way. Raises LaneError, Stalled."""
        order = self._due[0].order
        most = requests.most_bytes([order.upload_bytes])
        try:
            frame = self._line.receive(most, begins_within=self._timeout)
        except Stalled:
            raise Stalled(
                f"waited {self._timeout:g} s for the upload of client {order.client}; raise resources.timeout "
                "if the work is that long"
            ) from None
        outcome = requests.read_done(frame)
        if isinstance(outcome, Upload) and outcome.client != order.client:
            raise LaneError(f"client {order.client} was to upload, got an upload of client {outcome.client}")
        self._due.popleft().outcome = outcome

    def finish(self) -> None:
        """Say that no order follows. Raises LaneError."""
        self._line.send(*requests.answered(Answer(None, True)))

    def close(self) -> None:
        """Close the line."""
        self._line.close()


def serve_orders(line: LaneSocket, process: Callable[[Order], Upload]) -> None:
    """Do what the server orders, one order at a time, until no order follows. Raises LaneError if the line ends before.

    What a client raises takes the place of its upload, and the next order is done.
    """
    while (order := requests.read_answer(line.receive()).order) is not None:
        try:
            frame = requests.done(process(order))
        except Exception as error:
            frame = requests.failed(error)
        line.send(*frame)
