"""Clients' work on actors; a lost actor is made again by the driver, and its work is done again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from actors.remote import lost
from actors.transport.peers import Peers, Task, order_task
from raydpzv.errors import Stalled
from raydpzv.experiment.release_ledger import Past
from raydpzv.methods.roles import Order, Upload
from raydpzv.wire.messages import Evaluate


def holders(held: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return for every client the number of the actor that holds it; held: the clients of each
    actor.
    """
    return {client: a for a, clients in enumerate(held) for client in clients}


class ReplacementQueue:
    """The server's side of replacing: what waits for a new actor, until the driver has one."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._changed = threading.Condition()
        self._wanted: dict[int, list[Past]] = {}
        self._found: dict[int, Any | None] = {}

    def ask(self, actor: int, pasts: list[Past]) -> Any | None:
        """Wait for a new actor in the place of a lost one; None if there is to be none. Raises
        Stalled.
        """
        with self._changed:
            self._wanted[actor] = pasts
            if not self._changed.wait_for(lambda: actor in self._found, self._timeout):
                raise Stalled(
                    f"waited {self._timeout:g} s for client actor {actor} to be recreated"
                )
            return self._found.pop(actor)

    def wanted(self) -> dict[int, list[Past]]:
        """Return the lost actors that were not asked about yet, with what their clients are rebuilt
        from.
        """
        with self._changed:
            wanted, self._wanted = self._wanted, {}
            return wanted

    def bring(self, actor: int, new: Any | None) -> None:
        """Hand over the new actor."""
        with self._changed:
            self._found[actor] = new
            self._changed.notify_all()


class _Work:
    def __init__(self, order: Order, task: Task) -> None:
        self.order, self.task = order, task


class ActorExecutor:
    """An `Executor` that sends work to the actor that holds the client; held: the clients of each
    actor.

    With records, the server's actor, clients whose actor is lost are rebuilt from the ledger and do
    their last order again. A rebuilt client is what it was before that order, so what it then sends
    has the same bits, and so has the run.
    """

    def __init__(
        self,
        peers: Peers,
        held: Sequence[Sequence[int]],
        records: Any | None = None,
        replacements: ReplacementQueue | None = None,
    ) -> None:
        self._peers, self._held, self._holder = peers, held, holders(held)
        self._records, self._replacements = records, replacements
        self._last: dict[int, _Work] = {}
        self._looks: dict[int, _Work] = {}

    def submit(self, order: Order) -> _Work:
        work = _Work(order, self._send(order))
        if self._records:  # else a lost actor is not made again
            (self._looks if isinstance(order.body, Evaluate) else self._last)[order.client] = work
        return work

    def result(self, handle: _Work) -> Upload:
        """Wait for the upload; Stalled past the time limit, Ray's error if an actor is lost and not
        replaced.
        """
        client = handle.order.client
        while True:
            try:
                upload: Upload = self._peers.result(self._holder[client], handle.task)
            except Exception as error:
                if not lost(error):
                    raise
                self._rebuild(self._holder[client], error)
            else:
                if self._looks.get(client) is handle:
                    del self._looks[client]
                return upload

    def _send(self, order: Order) -> Task:
        return self._peers.send(self._holder[order.client], order_task(order))

    def _rebuild(self, actor: int, error: Exception) -> None:
        """Make a new actor and restore it to where the lost one would be: last orders, then looks
        at the models.
        """
        if self._records is None or self._replacements is None:
            raise error
        pasts = {m: self._past(m, self._records) for m in self._held[actor]}
        new = self._replacements.ask(actor, list(pasts.values()))
        if new is None:
            raise error
        self._peers.replace(actor, new)
        self._records.rebuilt(actor, pasts)
        for works in (self._last, self._looks):
            for client in pasts.keys() & works.keys():
                works[client].task = self._send(works[client].order)

    def _past(self, client: int, records: Any) -> Past:
        last = self._last.get(client)
        return records.past(client, last.order if last else Order(client, Evaluate()))
