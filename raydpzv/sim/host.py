"""Where a client's work happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from raydpzv.methods.roles import Client, Order, Upload


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
