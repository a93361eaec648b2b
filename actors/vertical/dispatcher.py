"""How the server's orders reach client actors under the virtual clock: as calls of Ray, or over the lane."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from actors.lane.orders import OrderLine, Sent
from actors.lane.server import LaneServer
from actors.remote import get, lost
from actors.serialization import pack_order, unpack_upload
from raydpzv.errors import LaneError
from raydpzv.methods.roles import Order, Upload


class Dispatcher(Protocol):
    """Orders to the actors of a run, each of which does them one after the other."""

    def send(self, actor: int, order: Order) -> Any:
        """Send an order; returns a handle at once."""
        ...

    def upload(self, actor: int, handle: Any, client: int) -> Upload:
        """Wait for a client's upload; Stalled past the time limit, Ray's error if the actor is lost."""
        ...

    def replace(self, actor: int, new: Any) -> None:
        """Send to a new actor in the place of a lost one."""
        ...

    def finish(self) -> None:
        """Say that no order follows; every upload was waited for."""
        ...


class CallDispatcher:
    """Orders as calls; a handle is an object reference."""

    def __init__(self, actors: Sequence[Any], timeout: float) -> None:
        self._actors, self._timeout = list(actors), timeout

    def send(self, actor: int, order: Order) -> Any:
        """Call the actor; returns at once."""
        return self._actors[actor].process.remote(pack_order(order))

    def upload(self, actor: int, handle: Any, client: int) -> Upload:
        """Wait for what a call returns."""
        return unpack_upload(get(handle, self._timeout, f"the upload of client {client}"))

    def replace(self, actor: int, new: Any) -> None:
        """Call a new actor."""
        self._actors[actor] = new

    def finish(self) -> None:
        """Say nothing: calls come to an end by themselves."""


class LaneDispatcher:
    """Orders over one line to each actor, opened when the first is sent.

    An actor serves its line in a call: where a line breaks, that tells whether the actor was lost.
    """

    def __init__(self, lane: LaneServer, actors: Sequence[Any], timeout: float) -> None:
        self._lane, self._actors, self._timeout = lane, list(actors), timeout
        self._lines: dict[int, OrderLine] = {}
        self._calls: dict[int, Any] = {}
        self._numbers = itertools.count()

    def send(self, actor: int, order: Order) -> Sent:
        """Send an order; where the actor is lost, waiting for the upload will tell."""
        try:
            return self._line(actor).send(order)
        except Exception as error:
            if not lost(error):
                raise
            return Sent(order, error)

    def upload(self, actor: int, handle: Sent, client: int) -> Upload:
        """Wait for a client's upload. LaneError: the line broke, but the actor is not lost."""
        while handle.outcome is None:
            try:
                self._lines[actor].receive()
            except LaneError:
                get(self._calls[actor], self._timeout, f"client actor {actor}, whose line broke")
                raise
        if isinstance(handle.outcome, BaseException):
            raise handle.outcome
        return handle.outcome

    def replace(self, actor: int, new: Any) -> None:
        """Send to a new actor, over a line of its own."""
        self._actors[actor] = new
        if line := self._lines.pop(actor, None):
            line.close()

    def finish(self) -> None:
        """Let the actors end their calls; one that is lost by now is found when it is asked for its parameters."""
        for line in self._lines.values():
            with suppress(LaneError):
                line.finish()

    def _line(self, actor: int) -> OrderLine:
        if actor not in self._lines:
            number, new = next(self._numbers), self._actors[actor]
            joining = new.join.remote(self._lane.address, number)
            get(joining, self._timeout, f"client actor {actor} to open its line")
            self._calls[actor] = new.serve_orders.remote()
            self._lines[actor] = OrderLine(self._lane.joined(number), self._timeout)
        return self._lines[actor]
