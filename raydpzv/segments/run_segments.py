"""The segments of runs under the wall clock: real time cannot be repeated, so a resumed run starts
a new segment.

The run keeps what was acknowledged: the state at the last checkpoint, and every update that the
ledger has beyond it. Messages under way are lost. The run's clock stops between two segments: the
next one starts where the last one ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from raydpzv.grouping import grouped
from raydpzv.ledger.entries import Slice
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Order, PullServer, ResumableServer, Upload, VerticalServer
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.party_checkpoints import ledger_history, tell
from raydpzv.sim.executor import Executor
from raydpzv.sim.interfaces import Activation, Observer
from raydpzv.sim.pull import wake
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import SavedClient, SegmentStart, UnderWay
from raydpzv.wire.messages import Body, ClientState, Start
from raydpzv.wire.seeds import SeededScalars


class RunSegment:
    """Where a segment starts, and what its checkpoints have in common; checkpoint: None for a run
    from its start.
    """

    def __init__(
        self, server_loop: ServerLoop, observer: Observer, checkpoint: Checkpoint | None
    ) -> None:
        self._loop, self._observer, self._checkpoint = server_loop, observer, checkpoint
        self._run: Mapping[str, Any] = checkpoint.state["run"] if checkpoint else {}
        self._time, self._number = (
            float(self._run.get("time", 0.0)),
            int(self._run.get("leg", 0)) + 1,
        )
        self._served: Mapping[int, int] = {}
        self._origin, self._recovered = math.nan, 0

    @property
    def start(self) -> SegmentStart:
        """Where the segment starts, once roles are there."""
        evaluated = self._checkpoint.round if self._checkpoint else 0
        lost = (
            self._checkpoint is None and self._recovered > 0
        )  # a segment of which the ledger alone is left
        return SegmentStart(self._number + lost, self._time, evaluated, self._served)

    def record_start(self, origin: float) -> None:
        """Record the segment, unless it is the first; origin: of its clock, in real seconds."""
        self._origin = origin
        if (number := self.start.number) == 1:
            return
        # both segments' clocks show the same time where one ended and the other starts
        gap = max(origin - self._run["origin"], 0.0) if self._run else math.nan
        self._observer.emit(
            "leg",
            leg=number,
            round=self._loop.updates,
            time=self._time,
            gap=gap,
            recovered=self._recovered,
        )

    def _restore_loop(self, *, lost: bool) -> None:
        """Restore the server's loop from the checkpoint; lost: messages under way, whose end nobody
        knows.
        """
        self._loop.restore(self._run["status"], self._run["services"], lost=lost)
        self._loop.close()  # nobody knows when the answers under way were applied

    def _moment(self, time: float) -> dict[str, Any]:
        """Return what every checkpoint of a segment keeps, taken at this time of its clock."""
        return {
            "time": max(self._time, time),
            "origin": self._origin,
            "leg": self.start.number,
            "status": self._loop.account(),
            "services": self._loop.services(),
        }


class LedgerAhead(Protocol):
    """A server that keeps a ledger, which may hold more than the server has come to."""

    @property
    def uploads(self) -> Mapping[int, int]:
        """Uploads served of each client."""
        ...

    def awaited(self) -> Iterator[int]:
        """Yield whose upload is to be served next, until the server has come to the ledger's
        end.
        """
        ...

    def past(self, client: int, before: Order | None = None) -> tuple[Slice, int]:
        """Return what a client is rebuilt from: its updates of the ledger, and its uploads."""
        ...


class WallSegment(RunSegment):
    """One segment of a vertical run: `bring` its roles to where it starts, `record_start`, `take`
    its checkpoints.

    Of methods with a ledger the uploads of every update beyond the checkpoint are made and served
    once more, in the ledger's order and with the releases on record, so that the server has the
    bits that it had. Messages under way are
    lost, as with a client that is: its upload is made anew, of the same rows, model and directions,
    and an answer on record counts as delivered when the segment starts. Others start where the
    checkpoint is, with the answers under way then.

    server_loop: around a fresh server; ledger: that server, if it keeps one; checkpoint: None for a
    run from its start.
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
        """Restore fresh roles to the start of the segment; host: where the clients' work is done
        until then.
        """
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
        """Serve what the ledger has beyond the checkpoint, in its order; what is released then is
        on record.
        """
        if self._checkpoint:
            tell(host, [ledger_history(server.past, client) for client in range(self._clients)])
        known, now = self._loop.updates, self._time
        for order, _ in self._run.get(
            "orders", ()
        ):  # which were to be sent, and count as delivered
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
    """Yield the orders that a client starts the next segment with, and whether they are sent a
    second time.

    One that has applied its last answer gets an order to continue; but what names its first work is
    sent again. One whose upload waits at the server for others gets its order when these have come.
    """
    yield from _ready(under_way.trays[client])
    if handed := under_way.handed.get(client):
        applied = handed.round <= saved.applied and under_way.served.get(client, 0)
        yield (Order(client, Start(), handed.round), False) if applied else (_lean(handed), True)


def _ready(tray: Sequence[Order]) -> Iterator[tuple[Order, bool]]:
    """Yield orders that were not sent yet, which so are sent once."""
    return ((_lean(order), False) for order in tray)


def _lean(order: Order) -> Order:
    """Return an order without what was put on record when it was made."""
    return order._replace(releases=(), cache=None)


def _as_served(state: Body, served: int) -> ClientState:
    """Return a client's state without the upload that it has made and that was not served: it makes
    it again.
    """
    assert isinstance(state, ClientState)
    return ClientState(np.concatenate([[served], state.counts[1:]]).astype(np.int64), state.vectors)


class PullSegment(RunSegment):
    """One segment of a run whose clients pull; the server is at the checkpoint, `bring` it to the
    ledger's end.

    Clients are functions of the ledger, so a checkpoint is of the server and its accounts alone,
    and updates beyond it are entered into rows and accounts as the ledger has them: no client makes
    them again. An upload under way is lost; where it released something it counts all the same,
    since an observer has it: one for each client.
    """

    def bring(self, ledger: Ledger, *, accounted: bool) -> None:
        """Restore rows and accounts to the start of the segment, the ledger's end; accounted:
        updates are releases.
        """
        if self._checkpoint:
            self._restore_loop(lost=not self._run["stopped"])
        else:
            self._loop.start(self._time)
        server = cast(PullServer, self._loop.server)
        ahead = list(ledger.since(server.updates).each())
        readers = grouped((int(update.read[0]), int(update.party[0])) for update in ahead)
        for update in ahead:
            for client in readers.get(server.updates, ()):
                if server.reads(client) != server.updates:
                    wake(self._loop, client, self._time)
            if accounted:
                self._loop.released(int(update.party[0]))
            self._enter(update)
            self._recovered += 1

    def take(self, time: float, *, stopped: bool) -> Checkpoint:
        """Return where the next segment can start; nothing is served meanwhile. stopped: nothing
        can be under way.
        """
        server = cast(ResumableServer, self._loop.server)
        state = self._moment(time) | {"stopped": stopped}
        return Checkpoint(server.updates, {"run": state}, server.state())

    def _enter(self, update: Slice) -> None:
        client, seeds_K, now = (
            int(update.party[0]),
            update.seed[update.perturbation == 0],
            self._time,
        )
        body = SeededScalars(seeds_K, update.scalar.reshape(len(seeds_K), -1))
        upload = Upload(client, int(update.read[0]), body)
        self._loop.serve(
            upload, Activation(now, now, False, now), now, lambda: now, body.wire_bytes
        )
