"""Clients' work on actors, and a client's way to the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from actors.remote import get
from actors.serialization import pack_upload, unpack_order
from actors.transport import requests
from actors.transport.connection import Connection, TransportAddress, dial
from actors.vertical.dispatcher import Dispatcher
from raydpzv.errors import Stalled
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer, ServerConnection


class RayExecutor:
    """Starts work on the actor that holds the client; a handle is what the dispatcher gave and the client's number."""

    def __init__(self, dispatcher: Dispatcher, held: Sequence[Sequence[int]]) -> None:
        self._dispatcher, self._holder = dispatcher, holders(held)

    def submit(self, order: Order) -> tuple[int, Any]:
        """Send the order; returns at once."""
        return order.client, self._dispatcher.send(self._holder[order.client], order)

    def result(self, handle: tuple[int, Any]) -> Upload:
        """Wait for the upload; Stalled past the time limit."""
        client, sent = handle
        return self._dispatcher.upload(self._holder[client], sent, client)


def holders(held: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return for every client the number of the actor that holds it; held: the clients of each actor."""
    return {client: a for a, clients in enumerate(held) for client in clients}


@contextmanager
def connection(
    server: Any, timeout: float, lane: TransportAddress | None, *, warm_up: bool = False
) -> Iterator[ServerConnection]:
    """Clients' way to the server under the wall clock: lines to where it listens, or (None) calls of its actor."""
    if lane is None:
        yield RayConnection(server, timeout, warm_up=warm_up)
        return
    lines = ClientConnection(lane, timeout, warm_up=warm_up)
    try:
        yield lines
    finally:
        lines.close()


class RayConnection:
    """A client's way to the server actor under the wall clock; warm_up: to its throw-away server."""

    def __init__(self, server: Any, timeout: float, *, warm_up: bool = False) -> None:
        self._server, self._timeout, self._warm_up = server, timeout, warm_up

    def first(self, client: int) -> Answer:
        """Return the client's first order."""
        return self._answer(self._server.first.remote(client, self._warm_up), client)

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        """Hand in an upload."""
        details = (how.due, how.woke, how.late, how.sent)
        reference = self._server.exchange.remote(pack_upload(upload), details, applied, self._warm_up)
        return self._answer(reference, upload.client)

    def wait(self, client: int, seconds: float) -> Answer:
        """Wait for an order that was not ready yet."""
        return self._answer(self._server.wait.remote(client, seconds, self._warm_up), client)

    def finish(self, client: int, applied: float) -> None:
        """Say when the last answer was applied."""
        reference = self._server.finish.remote(client, applied, self._warm_up)
        get(reference, self._timeout, f"the farewell of client {client}")

    def _answer(self, reference: Any, client: int) -> Answer:
        order, over = get(reference, self._timeout, f"the server's answer to client {client}")
        return Answer(unpack_order(order) if order else None, over)


class ClientConnection:
    """A `raydpzv.sim.wall.ServerConnection` over sockets, for clients that live in threads of one process.

    warm_up: to the server's throw-away server. Raises TransportError if a connection breaks, Stalled if it takes
    longer than `timeout`, and whatever the server raises.
    """

    def __init__(self, address: TransportAddress, timeout: float, *, warm_up: bool = False) -> None:
        self._address, self._timeout, self._warm_up = address, timeout, warm_up
        self._lines: dict[int, Connection] = {}

    def first(self, client: int) -> Answer:
        """Open the client's line; return its first order."""
        line = self._lines[client] = dial(self._address, self._timeout)
        line.send(*requests.hello(client, self._warm_up))
        return self._ask(client, *requests.plain(requests.FIRST))

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        """Hand in an upload."""
        return self._ask(upload.client, *requests.exchange(upload, how, applied))

    def wait(self, client: int, seconds: float) -> Answer:
        """Wait for an order that was not ready yet."""
        return self._ask(client, *requests.plain(requests.WAIT, seconds))

    def finish(self, client: int, applied: float) -> None:
        """Say when the last answer was applied."""
        self._ask(client, *requests.plain(requests.FINISH, applied))

    def close(self) -> None:
        """Close all lines; every client has left."""
        for line in self._lines.values():
            line.close()

    def _ask(self, client: int, *frame: bytes) -> Answer:
        line = self._lines[client]
        line.send(*frame)
        try:
            answer = line.receive(begins_within=self._timeout)
        except Stalled:
            raise Stalled(
                f"waited {self._timeout:g} s for the server's answer to client {client}; raise resources.timeout "
                "if the work is that long"
            ) from None
        return requests.read_answer(answer)
