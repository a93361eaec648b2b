"""The virtual clock: a run as a heap of events, the same bits on any host.

A client's life: its next epoch (or the end of the running round trip, if later or if there are no epochs) -> compute
-> uplink -> queue at the server -> downlink -> apply. Clients' work is started as soon as its order has arrived in
virtual time, so on a parallel host the clients compute side by side while the server serves strictly in virtual-time
order.
A query (an order `aside`) is answered on arrival, with the model as it is then; only its way there and back takes time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raydpzv.errors import RunError
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.sim.agenda import Agenda
from raydpzv.sim.arrivals import Arrivals, Delays
from raydpzv.sim.clock import VirtualClock
from raydpzv.sim.desk import Desk
from raydpzv.sim.host import Host
from raydpzv.sim.terms import Activation
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
    handle: Any  # of the work, if it began when the order was sent


@dataclass(frozen=True)
class _Arrival:
    client: int
    handle: Any
    upload: Upload | None  # taken early where its size decides when it arrives
    how: Activation
    promised: int | None


class VirtualRun:
    """One run under the virtual clock.

    score: scores the newest model on the held-out rows; evaluate_every: updates between evaluations (also before the
    first and after the last); stop: set it from outside to end the run after the event in progress; tick: called
    after every service; updated: called after every update of the model, before new orders are sent; state: go on
    from there (see `state`).
    """

    def __init__(
        self,
        desk: Desk,
        host: Host,
        timing: Timing,
        *,
        score: Callable[[], Metrics],
        evaluate_every: int,
        stop: threading.Event | None = None,
        tick: Callable[[], None] = lambda: None,
        updated: Callable[[], None] = lambda: None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._desk, self._host, self._timing = desk, host, timing
        self._score, self._every = score, evaluate_every
        self._stop, self._tick, self._updated = stop or threading.Event(), tick, updated
        self._resumed = state
        self._clock = VirtualClock()
        self._agenda: Agenda[Any] = Agenda()
        self._epochs: dict[int, Iterator[float]] = {}
        self._busy_until = 0.0
        self._within_a_round = False
        self._works: Counter[int] = Counter()

    def run(self) -> None:
        """Run until a budget ends it, `stop` is set, or nothing is left to happen."""
        if self._resumed is None:
            self._begin()
            self._evaluate()
        else:
            self._go_on_from(self._resumed)
        while self._goes_on():
            time, event = self._agenda.pop()
            self._clock.advance(time)
            self._happen(event, time)
        self._finish()

    def state(self) -> dict[str, Any]:
        """Return what a run of rounds needs to go on, beside its server's state: asked for in `updated`."""
        return {
            "time": self._clock.now(),
            "busy_until": self._busy_until,
            "works": sorted(self._works.items()),
            "status": self._desk.account(),
        }

    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        """Send the orders of the next round, which the state counts as sent, and go on."""
        self._clock.advance(state["time"])
        self._busy_until = state["busy_until"]
        self._works = Counter(dict(state["works"]))
        for order in self._desk.reopen(state["status"]):
            self._send(order, self._busy_until)
        self._evaluate_if_due()

    def _begin(self) -> None:
        for order in self._desk.open(0.0):
            self._send(order, 0.0)

    def _happen(self, event: Any, time: float) -> None:
        if isinstance(event, _Delivery):
            self._deliver(event, time)
        else:
            self._serve(event, time)

    def _goes_on(self) -> bool:
        if self._stop.is_set() and not self._within_a_round:
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
        """Send an order; work that need not wait for the client's next epoch begins at once, beside others'."""
        arrives = at + self._timing.network.downlink(order.client, order.body.wire_bytes)
        self._desk.sent(order, at, arrives)
        self._agenda.add(arrives, _Delivery(order, self._host.perform(order) if order.at_once else None))

    def _deliver(self, event: _Delivery, now: float) -> None:
        """The client applies the order and starts its next work; the upload's arrival is known already."""
        order, client = event.order, event.order.client
        if order.aside:
            self._work(order, self._host.perform(order), now, Activation(now, now, False, now))
            return
        self._desk.applied(client, now)
        handle = event.handle if order.at_once else self._host.perform(order)
        at_once = order.at_once or self._timing.arrivals.closed_loop
        due = now if at_once else self._next_epoch(client)
        if due is None:
            return
        woke = max(due, now)
        self._work(order, handle, woke, Activation(due, woke, due < now, woke))

    def _next_epoch(self, client: int) -> float | None:
        if client not in self._epochs:
            self._epochs[client] = self._timing.arrivals.epochs(client)
        return next(self._epochs[client], None)

    def _work(self, order: Order, handle: Any, begins: float, how: Activation) -> None:
        """Plan the arrival of the upload that comes of an order whose work begins then."""
        client, sent = order.client, begins
        if not order.aside:
            sent += self._timing.compute.of(client, self._works[client])
            self._works[client] += 1
        size, upload = order.reply_bytes, None
        if size is None and self._timing.network.needs_size(client):
            upload = self._host.take(handle)
            size = upload.body.wire_bytes
        arrives = sent + self._timing.network.uplink(client, size or 0)
        self._agenda.add(arrives, _Arrival(client, handle, upload, replace(how, sent=sent), size))

    def _serve(self, event: _Arrival, now: float) -> None:
        upload = event.upload or self._host.take(event.handle)
        if event.promised is not None and event.promised != upload.body.wire_bytes:
            raise RunError(
                f"client {event.client} sent {upload.body.wire_bytes} bytes where its order promised {event.promised}"
            )
        begins = max(now, self._busy_until)
        delay = 0.0 if upload.aside else self._timing.service.of(0, self._desk.uploads)
        if self._past_the_budget(begins + delay):
            self._desk.stop_at_time()
            self._desk.unserved(upload)
            return
        self._busy_until, before = begins + delay, self._desk.updates
        orders = self._desk.serve(upload, event.how, now, lambda: self._busy_until)
        self._within_a_round = not self._desk.server.answers and self._desk.updates == before
        if self._desk.updates > before:
            self._updated()
        for order in orders:
            self._send(order, self._busy_until)
        if self._desk.updates > before and self._desk.stop_reason is None:
            self._evaluate_if_due()
        self._tick()

    def _evaluate_if_due(self) -> None:
        if self._desk.updates % self._every == 0:
            self._evaluate()

    def _evaluate(self) -> None:
        # the model is what it is when the last service is done, not when its upload came
        self._desk.evaluated(self._score(), max(self._clock.now(), self._busy_until))

    def _finish(self) -> None:
        """Deliver the answers still on their way, so that the final models hold every release, and evaluate."""
        over = max(self._clock.now(), self._busy_until, self._desk.status().time)
        while self._agenda:
            time, event = self._agenda.pop()
            if isinstance(event, _Arrival) and self._desk.guard.of_uploads and event.how.sent <= over:
                self._desk.unserved(event.upload or self._host.take(event.handle))
            if isinstance(event, _Delivery) and not event.order.aside:
                self._clock.advance(time)
                self._desk.applied(event.order.client, time)
                if not event.order.at_once:
                    self._host.perform(event.order)
        self._desk.close()
        self._evaluate()
        self._tick()
