"""The virtual clock: a run as a heap of events, the same bits on any host.

A client's life: its next epoch (or the end of the running round trip, if later or if there are no
epochs) -> compute -> uplink -> queue at the server -> downlink -> apply. Where a client asks first,
its request, the answer and applying it lie between epoch and compute. Clients' work is started as
soon as its order has arrived in virtual time, so on a parallel host the clients compute side by
side while the server serves strictly in virtual-time order. A query is answered on arrival, with
the model as it is then; only its way there and back takes time.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from raydpzv.errors import RunError, Stalled
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.sim.arrivals import Arrivals
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.event_queue import EventQueue
from raydpzv.sim.executor import Executor
from raydpzv.sim.interfaces import USER, Activation, Stop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.wire.network import Network

NOBODY_WAKES = "no client wakes any more: the arrivals have ended"


@dataclass(frozen=True)
class Timing:
    """What takes how long: activation epochs, clients' compute and server's service delays, the
    network.
    """

    arrivals: Arrivals
    compute: DelayModel
    service: DelayModel
    network: Network

    def service_seconds(self, which: int) -> float:
        """Return the seconds that serving upload 0, 1, ... takes."""
        return self.service.of(0, which)


class Delivery(NamedTuple):
    """An order on its way to its client."""

    order: Order
    handle: Any  # of the work, if it started when the order was sent


class Arrival(NamedTuple):
    """An upload on its way to the server."""

    client: int
    handle: Any
    upload: (
        Upload | None
    )  # taken early where its size decides when it arrives, or a checkpoint holds it
    how: Activation
    promised: int | None


@dataclass(frozen=True)
class Scoring:
    """score: scores the newest model on the held-out rows; every: updates between two evaluations.

    The model is evaluated before the first update and after the last one, too.
    """

    score: Callable[[], Metrics]
    every: int


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class LoopHooks:
    """What a run under the virtual clock calls.

    stop: asked after each event whether the run is to end. tick: called after every service.
    updated: called after every update of the model, before new orders are sent. stopped: called
    where `stop` ends the run, before answers on their way are delivered.
    """

    stop: Stop = field(default_factory=threading.Event)
    tick: Callable[[], None] = _nothing
    updated: Callable[[], None] = _nothing
    stopped: Callable[[], None] = _nothing


class _ClientClocks:
    """Each client's activation epochs, pieces of work, and requests that are not answered yet."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._epochs: dict[int, Iterator[float]] = {}
        self._used: Counter[int] = Counter()
        self.works: Counter[int] = Counter()
        """Pieces of work that each client has started."""
        self.asking: dict[int, tuple[float, float]] = {}
        """(due, woke) of each client that waits for the answer to its request."""

    def next_epoch(self, client: int) -> float | None:
        """Return when a client wakes next; None: never again."""
        if client not in self._epochs:
            self._epochs[client] = self._arrivals.epochs(client)
        self._used[client] += 1
        return next(self._epochs[client], None)

    def next_work(self, client: int) -> int:
        """Return the number of a client's next piece of work, and count it."""
        self.works[client] += 1
        return self.works[client] - 1

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the pieces of work."""
        return {
            "epochs": sorted(self._used.items()),
            "asking": [(client, *epoch) for client, epoch in sorted(self.asking.items())],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what the clocks were."""
        self.asking = {client: (due, woke) for client, due, woke in state["asking"]}
        for client, used in state["epochs"]:
            epochs = self._arrivals.epochs(client)
            self._used[client] = sum(1 for _ in islice(epochs, used))
            self._epochs[client] = epochs


class VirtualRun:
    """One run under the virtual clock; state: where it resumes (see `state` and `moment`), None: at
    its start.
    """

    def __init__(
        self,
        server_loop: ServerLoop,
        host: Executor,
        timing: Timing,
        scoring: Scoring,
        hooks: LoopHooks | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._server_loop, self._host, self._timing = server_loop, host, timing
        self._scoring, self._hooks, self._resumed = scoring, hooks or LoopHooks(), state
        self._events: EventQueue[Any] = EventQueue()
        self._clients = _ClientClocks(timing.arrivals)
        self._now = self._busy_until = 0.0
        self._within_a_round = False
        seconds = server_loop.budget.seconds
        self._limit = math.inf if seconds is None else seconds

    def run(self) -> None:
        """Run until a budget ends it, `stop` is set, or nothing is left to happen."""
        try:
            self._run()
        except Stalled:
            # a client that does not answer may have sent something, and would be waited for once
            # more
            if self._server_loop.privacy_filter.of_uploads:
                self._server_loop.privacy_filter.give_up()
            raise
        except BaseException:
            self._charge_what_was_sent()
            raise

    def _run(self) -> None:
        if self._resumed is None:
            self._begin()
            self._evaluate()
            self._server_loop.report()
        elif "events" in self._resumed:
            self._resume_moment(self._resumed)
        else:
            self._resume_round(self._resumed)
        while self._goes_on():
            self._now, event = self._events.pop()
            self._happen(event, self._now)
        self._finish()

    def state(self) -> dict[str, Any]:
        """Return what a run of rounds needs to continue, beside its server's state: asked for in
        `updated`.
        """
        return {
            "time": self._now,
            "busy_until": self._busy_until,
            "works": sorted(self._clients.works.items()),
            "status": self._server_loop.account(),
            "stopped": self._hooks.stop.is_set(),
        }

    def moment(self) -> dict[str, Any]:
        """Return all that any run needs to continue between two events, beside its roles.

        Asked for in `tick` or `stopped`. Uploads that are computed elsewhere are waited for: they
        are messages under way.
        """
        events = {"events": self._events.change(self._with_upload)}
        return (
            self.state()
            | events
            | self._clients.state()
            | {"services": self._server_loop.services()}
        )

    def _with_upload(self, event: Any) -> Any:
        if type(event) is not Arrival or event.upload:
            return event
        return event._replace(handle=None, upload=self._host.result(event.handle))

    def _resume_moment(self, state: Mapping[str, Any]) -> None:
        """Become what a run was at a moment."""
        self._now, self._busy_until = state["time"], state["busy_until"]
        self._clients.works = Counter(dict(state["works"]))
        self._clients.restore(state)
        for time, event in state["events"]:
            self._events.add(time, event)
        self._server_loop.restore(state["status"], state["services"], lost=not state["stopped"])

    def _resume_round(self, state: Mapping[str, Any]) -> None:
        """Resume after a round: send the orders of the next one, which the state counts as sent."""
        self._now = state["time"]
        self._busy_until = state["busy_until"]
        self._clients.works = Counter(dict(state["works"]))
        for order in self._server_loop.restart(
            state["status"], lost=not state.get("stopped", False)
        ):
            self._send(order, self._busy_until)
        self._evaluate_if_due()

    def _begin(self) -> None:
        for order in self._server_loop.start(0.0):
            self._send(order, 0.0)

    def _happen(self, event: Any, time: float) -> None:
        (self._deliver if type(event) is Delivery else self._serve)(event, time)

    def _goes_on(self) -> bool:
        if self._hooks.stop.is_set() and not self._within_a_round:
            if self._server_loop.stop_reason is None:
                self._hooks.stopped()
            self._server_loop.stop(USER)
        if not self._events:
            self._server_loop.stop(NOBODY_WAKES)
        elif self._events.next_time() > self._limit:
            self._server_loop.stop_at_time()
        return self._server_loop.stop_reason is None

    def _send(self, order: Order, at: float) -> None:
        """Send an order; work that need not wait for the client's next epoch begins at once, beside
        others'.
        """
        size, network = order.body.wire_bytes, self._timing.network
        if order.request_bytes is not None:
            called = at + network.downlink(order.client, 0)
            at = called + network.uplink(order.client, order.request_bytes)
            self._server_loop.requested(order, called, at, order.request_bytes)
        arrives = at + network.downlink(order.client, size)
        self._server_loop.sent(order, at, arrives, size)
        self._events.add(
            arrives, Delivery(order, self._host.submit(order) if order.start_immediately else None)
        )

    def _deliver(self, event: Delivery, now: float) -> None:
        """The client applies the order and starts its next work; the upload's arrival is known
        already.
        """
        order, client = event.order, event.order.client
        if order.is_query:
            self._work(order, self._host.submit(order), now, now, now)
            return
        if not order.asks:
            self._server_loop.applied(client, now)
        handle = event.handle if order.start_immediately else self._host.submit(order)
        # this answers the request: the activation continues
        if asked := self._clients.asking.pop(client, None):
            self._work(order, handle, now, *asked)
            return
        start_immediately = order.start_immediately or self._timing.arrivals.closed_loop
        due = now if start_immediately else self._clients.next_epoch(client)
        if due is None:
            return
        woke = max(due, now)
        if order.asks:
            self._clients.asking[client] = due, woke
        self._work(order, handle, woke, due, woke)

    def _work(self, order: Order, handle: Any, begins: float, due: float, woke: float) -> None:
        """Plan the arrival of the upload that comes of an order whose work begins then; see
        `Activation`.
        """
        client, sent, timing = order.client, begins, self._timing
        if not (order.is_query or order.asks):
            sent += timing.compute.of(client, self._clients.next_work(client))
        size, upload = order.upload_bytes, None
        if size is None and timing.network.needs_size(client):
            upload = self._host.result(handle)
            size = upload.body.wire_bytes
        arrives = sent + timing.network.uplink(client, size or 0)
        how = Activation(due, woke, due < woke, sent)
        self._events.add(arrives, Arrival(client, handle, upload, how, size))

    def _serve(self, event: Arrival, now: float) -> None:
        client, handle, early, how, promised = event
        upload, server_loop = early or self._host.result(handle), self._server_loop
        size = upload.body.wire_bytes
        if promised is not None and promised != size:
            server_loop.unserved(upload)
            raise RunError(f"client {client} sent {size} bytes where its order promised {promised}")
        delay = 0.0 if upload.is_query else self._timing.service.of(0, server_loop.uploads)
        done, before = max(now, self._busy_until) + delay, server_loop.updates
        if done > self._limit:
            server_loop.stop_at_time()
            server_loop.unserved(upload)
            return
        self._busy_until = done
        orders = server_loop.serve(upload, how, now, lambda: done, size)
        updates = server_loop.updates
        updated = updates > before
        self._within_a_round = not (updated or server_loop.server.answers)
        if updated:
            self._hooks.updated()
        for order in orders:
            self._send(order, done)
        if updated and updates % self._scoring.every == 0 and server_loop.stop_reason is None:
            self._evaluate()
        self._served(event.client)
        self._hooks.tick()
        self._server_loop.report()

    def _served(self, client: int) -> None:
        """A client's round trip is over as far as the server is concerned."""

    def _evaluate_if_due(self) -> None:
        if self._server_loop.updates % self._scoring.every == 0:
            self._evaluate()
            self._server_loop.report()

    def _evaluate(self) -> None:
        # the model is what it is when the last service is done, not when its upload came
        self._server_loop.evaluated(
            self._scoring.score(), max(self._now, self._busy_until), report=False
        )

    def _finish(self) -> None:
        """Deliver the answers still on their way, so that the final models hold every release, and
        evaluate.
        """
        over = self._over()
        while self._events:
            time, event = self._events.pop()
            self._charge_if_sent(event, over)
            if isinstance(event, Delivery) and not (event.order.is_query or event.order.asks):
                self._now = time
                self._server_loop.applied(event.order.client, time)
                if not event.order.start_immediately:
                    self._host.submit(event.order)
        self._server_loop.close()
        self._evaluate()
        self._hooks.tick()
        self._server_loop.report()

    def _over(self) -> float:
        return max(self._now, self._busy_until, self._server_loop.time)

    def _charge_if_sent(self, event: Any, over: float) -> None:
        """Account for an upload that was on its way when the run was over."""
        if (
            isinstance(event, Arrival)
            and self._server_loop.privacy_filter.of_uploads
            and event.how.sent <= over
        ):
            self._server_loop.unserved(event.upload or self._host.result(event.handle))

    def _charge_what_was_sent(self) -> None:
        """Account for the uploads on their way when the run broke off; one that cannot be had
        leaves no account.
        """
        over = self._over()
        try:
            while self._events:
                self._charge_if_sent(self._events.pop()[1], over)
        except Exception:  # the run has an error of its own, which is raised
            self._server_loop.privacy_filter.give_up()
