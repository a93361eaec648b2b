"""Where a client's work happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import process_time
from typing import Any, Protocol

from raydpzv.methods.roles import Client, ClientGroup, Metrics, Order, Upload, VerticalServer
from raydpzv.methods.vertical.base import composed
from raydpzv.wire.messages import Evaluate


class Executor(Protocol):
    """Starts clients' work and hands over what comes of it."""

    def submit(self, order: Order) -> Any:
        """Start the work an order asks for; returns a handle at once."""
        ...

    def result(self, handle: Any) -> Upload:
        """Wait for the work behind a handle."""
        ...


class LocalExecutor:
    """Clients in this process: the work is done when it is asked for."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def submit(self, order: Order) -> Upload:
        return self._clients[order.client].process(order)

    def result(self, handle: Upload) -> Upload:
        return handle


class GroupExecutor:
    """Many clients in this process: orders are gathered until an upload is wanted, and then done together.

    measured: whether uploads say what CPU time they took.
    """

    def __init__(self, client_group: ClientGroup, *, measured: bool = False) -> None:
        self._process = partial(processed, client_group) if measured else client_group.process
        self._orders: list[Order] = []
        self._done: dict[int, Upload] = {}

    def submit(self, order: Order) -> int:
        """Take the order; the client's number is the handle, since a client has one order at a time."""
        self._orders.append(order)
        return order.client

    def result(self, handle: int) -> Upload:
        """Do the work of all orders taken so far, if this upload is not there yet, and return it."""
        if handle not in self._done:
            self._do(self._orders)
            self._orders = []
        return self._done.pop(handle)

    def run_until(self, version: int) -> None:
        """Do the work at models before `version`, which the client_group leaves behind when it goes to that one."""
        self._do([order for order in self._orders if order.round <= version])
        self._orders = [order for order in self._orders if order.round > version]

    def _do(self, orders: Sequence[Order]) -> None:
        self._done |= {upload.client: upload for upload in self._process(orders)}


def processed(client_group: ClientGroup, orders: Sequence[Order]) -> list[Upload]:
    """Return the uploads of a group, each with an equal share of the CPU time that all took."""
    begun = process_time()
    uploads = client_group.process(orders)
    share = (process_time() - begun) / max(len(uploads), 1)
    return [upload._replace(cpu=share) for upload in uploads]


def split_score(server: VerticalServer, host: Executor, clients: int) -> Callable[[], Metrics]:
    """Return what scores a composed model: every client embeds the held-out rows, the server's head does the rest."""

    def score() -> Metrics:
        handles = [host.submit(Order(m, Evaluate())) for m in range(clients)]
        return composed(server, [host.result(handle) for handle in handles])

    return score
