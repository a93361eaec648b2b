"""Clients that ask for the newest state when they wake, under both clocks.

An activation: the client's epoch (or the end of its running round trip, if later) -> it asks for
what it missed, by the version that it holds -> the server answers -> it computes -> uploads -> the
server makes the upload the next update. No client waits for another. Clients that are idle cost
nothing: epochs are drawn as one merged process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import dropwhile, islice
from typing import Any, NamedTuple, Protocol

from raydpzv.errors import ReplayMismatch
from raydpzv.methods.roles import ClientGroup, Metrics, Order, Upload
from raydpzv.sim.clock import Clock, time_on_record
from raydpzv.sim.event_queue import EventQueue
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import Arrival, Timing, VirtualRun
from raydpzv.sim.wall import pause
from raydpzv.wire.seeds import REQUEST_BYTES


class Epoch(NamedTuple):
    """A client wakes."""

    client: int
    due: float


class Pull(NamedTuple):
    """A client's request on its way to the server. late: its epoch fell into a round trip."""

    client: int
    due: float
    woke: float
    late: bool = False


Waiting = tuple[int, list[float]]
"""A client in a round trip, and its epochs that wait."""


class Queue:
    """Which clients are in a round trip, and their epochs that fell into it: served at its end,
    late.
    """

    def __init__(self, waiting: Sequence[Waiting] = ()) -> None:
        self._waiting: dict[int, list[float]] = {client: list(epochs) for client, epochs in waiting}

    def enters(self, client: int, due: float) -> bool:
        """Return whether the client is free to begin; if not, the epoch waits."""
        if client in self._waiting:
            self._waiting[client].append(due)
            return False
        self._waiting[client] = []
        return True

    def waiting(self) -> list[Waiting]:
        """Return a copy of the clients in a round trip, each with its epochs that wait: another
        queue's start.
        """
        return [(client, list(epochs)) for client, epochs in sorted(self._waiting.items())]

    def leaves(self, client: int) -> float | None:
        """The round trip is over: return the epoch that the client serves next, at once, if one is
        waiting.
        """
        waiting = self._waiting[client]
        if waiting:
            return waiting.pop(0)
        del self._waiting[client]
        return None


class PullRun(VirtualRun):
    """Such a run under the virtual clock: deterministic, whatever the host."""

    _drawn = 0

    def _begin(self) -> None:
        self._merged: Iterator[tuple[float, int]] = self._timing.arrivals.merged()
        self._queue = Queue()
        self._plan_epoch()

    def moment(self) -> dict[str, Any]:
        return super().moment() | {"drawn": self._drawn, "waiting": self._queue.waiting()}

    def _resume_moment(self, state: Mapping[str, Any]) -> None:
        super()._resume_moment(state)
        self._merged, self._queue = self._timing.arrivals.merged(), Queue(state["waiting"])
        events = [event for _, event in state["events"]]
        planned = sum(isinstance(event, Epoch) for event in events)
        due = self._waiting(islice(self._merged, state["drawn"] - planned), events)
        self._drawn = state["drawn"] - planned + sum(1 for _ in islice(self._merged, planned))
        if self._queue.waiting() != due:
            raise ReplayMismatch(
                "the clients that wait in the checkpoint are not those of its moment"
            )

    def _waiting(
        self, started: Iterable[tuple[float, int]], events: Sequence[object]
    ) -> list[Waiting]:
        """Return what `Queue.waiting` does, worked out from the epochs that have started and the
        events to come.
        """
        served = self._clients.works + Counter(
            event.client for event in events if isinstance(event, Pull)
        )
        found: dict[int, list[float]] = {
            e.client: [] for e in events if isinstance(e, Pull | Arrival)
        }
        seen = Counter[int]()
        for due, client in started:
            seen[client] += 1
            if seen[client] > served[client]:
                found.setdefault(client, []).append(due)
        return sorted(found.items())

    def _plan_epoch(self) -> None:
        self._drawn += 1
        if epoch := next(self._merged, None):
            self._events.add(epoch[0], Epoch(epoch[1], epoch[0]))

    def _happen(self, event: object, time: float) -> None:
        if isinstance(event, Epoch):
            self._plan_epoch()
            if self._queue.enters(event.client, event.due):
                self._ask(event.client, event.due, time)
            return
        if isinstance(event, Pull):
            self._answer(event, time)
            return
        super()._happen(event, time)

    def _served(self, client: int) -> None:
        """The client serves the epoch that waits next, at once."""
        if (
            self._server_loop.stop_reason is None
            and (due := self._queue.leaves(client)) is not None
        ):
            self._ask(client, due, self._busy_until)

    def _ask(self, client: int, due: float, now: float) -> None:
        arrives = now + self._timing.network.uplink(client, REQUEST_BYTES)
        self._events.add(arrives, Pull(client, due, now))

    def _answer(self, request: Pull, now: float) -> None:
        client = request.client
        order = self._server_loop.wake(client)
        self._server_loop.requested(order, request.woke, now, REQUEST_BYTES)
        # the server answers when it has finished with the uploads that came before, which the
        # answer holds
        sent = max(now, self._busy_until)
        size = order.body.wire_bytes
        arrives = sent + self._timing.network.downlink(client, size)
        self._server_loop.sent(order, sent, arrives, size)
        self._work(order, self._host.submit(order), arrives, request.due, request.woke)


class PullConnection(Protocol):
    """How a process with many clients reaches the server under the wall clock."""

    def wake(self, client: int) -> Order | None:
        """Return what the client is to work at; None: the run is over."""
        ...

    def exchange(self, upload: Upload, how: Activation) -> bool:
        """Hand in an upload; return whether the run continues."""
        ...


def wake(server_loop: ServerLoop, client: int, now: float) -> Order:
    """Return what a client that wakes under the wall clock is to work at; request and answer are
    recorded.
    """
    order = server_loop.wake(client)
    server_loop.requested(order, now, now, REQUEST_BYTES)
    server_loop.sent(order, now, now, order.body.wire_bytes)
    return order


class PullServerLoop:
    """A `ServerLoop` behind a lock, for clients that pull. service: seconds that serving upload 0,
    1, ... takes.
    """

    def __init__(
        self,
        server_loop: ServerLoop,
        clock: Clock,
        service: Callable[[int], float] = lambda which: 0.0,
    ) -> None:
        self._server_loop, self._clock, self._service = server_loop, clock, service
        self._lock = threading.Lock()
        self._serving = (
            threading.Lock()
        )  # one upload at a time; a service's duration must not block control
        self._stopping = threading.Event()

    def wake(self, client: int) -> Order | None:
        with self._lock:
            if self._server_loop.stop_reason is not None:
                return None
            return wake(self._server_loop, client, self._clock.now())

    @contextmanager
    def halted(self) -> Iterator[float]:
        """Keep everything as it is while the block runs: nothing is served or recorded; gives the
        time.
        """
        with self._lock:
            yield self._clock.now()

    def exchange(self, upload: Upload, how: Activation) -> bool:
        """Serve one upload; one that comes after the end is not served."""
        arrived = self._clock.now()
        with self._serving:
            pause(self._stopping, self._service(self._server_loop.uploads))
            with self._lock:
                if self._server_loop.stop_reason is None:
                    self._server_loop.serve(
                        upload, how, arrived, self._clock.now, upload.body.wire_bytes
                    )
                else:
                    self._server_loop.unserved(upload)
                return self._server_loop.stop_reason is None

    def evaluate(self, score: Callable[[int], Metrics]) -> None:
        """Score the newest model; updates continue meanwhile."""
        version = self._server_loop.updates
        metrics = score(version)
        with self._lock:
            self._server_loop.evaluated(metrics, time_on_record(self._clock), version)

    def stop(self, reason: str) -> None:
        """End the run: hosts learn it from their next answer."""
        self._stopping.set()
        with self._lock:
            self._server_loop.stop(reason)


class HostShare(NamedTuple):
    """Which clients live on a host: those m with m mod `parts` = `part`.

    begins: the time before which epochs are left out, since nobody lived there.
    """

    part: int = 0
    parts: int = 1
    begins: float = 0.0


class PullLoop:
    """The clients of one host under the wall clock; their simulated delays are waited for side by
    side.

    The host computes one upload at a time: an epoch that finds it computing starts late, and is
    counted.
    """

    def __init__(
        self,
        client_group: ClientGroup,
        port: PullConnection,
        timing: Timing,
        clock: Clock,
        share: HostShare = HostShare(),  # noqa: B008  (a tuple)
    ) -> None:
        self._client_group, self._port, self._timing, self._clock = (
            client_group,
            port,
            timing,
            clock,
        )
        epochs = timing.arrivals.merged(share.part, share.parts)
        self._merged = dropwhile(lambda epoch: epoch[0] < share.begins, epochs)
        self._events: EventQueue[Epoch | Pull | tuple[Upload, Activation]] = EventQueue()
        self._queue, self._works = Queue(), 0
        self._stopping, self._over = threading.Event(), False

    def run(self) -> None:
        """Live until the run is over, `stop` is called, or the arrival trace is exhausted."""
        self._plan_epoch()
        while self._events and not self._over:
            time, event = self._events.pop()
            pause(self._stopping, time - self._clock.now())
            if self._stopping.is_set():
                self._events.add(time, event)
                break
            if isinstance(event, Epoch):
                self._plan_epoch()
                if self._queue.enters(event.client, event.due):
                    self._ask(event.client, event.due)
            elif isinstance(event, Pull):
                self._pull(event)
            else:
                self._hand_in(*event)
        self._account_for_what_was_sent(self._clock.now())

    def stop(self) -> None:
        """Leave at the next opportunity, also out of a pause."""
        self._stopping.set()

    def _plan_epoch(self) -> None:
        if epoch := next(self._merged, None):
            self._events.add(epoch[0], Epoch(epoch[1], epoch[0]))

    def _ask(self, client: int, due: float, waited: bool = False) -> None:
        woke = self._clock.now()
        arrives = woke + self._timing.network.uplink(client, REQUEST_BYTES)
        self._events.add(arrives, Pull(client, due, woke, waited or woke - due > _LATE))

    def _pull(self, request: Pull) -> None:
        client, asked = request.client, self._clock.now()
        order = self._port.wake(client)
        if order is None:
            self._over = True
            return
        network, (upload,) = self._timing.network, self._client_group.process([order])
        simulated = asked + network.downlink(client, order.body.wire_bytes)
        simulated += self._timing.compute.of(client, self._works)
        self._works += 1
        sent = max(self._clock.now(), simulated)
        how = Activation(request.due, request.woke, request.late, sent)
        self._events.add(sent + network.uplink(client, upload.body.wire_bytes), (upload, how))

    def _account_for_what_was_sent(self, over: float) -> None:
        """Hand in the uploads on their way when the run was over: their releases were made."""
        while self._events:
            _, event = self._events.pop()
            if not isinstance(event, Epoch | Pull) and event[0].releases and event[1].sent <= over:
                self._port.exchange(*event)

    def _hand_in(self, upload: Upload, how: Activation) -> None:
        self._over = not self._port.exchange(upload, how)
        if not self._over and (due := self._queue.leaves(upload.client)) is not None:
            self._ask(upload.client, due, waited=True)


_LATE = 0.005
"""Seconds after its epoch from which a start counts as late: a sleeping thread is not woken to the
microsecond.
"""
