"""Clients' work on actors."""

from __future__ import annotations

from collections.abc import Sequence

from actors.transport.peers import Peers, Task, order_task
from raydpzv.methods.roles import Order, Upload


class RayExecutor:
    """An `Executor` that sends work to the actor that holds the client; held: the clients of each actor."""

    def __init__(self, peers: Peers, held: Sequence[Sequence[int]]) -> None:
        self._peers, self._holder = peers, holders(held)

    def submit(self, order: Order) -> tuple[int, Task]:
        """Send the order; return the client and its task at once."""
        return order.client, self._peers.send(self._holder[order.client], order_task(order))

    def result(self, handle: tuple[int, Task]) -> Upload:
        client, task = handle
        upload: Upload = self._peers.result(self._holder[client], task)
        return upload


def holders(held: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return for every client the number of the actor that holds it; held: the clients of each actor."""
    return {client: a for a, clients in enumerate(held) for client in clients}
