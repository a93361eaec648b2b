"""How the server's orders reach client actors under the virtual clock: as calls of Ray, or over the lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from actors.remote import get
from actors.serialization import pack_order, unpack_upload
from actors.transport import requests
from actors.transport.connections import Connections
from actors.transport.orders import Sent, ordered
from actors.transport.server import TransportServer
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.wall import Answer


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
    """Orders over one line to each actor."""

    def __init__(self, lane: TransportServer, actors: Sequence[Any], timeout: float) -> None:
        self._lines = Connections(lane, actors, timeout, "client actor")

    def send(self, actor: int, order: Order) -> Sent:
        """Send an order; where the actor is lost, waiting for the upload will tell."""
        return self._lines.send(actor, ordered(order), requests.answered(Answer(order, False)))

    def upload(self, actor: int, handle: Sent, client: int) -> Upload:
        """Wait for a client's upload. TransportError: the line broke, but the actor is not lost."""
        upload: Upload = self._lines.result(actor, handle)
        return upload

    def replace(self, actor: int, new: Any) -> None:
        """Send to a new actor, over a line of its own."""
        self._lines.replace(actor, new)

    def finish(self) -> None:
        """Let the actors end their calls."""
        self._lines.finish()
