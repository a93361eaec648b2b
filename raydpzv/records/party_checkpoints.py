"""Checkpoints of vertical runs under the virtual clock: taken between two events, and restored.

Each role names its own state (`state` and `restore` of a server, `state` and `go_on` of a client).
Messages save and restore clients, wherever they live. Clients whose updates a ledger holds are
rebuilt from it and are not in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from raydpzv.ledger.entries import COLUMNS, Slice
from raydpzv.methods.roles import Order, VerticalServer
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.sim.executor import Executor
from raydpzv.sim.virtual import Arrival, Delivery, VirtualRun
from raydpzv.wire.messages import Body, LedgerHistory, SaveState

Pasts = Callable[[int, Order | None], tuple[Slice, int]]
"""(client, order) to the client's updates and uploads before that order, from which it is
rebuilt.
"""


class PartyCheckpoints:
    """Takes a run's checkpoints and restores roles from one.

    server: with its ledger, if it keeps one; host: does the clients' work; clients: their number;
    pasts: of clients that are rebuilt from the ledger, None for others.
    """

    def __init__(
        self, server: VerticalServer, host: Executor, clients: int, pasts: Pasts | None
    ) -> None:
        self._server, self._host, self._clients, self._pasts = server, host, clients, pasts

    def take(self, run: VirtualRun) -> Checkpoint:
        """Return the run's state between two events."""
        asked: Sequence[Body] = () if self._pasts else [SaveState()] * self._clients
        state = {
            "run": run.moment(),
            "server": self._server.state(),
            "clients": tell(self._host, asked),
        }
        return Checkpoint(self._server.updates, state)

    def go_on(self, checkpoint: Checkpoint | None) -> dict[str, Any] | None:
        """Restore fresh roles from a checkpoint; return the state that `VirtualRun` resumes
        from.
        """
        if checkpoint is None:
            return None
        state = checkpoint.state
        self._server.restore(state["server"])
        bodies: Iterable[Body] = state["clients"]
        if self._pasts:
            events = [event for _, event in state["run"]["events"]]
            bodies = [
                ledger_history(self._pasts, client, events) for client in range(self._clients)
            ]
        tell(self._host, bodies)
        return cast(dict[str, Any], state["run"])


def tell(host: Executor, bodies: Iterable[Body]) -> list[Body]:
    """Send each client, from 0 on, a message that costs nothing; return the answers."""
    handles = [host.submit(Order(m, body)) for m, body in enumerate(bodies)]
    return [host.result(handle).body for handle in handles]


def ledger_history(pasts: Pasts, client: int, events: Sequence[Any] = ()) -> LedgerHistory:
    """Return a client's history: answers on their way are not applied, uploads on their way are
    made.
    """
    orders = [e.order for e in events if isinstance(e, Delivery) and e.order.client == client]
    made = sum(isinstance(e, Arrival) and e.client == client for e in events)
    history, uploads = pasts(client, orders[0] if orders else None)
    place = np.array([history.first, history.last, uploads + made], np.int64)
    return LedgerHistory(place, *(getattr(history, name) for name in COLUMNS))
