"""The host actor: many clients around one replica (or with models of their own), and its way through the ledger."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from actors.device import settle
from actors.history import Range
from actors.host import get
from actors.transport import Wire, Work, known_tail, pack_upload, unpack_work
from raydpzv.experiment.federation import Federation
from raydpzv.experiment.run_federation import warm_up
from raydpzv.methods.decomfl_clients import Following, SeparateClients
from raydpzv.methods.roles import Crew, Metrics, Order, Upload
from raydpzv.sim.clock import WallClock
from raydpzv.sim.pull import PullLoop
from raydpzv.sim.terms import Activation


class CrewActor:
    """Plain class; `actors.cast` wraps it. Its data is the federation's, read in place from Ray's object store.

    Nothing is asked of it per client: a round is one `perform` here and one range from the ledger actor. `stop`, and
    looking at the newest model with a replica of its own, go on beside a long `run`.
    """

    CONTROL = ("stop",)
    LOOKING = ("look", "look_state")

    def __init__(self, federation: Federation, gpus: float, ledger: Any | None) -> None:
        self._device = settle(gpus)
        self._federation, self._ledger = federation, ledger
        self._timeout = federation.spec.resources.timeout
        self._range: Range | None = None
        self._crew: Crew
        if ledger is None:
            self._crew = federation.weight_crew(self._device)
        else:
            self._range = Range(ledger, self._timeout)
            self._crew = federation.seeded_crew(self._range, self._device)
        self._viewer: Following | None = None
        self._stopping = threading.Event()
        self._loop: PullLoop | None = None

    def device(self) -> str:
        """Return where this actor computes; the first call that proves that it has come up."""
        return self._device

    def perform(self, work: Work) -> list[Wire]:
        """Do what the orders ask for; uploads in their order."""
        orders = unpack_work(work)
        if self._range:
            self._range.reach(max(order.round for order in orders) - 1)
        return [pack_upload(upload) for upload in self._crew.perform(orders)]

    def evaluate(self, version: int) -> Metrics:
        """Score the model at `version`, which is not before that of any order so far."""
        return self._following().evaluate(version, *self._federation.held_out(self._device))

    def state(self, version: int) -> np.ndarray:
        """Return parameters and momentum, if there is one, at `version`: float32 [1 or 2, d]."""
        return self._following().state(version)

    def drift(self, version: int) -> tuple[float, float]:
        """Return how far clients' own models are from the ledger's; see `SeparateClients.drift`."""
        assert isinstance(self._crew, SeparateClients)
        found = self._crew.drift(version)
        return found.largest, found.share

    def warm_up(self) -> None:
        """Do a piece of work that nobody uses, so that compilation does not count as the first round trip."""
        warm_up(self._crew)

    def greet(self, server: Any) -> None:
        """Call server and ledger once: a first call between two actors takes seconds."""
        get(server.device.remote(), self._timeout, "the server's greeting")
        assert self._ledger is not None
        get(self._ledger.ready.remote(), self._timeout, "the ledger's greeting")

    def run(self, server: Any, origin: float, part: int, parts: int, replaces: bool) -> None:
        """Let the clients m with m mod `parts` = `part` live their own loops until the run is over (wall clock).

        replaces: in place of a host that was lost; epochs before now are not made up.
        """
        clock = WallClock(origin)
        self._loop = PullLoop(
            self._crew,
            ServerPort(server, self._timeout),
            self._federation.timing,
            clock,
            part=part,
            parts=parts,
            begins=clock.now() if replaces else 0.0,
        )
        if not self._stopping.is_set():
            self._loop.run()

    def stop(self) -> None:
        """Leave the loop at the next opportunity."""
        self._stopping.set()
        if self._loop:
            self._loop.stop()

    def look(self, version: int) -> Metrics:
        """Score the model at `version` while the loop runs."""
        return self._looking().evaluate(version, *self._federation.held_out(self._device))

    def look_state(self, version: int) -> np.ndarray:
        """Return the state at `version` while the loop runs."""
        return self._looking().state(version)

    def _following(self) -> Following:
        assert isinstance(self._crew, Following)
        return self._crew

    def _looking(self) -> Following:
        if self._viewer is None:
            assert self._ledger is not None
            history = Range(self._ledger, self._timeout)
            self._viewer = self._federation.seeded_crew(history, self._device)
        return self._viewer


class ServerPort:
    """A host's way to the server actor under the wall clock: two calls per activation."""

    def __init__(self, server: Any, timeout: float) -> None:
        self._server, self._timeout = server, timeout

    def wake(self, client: int) -> Order | None:
        """Return what the client is to work at; None: the run is over."""
        answer = get(
            self._server.wake.remote(client), self._timeout, f"the server's answer to client {client}"
        )
        if answer is None:
            return None
        round, size, work = answer
        return unpack_work(work)[0] if work else known_tail(client, round, size)

    def exchange(self, upload: Upload, how: Activation) -> bool:
        """Hand in an upload; tell whether the run goes on."""
        details = (how.due, how.woke, how.late, how.sent)
        reference = self._server.exchange.remote(pack_upload(upload), details)
        return bool(get(reference, self._timeout, f"the server to take the upload of client {upload.client}"))
