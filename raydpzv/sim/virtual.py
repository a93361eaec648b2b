"""The virtual clock: a run as a heap of events, the same bits on any host.

A client's life: its next epoch (or the end of the running round trip, if later) -> compute -> uplink -> queue at
the server -> downlink -> apply. Clients' work is started as soon as its order has arrived in virtual time, so on
a parallel host the clients compute side by side while the server serves strictly in virtual-time order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from raydpzv.errors import RunError
from raydpzv.methods.roles import Order, Upload
from raydpzv.sim.agenda import Agenda
from raydpzv.sim.arrivals import Arrivals, Delays
from raydpzv.sim.clock import VirtualClock
from raydpzv.sim.desk import Activation, Desk
from raydpzv.sim.host import Host
from raydpzv.wire.messages import Evaluate, TestEmbeddings
from raydpzv.wire.network import Network

NOBODY_WAKES = "no client wakes any more: the arrivals have ended"


@dataclass(frozen=True)
class Timing:
    """What takes how long: activation epochs, clients' compute and server's service delays, the network."""

    arrivals: Arrivals
    compute: Delays
    service: Delays
    network: Network


@dataclass(frozen=True)
class _Delivery:
    order: Order


@dataclass(frozen=True)
class _Arrival:
    client: int
    handle: Any
    upload: Upload | None  # taken early where its size decides when it arrives
    how: Activation
    promised: int | None


class VirtualRun:
    """One run under the virtual clock.

    evaluate_every: server rounds between evaluations (also before the first and after the last); stop: set it
    from outside to end the run after the event in progress; tick: called after every service.
    """

    def __init__(
        self,
        desk: Desk,
        host: Host,
        timing: Timing,
        *,
        clients: int,
        evaluate_every: int,
        stop: threading.Event | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._desk, self._host, self._timing = desk, host, timing
        self._clients, self._every = clients, evaluate_every
        self._stop, self._tick = stop or threading.Event(), tick
        self._clock = VirtualClock()
        self._agenda: Agenda[_Delivery | _Arrival] = Agenda()
        self._epochs: list[Iterator[float]] = [timing.arrivals.epochs(m) for m in range(clients)]
        self._busy_until = 0.0
        self._works = [0] * clients

    def run(self) -> None:
        """Run until a budget ends it, `stop` is set, or nothing is left to happen."""
        for order in self._desk.open(0.0):
            self._send(order, 0.0)
        self._evaluate()
        while self._goes_on():
            time, event = self._agenda.pop()
            self._clock.advance(time)
            if isinstance(event, _Delivery):
                self._deliver(event.order, time)
            else:
                self._serve(event, time)
        self._finish()

    def _goes_on(self) -> bool:
        if self._stop.is_set():
            self._desk.stop("stopped by the user")
        if not self._agenda:
            self._desk.stop(NOBODY_WAKES)
        elif self._past_the_budget(self._agenda.next_time()):
            self._desk.stop_at_time()
        return self._desk.stop_reason is None

    def _past_the_budget(self, time: float) -> bool:
        limit = self._desk.budget.seconds
        return limit is not None and time > limit

    def _send(self, order: Order, at: float) -> None:
        arrives = at + self._timing.network.downlink(order.client, order.body.wire_bytes)
        self._desk.sent(order, at, arrives)
        self._agenda.add(arrives, _Delivery(order))

    def _deliver(self, order: Order, now: float) -> None:
        """The client applies the order and starts its next work; the upload's arrival is known already."""
        client = order.client
        self._desk.applied(client, now)
        handle = self._host.perform(order)
        due = now if order.at_once else next(self._epochs[client], None)
        if due is None:
            return
        woke = max(due, now)
        sent = woke + self._timing.compute.of(client, self._works[client])
        self._works[client] += 1
        size, upload = order.reply_bytes, None
        if size is None and self._timing.network.needs_size(client):
            upload = self._host.take(handle)
            size = upload.body.wire_bytes
        arrives = sent + self._timing.network.uplink(client, size or 0)
        how = Activation(due, woke, due < now, sent)
        self._agenda.add(arrives, _Arrival(client, handle, upload, how, size))

    def _serve(self, event: _Arrival, now: float) -> None:
        upload = event.upload or self._host.take(event.handle)
        if event.promised is not None and event.promised != upload.body.wire_bytes:
            raise RunError(
                f"client {event.client} sent {upload.body.wire_bytes} bytes where its order promised {event.promised}"
            )
        begins = max(now, self._busy_until)
        delay = self._timing.service.of(0, self._desk.updates)
        if self._past_the_budget(begins + delay):
            self._desk.stop_at_time()
            return
        self._busy_until = begins + delay
        orders = self._desk.serve(upload, event.how, now, lambda: self._busy_until)
        for order in orders:
            self._send(order, self._busy_until)
        if self._desk.stop_reason is None and self._desk.updates % self._every == 0:
            self._evaluate()
        self._tick()

    def _evaluate(self) -> None:
        handles = [self._host.perform(Order(m, Evaluate())) for m in range(self._clients)]
        bodies = [self._host.take(h).body for h in handles]
        embeddings = [b.values for b in bodies if isinstance(b, TestEmbeddings)]
        self._desk.evaluated(self._desk.server.evaluate(embeddings), self._clock.now())

    def _finish(self) -> None:
        """Deliver the answers still on their way, so that the final models hold every release, and evaluate."""
        while self._agenda:
            time, event = self._agenda.pop()
            if isinstance(event, _Delivery):
                self._clock.advance(time)
                self._desk.applied(event.order.client, time)
                self._host.perform(event.order)
        self._desk.close()
        self._evaluate()
        self._tick()
