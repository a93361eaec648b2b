"""The segments of a vertical run under the wall clock: restoring its roles where one starts, and its checkpoints.

Of methods with a ledger the uploads of every update beyond the checkpoint are made and served once more, in the
ledger's order and with the releases on record, so that the server has the bits that it had. Messages under way are
lost, as with a client that is: its upload is made anew, of the same rows, model and directions, and an answer on record
counts as delivered when the segment starts. Others start where the checkpoint is, with the answers under way then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from raydpzv.ledger.entries import Slice
from raydpzv.methods.roles import Order, VerticalServer
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.party_checkpoints import ledger_history, tell
from raydpzv.segments.continuation import RunSegment
from raydpzv.sim.executor import Executor
from raydpzv.sim.interfaces import Activation, Observer
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import SavedClient, UnderWay
from raydpzv.wire.messages import Body, ClientState, Start


class LedgerAhead(Protocol):
    """A server that keeps a ledger, which may hold more than the server has come to."""

    @property
    def uploads(self) -> Mapping[int, int]:
        """Uploads served of each client."""
        ...

    def awaited(self) -> Iterator[int]:
        """Yield whose upload is to be served next, until the server has come to the ledger's end."""
        ...

    def past(self, client: int, before: Order | None = None) -> tuple[Slice, int]:
        """Return what a client is rebuilt from: its updates of the ledger, and its uploads."""
        ...


class WallSegment(RunSegment):
    """One segment of a run: `bring` its roles to where it starts, `record_start`, then `take` its checkpoints.

    server_loop: around a fresh server; ledger: that server, if it keeps one; checkpoint: None for a run from its start.
    """

    def __init__(
        self,
        server_loop: ServerLoop,
        observer: Observer,
        clients: int,
        checkpoint: Checkpoint | None,
        ledger: LedgerAhead | None,
    ) -> None:
        super().__init__(server_loop, observer, checkpoint)
        self._clients, self._server = clients, cast(VerticalServer, server_loop.server)
        self._ledger_server = ledger
        self.orders: list[Order] = []
        """What clients start with: one that waits for others has none."""

    @property
    def needs_clients(self) -> bool:
        """Whether checkpoints hold the clients' states, since no ledger has them."""
        return self._ledger_server is None

    def bring(self, host: Executor) -> None:
        """Restore fresh roles to the start of the segment; host: where the clients' work is done until then."""
        first: Sequence[Order] = ()
        if self._checkpoint:
            self._server.restore(self._checkpoint.state["server"])
            self._restore_loop(lost=True)
        else:
            first = self._loop.start(self._time)
        if self._ledger_server:
            self._serve_again(self._ledger_server, host, first)
            self._served = self._ledger_server.uploads
        elif self._checkpoint:
            tell(host, self._checkpoint.state["clients"])
            self._served = dict(self._run["served"])
            self.orders = list(self._handed_again())
        else:
            self.orders = list(first)
        if self._checkpoint:
            self._loop.counted(self._served)

    def take(self, under_way: UnderWay, saved: Sequence[SavedClient]) -> Checkpoint:
        """Return where the next segment can start; nothing may be served meanwhile.

        saved: every client's state, of methods without a ledger.
        """
        served, orders = (
            under_way.served,
            [found for tray in under_way.trays.values() for found in _ready(tray)],
        )
        if self.needs_clients:
            orders = [found for m, one in enumerate(saved) for found in _pending(m, one, under_way)]
        state = self._moment(under_way.time) | {"served": sorted(served.items()), "orders": orders}
        clients = [_as_served(one.state, served.get(m, 0)) for m, one in enumerate(saved)]
        return Checkpoint(
            self._server.updates, {"run": state, "server": self._server.state(), "clients": clients}
        )

    def _serve_again(self, server: LedgerAhead, host: Executor, first: Sequence[Order]) -> None:
        """Serve what the ledger has beyond the checkpoint, in its order; what is released then is on record."""
        if self._checkpoint:
            tell(host, [ledger_history(server.past, client) for client in range(self._clients)])
        known, now = self._loop.updates, self._time
        for order, _ in self._run.get("orders", ()):  # which were to be sent, and count as delivered
            if order.body.wire_bytes:
                self._loop.sent(order, now, now, order.body.wire_bytes)
        begins = [Order(m, Start(), known) for m in range(self._clients)]
        orders = {order.client: order for order in first or begins}
        for client in server.awaited():
            order = orders[client]
            if order.round > known:
                self._loop.sent(order, now, now, order.body.wire_bytes)
            upload = host.result(host.submit(order))
            how, size = Activation(now, now, False, now), upload.body.wire_bytes
            for answer in self._loop.serve(upload, how, now, lambda: now, size):
                orders[client] = answer
            self._recovered += 1
        self._loop.close()
        self.orders = [orders[m] for m in range(self._clients)]

    def _handed_again(self) -> Iterator[Order]:
        for order, again in self._run["orders"]:
            if again:
                self._loop.resent(order)
            yield order


def _pending(client: int, saved: SavedClient, under_way: UnderWay) -> Iterator[tuple[Order, bool]]:
    """Yield the orders that a client starts the next segment with, and whether they are sent a second time.

    One that has applied its last answer gets an order to continue; but what names its first work is sent again. One
    whose upload waits at the server for others gets its order when these have come.
    """
    yield from _ready(under_way.trays[client])
    if handed := under_way.handed.get(client):
        applied = handed.round <= saved.applied and under_way.served.get(client, 0)
        yield (Order(client, Start(), handed.round), False) if applied else (_lean(handed), True)


def _ready(tray: Sequence[Order]) -> Iterator[tuple[Order, bool]]:
    """Yield orders that were not sent yet, which so are sent once."""
    for order in tray:
        yield _lean(order), False


def _lean(order: Order) -> Order:
    """Return an order without what was put on record when it was made."""
    return order._replace(releases=(), cache=None)


def _as_served(state: Body, served: int) -> ClientState:
    """Return a client's state without the upload that it has made and that was not served: it makes it again."""
    assert isinstance(state, ClientState)
    counts = np.concatenate([[served], state.counts[1:]]).astype(np.int64)
    return ClientState(counts, state.vectors)
