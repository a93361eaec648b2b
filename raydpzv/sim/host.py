"""Where a client's work happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from raydpzv.methods.roles import Client, Crew, Metrics, Order, Upload, VerticalServer
from raydpzv.methods.split import composed
from raydpzv.wire.messages import Evaluate


class Host(Protocol):
    """Starts clients' work and hands over what comes of it."""

    def perform(self, order: Order) -> Any:
        """Start the work an order asks for; returns a handle at once."""
        ...

    def take(self, handle: Any) -> Upload:
        """Wait for the work behind a handle."""
        ...


class LocalHost:
    """Clients in this process: the work is done when it is asked for."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def perform(self, order: Order) -> Upload:
        """Do the work; the upload is its own handle."""
        return self._clients[order.client].perform(order)

    def take(self, handle: Upload) -> Upload:
        """Return the upload."""
        return handle


class CrewHost:
    """Many clients in this process: orders are gathered until an upload is wanted, and then done together."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._orders: list[Order] = []
        self._done: dict[int, Upload] = {}

    def perform(self, order: Order) -> int:
        """Take the order; the client's number is the handle, since a client has one order at a time."""
        self._orders.append(order)
        return order.client

    def take(self, handle: int) -> Upload:
        """Do the work of all orders taken so far, if this upload is not there yet, and return it."""
        if handle not in self._done:
            self._do(self._orders)
            self._orders = []
        return self._done.pop(handle)

    def settle(self, version: int) -> None:
        """Do the work at models before `version`, which the crew leaves behind when it goes on to that one."""
        self._do([order for order in self._orders if order.round <= version])
        self._orders = [order for order in self._orders if order.round > version]

    def _do(self, orders: Sequence[Order]) -> None:
        self._done |= {upload.client: upload for upload in self._crew.perform(orders)}


def split_score(server: VerticalServer, host: Host, clients: int) -> Callable[[], Metrics]:
    """Return what scores a composed model: every client embeds the held-out rows, the server's head does the rest."""

    def score() -> Metrics:
        handles = [host.perform(Order(m, Evaluate())) for m in range(clients)]
        return composed(server, [host.take(handle) for handle in handles])

    return score
