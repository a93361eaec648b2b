"""The wall clock: every client runs its own loop on its own activation clock; nobody orchestrates.

The server serves in true arrival order, one upload at a time. The same code runs in threads of one
process and in
Ray actors: a `ServerConnection` says how a client reaches the server.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile
from typing import NamedTuple, Protocol, cast

from raydpzv.errors import Stalled
from raydpzv.methods.roles import Client, Order, Upload, VerticalServer
from raydpzv.methods.vertical.base import composed
from raydpzv.sim.clock import Clock, time_on_record
from raydpzv.sim.interfaces import Activation, Status
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import NOBODY_WAKES, Timing
from raydpzv.wire.messages import Body, SaveState


@dataclass(frozen=True)
class Answer:
    """What a client gets back: an order if there is one for it by now, and whether the run is
    over.
    """

    order: Order | None
    over: bool


class UnderWay(NamedTuple):
    """What is under way at a moment between two services.

    trays: each client's orders that it has not got yet; handed: those that it got since its last
    upload was served, and may have applied; served: how many uploads of each client were.
    """

    time: float
    trays: Mapping[int, tuple[Order, ...]]
    handed: Mapping[int, Order]
    served: Mapping[int, int]


class ServerConnection(Protocol):
    """How a client reaches the server under the wall clock."""

    def first(self, client: int) -> Answer:
        """Return the client's first order."""
        ...

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        """Hand in an upload (and when the answer to the last one was applied)."""
        ...

    def wait(self, client: int, seconds: float) -> Answer:
        """Wait for an order that was not ready yet, at most so long."""
        ...

    def finish(self, client: int, applied: float) -> None:
        """Say when the last answer was applied; the client leaves."""
        ...


class Resumption(NamedTuple):
    """Where a resumed run's server loop starts: the clients' first orders, and how many uploads of
    each were served.
    """

    orders: Sequence[Order]
    served: Mapping[int, int]


class LockedServerLoop:
    """A `ServerLoop` behind a lock, with an out-tray per client for orders that become ready later.

    service: seconds that serving upload 0, 1, ... takes. barrier: for how many clients' uploads the
    server waits; with fewer clients that still wake the run is over.
    """

    def __init__(
        self,
        server_loop: ServerLoop,
        clock: Clock,
        service: Callable[[int], float],
        clients: int,
        barrier: int = 1,
        resumed: Resumption | None = None,
    ) -> None:
        self._server_loop, self._clock, self._service = server_loop, clock, service
        self._awake, self._barrier = set(range(clients)), barrier
        self._changed = threading.Condition()
        self._serving = (
            threading.Lock()
        )  # one upload at a time; a service's duration must not block control
        self._trays: dict[int, list[Order]] = {m: [] for m in range(clients)}
        self._stopping = threading.Event()
        self._served = Counter(resumed.served if resumed else {})
        self._handed: dict[int, Order] = {}  # to each client since its last upload was served
        self._heard: dict[int, float] = {}
        for order in resumed.orders if resumed else server_loop.start(clock.now()):
            self._put(order)

    @contextmanager
    def halted(self) -> Iterator[UnderWay]:
        """Keep everything as it is while the block runs: nothing is served, handed out or recorded
        meanwhile.
        """
        with self._changed:
            trays = {m: tuple(o for o in tray if not o.is_query) for m, tray in self._trays.items()}
            yield UnderWay(
                time_on_record(self._clock), trays, dict(self._handed), dict(self._served)
            )

    def first(self, client: int) -> Answer:
        with self._changed:
            return self._answer(client)

    def exchange(self, upload: Upload, how: Activation, applied: float) -> Answer:
        arrived = self._clock.now()
        with self._serving:
            pause(
                self._stopping, 0.0 if upload.is_query else self._service(self._server_loop.uploads)
            )
            with self._changed:
                if not upload.is_query:
                    self._server_loop.applied(upload.client, applied)
                if self._over():
                    self._server_loop.unserved(upload)
                    return Answer(None, True)
                uploads = self._server_loop.uploads
                orders = self._server_loop.serve(
                    upload, how, arrived, self._clock.now, upload.body.wire_bytes
                )
                if self._server_loop.uploads > uploads:
                    self._served[upload.client] += 1
                    self._handed.pop(upload.client, None)
                    self._heard[upload.client] = arrived
                for order in orders:
                    self._put(order)
                self._changed.notify_all()
                return self._answer(upload.client)

    def wait(self, client: int, seconds: float) -> Answer:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._trays[client]) or self._over(), seconds)
            return self._answer(client)

    def finish(self, client: int, applied: float) -> None:
        """Record when the client's last answer was applied; it will not wake again."""
        with self._changed:
            self._server_loop.applied(client, applied)
            self._awake.discard(client)
            if len(self._awake) < self._barrier:
                self._stopping.set()
                self._server_loop.stop(NOBODY_WAKES)
            self._changed.notify_all()

    def heard(self, client: int) -> float | None:
        """Return when the last upload of a client that was served came; None: none came in this
        segment.
        """
        return self._heard.get(client)

    def stop(self, reason: str) -> None:
        """End the run: clients learn it from their next answer."""
        self._stopping.set()
        with self._changed:
            self._server_loop.stop(reason)
            self._changed.notify_all()

    def status(self) -> Status:
        """Return where the run stands; does not wait for a service in progress."""
        return self._server_loop.status()

    def evaluate(self, uploads: list[Upload]) -> None:
        """Score the clients' held-out embeddings (client order) with the head as it is now."""
        with self._changed:
            self._server_loop.evaluated(
                composed(cast(VerticalServer, self._server_loop.server), uploads),
                time_on_record(self._clock),
            )

    def close(self) -> None:
        """Record what was left open."""
        with self._changed:
            self._server_loop.close()

    def _over(self) -> bool:
        return self._server_loop.stop_reason is not None

    def _put(self, order: Order) -> None:
        self._trays[order.client].append(order)

    def _answer(self, client: int) -> Answer:
        tray = self._trays[client]
        if not tray:
            return Answer(None, self._over())
        order, now = tray.pop(0), time_on_record(self._clock)
        if not order.is_query:
            self._handed[client] = order
        self._server_loop.sent(order, now, now, order.body.wire_bytes)
        return Answer(order, self._over())


NOTHING_APPLIED = -1
"""Before all rounds that an order may have."""


class ClientStart(NamedTuple):
    """Where a client's loop starts in the midst of a run.

    after: the time from which its epochs count, before which it does nothing; works: the pieces of
    work it has done.
    """

    after: float = -math.inf
    works: int = 0


class SegmentStart(NamedTuple):
    """Where a segment of a run starts for its clients. served: uploads of each that were served
    before.

    number: of the segment, from 1; time: of the run's clock; evaluated: after how many updates the
    last evaluation was.
    """

    number: int
    time: float
    evaluated: int
    served: Mapping[int, int]

    def of(self, client: int) -> ClientStart:
        """Return where a client starts."""
        return ClientStart(self.time if self.number > 1 else -math.inf, self.served.get(client, 0))

    @property
    def begins(self) -> float:
        """The time from which the epochs of clients that pull count."""
        return math.nextafter(self.time, math.inf) if self.number > 1 else 0.0


class SavedClient(NamedTuple):
    """A client's state, and the round of the last order that it has applied."""

    state: Body
    applied: int


class EvaluationSchedule:
    """Decides when an evaluation is due: every so many updates, one for all that were missed."""

    def __init__(self, every: int, evaluated: int = 0) -> None:
        self._every, self._count = every, evaluated // every

    def due(self, updates: int) -> bool:
        """Return whether the model is to be evaluated now, after so many updates; the caller does
        so.
        """
        count, self._count = self._count, max(self._count, updates // self._every)
        return self._count > count


def saved_state(client: int, role: Client) -> Body:
    """Return what a checkpoint keeps of a client that no ledger can rebuild."""
    return role.process(Order(client, SaveState())).body


class WallPace(NamedTuple):
    """How time passes for a client's loop: arrivals, delays and network by the run's clock.

    timeout: seconds to wait for an order before the run counts as stalled.
    """

    timing: Timing
    clock: Clock
    timeout: float = 300.0


class ClientLoop:
    """One client's life under the wall clock.

    Its epochs come from the arrivals, not from the end of its last round trip: an epoch that falls
    into a running round trip is served at its end and counted as late; arrivals without epochs let
    it begin at once. Simulated compute and network delays are real sleeps here. An activation that
    begins with a request continues with the answer to it. A role that `answers_queries` does so
    while it waits for its epoch or for an order, not while it computes or sends.
    lock: held while the role works, for other users of the role.
    """

    def __init__(
        self,
        client: int,
        role: Client,
        port: ServerConnection,
        pace: WallPace,
        lock: threading.Lock | None = None,
        start: ClientStart = ClientStart(),  # noqa: B008  (a tuple)
    ) -> None:
        self._client, self._role, self._port = client, role, port
        self._timing, self._clock, self._timeout = pace
        self._lock = lock or threading.Lock()
        self._start = start
        self._answers_queries = bool(getattr(role, "answers_queries", False))
        self._stopping = threading.Event()
        self._applied = NOTHING_APPLIED

    def run(self) -> None:
        """Live until the server says that the run is over, or `stop` is called."""
        epochs = dropwhile(
            lambda epoch: epoch <= self._start.after, self._timing.arrivals.epochs(self._client)
        )
        answer, works, applied = self._port.first(self._client), self._start.works, 0.0
        self._pause(max(0.0, self._start.after) - self._clock.now())
        due = woke = 0.0
        late = asking = False
        while True:
            # an answer is applied even when the run is stopping: its release is on record
            answer = answer if answer.order or answer.over else self._await_order()
            order = answer.order
            if order is None:
                break
            if order.is_query:
                answer = self._answer_query(order)
                continue
            self._pause(self._timing.network.downlink(self._client, order.body.wire_bytes))
            with self._lock:
                self._role.apply(order)
                self._applied = order.round
            free = self._clock.now()
            applied = math.nan if order.asks else free
            if answer.over or self._stopping.is_set():
                break
            if not asking:
                start_immediately = order.start_immediately or self._timing.arrivals.closed_loop
                epoch = free if start_immediately else next(epochs, None)
                if epoch is None:
                    self._listen(applied)
                    break
                due, late = epoch, epoch < free
                self._idle(due)
                if self._stopping.is_set():
                    break
                woke = self._clock.now()
            with self._lock:
                upload = self._role.work()
            asking = order.asks
            if not asking:
                self._pause(self._timing.compute.of(self._client, works))
                works += 1
            sent = self._clock.now()
            self._pause(self._timing.network.uplink(self._client, upload.body.wire_bytes))
            answer = self._port.exchange(upload, Activation(due, woke, late, sent), applied)
            applied = math.nan  # of the answer to this upload, which may never come
        self._port.finish(self._client, applied)

    def stop(self) -> None:
        """Leave at the next opportunity, also out of a pause."""
        self._stopping.set()

    def evaluate(self) -> Upload:
        """Return the held-out embeddings, between two pieces of work."""
        with self._lock:
            return self._role.evaluate()

    def saved(self) -> SavedClient:
        """Return what a checkpoint keeps of the client, between two pieces of work."""
        with self._lock:
            return SavedClient(saved_state(self._client, self._role), self._applied)

    def _listen(self, applied: float) -> None:
        """Wake no more; an answers_queries role continues answering queries until the run is
        over.
        """
        if self._answers_queries:
            self._port.finish(self._client, applied)
            self._idle(math.inf)

    def _pause(self, seconds: float) -> None:
        pause(self._stopping, seconds)

    def _idle(self, until: float) -> None:
        """Wait for the next epoch; an answers_queries role listens for queries meanwhile."""
        while self._answers_queries and not self._stopping.is_set():
            left = until - self._clock.now()
            if left <= 0:
                return
            answer = self._port.wait(self._client, min(left, 1.0))
            while answer.order and not answer.over:
                answer = self._answer_query(answer.order)
            if answer.over:
                self._stopping.set()
        self._pause(until - self._clock.now())

    def _answer_query(self, query: Order) -> Answer:
        network = self._timing.network
        self._pause(network.downlink(self._client, query.body.wire_bytes))
        with self._lock:
            upload = self._role.process(query)
        now = self._clock.now()
        self._pause(network.uplink(self._client, upload.body.wire_bytes))
        return self._port.exchange(upload, Activation(now, now, False, now), math.nan)

    def _await_order(self) -> Answer:
        waited = 0.0
        while waited < self._timeout and not self._stopping.is_set():
            answer = self._port.wait(self._client, min(1.0, self._timeout - waited))
            if answer.order or answer.over:
                return answer
            waited += 1.0
        if self._stopping.is_set():
            return Answer(None, True)
        raise Stalled(
            f"client {self._client} got no order within {self._timeout:g} s of its upload: another "
            "client stopped or is slower than that; raise resources.timeout"
        )


def pause(stopping: threading.Event, seconds: float) -> None:
    """Wait until the time is over or `stopping` is set; any length (one wait takes at most
    threading.TIMEOUT_MAX).
    """
    while seconds > 0 and not stopping.wait(min(seconds, 1e6)):
        seconds -= 1e6
