"""The host actor: many clients around one replica (or with models of their own), and its way
through the ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, cast

import numpy as np

from actors.device import claim_device
from actors.ledger_connection import LedgerRange
from actors.remote import get
from actors.transport import work
from actors.transport.hosts import HostConnection
from actors.transport.peers import TaskPort
from actors.transport.sockets import TransportAddress
from actors.transport.work import PROBES
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.methods.roles import ClientGroup, LedgerGroup, Metrics, Order, OwnModels, Upload
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import processed
from raydpzv.sim.pull import HostShare, PullLoop
from raydpzv.wire.messages import ClientModels, Packed, unpack


class ClientGroupActor(TaskPort):
    """Plain class; `actors.vertical.actor_set` wraps it. Its data is read in place from Ray's
    object store.

    Nothing is asked of it per client: a round is one piece of work here and one range from the
    ledger actor. `stop`, and looking at the newest model with a replica of its own, continue beside
    a long `run`.
    """

    CONTROL = ("stop",)
    LOOKING = ("look", "look_state")

    def __init__(self, prepared: PreparedHorizontal, gpus: float, ledger: Any | None) -> None:
        super().__init__()
        self._device = claim_device(gpus)
        self._prepared, self._ledger = prepared, ledger
        self._timeout = prepared.spec.resources.timeout
        self._range: LedgerRange | None = None
        self._client_group: ClientGroup
        if ledger is not None:
            self._range = LedgerRange(ledger, self._timeout)
        self._client_group = prepared.client_group(self._range, self._device)
        self._viewer: LedgerGroup | None = None
        self._stopping = threading.Event()
        self._loop: PullLoop | None = None

    def evaluate(self, version: int) -> Metrics:
        """Score the model at `version`, which is not before that of any order so far."""
        return self._prepared.held_out(self._device).scored(
            partial(cast(LedgerGroup, self._client_group).evaluate, version)
        )

    def state(self, version: int) -> np.ndarray:
        return cast(LedgerGroup, self._client_group).state(version)

    def drift(self, version: int) -> tuple[float, float]:
        """Return how far clients' own models are from the ledger's; see `OwnModels.drift`."""
        found = cast(OwnModels, self._client_group).drift(version)
        return found.largest, found.share

    def models(self, version: int) -> ClientModels:
        """Return what a checkpoint keeps of its clients, where their work has left them; see
        `OwnModels.models`.
        """
        return cast(OwnModels, self._client_group).models()

    def take_over(self, kept: Packed) -> None:
        """Restore its clients from a checkpoint."""
        cast(OwnModels, self._client_group).restore_models(cast(ClientModels, unpack(kept)))

    def warm_up(self) -> None:
        """Let throw-away parties make a run's first updates here, so that what compiles is no
        epoch's.
        """
        from raydpzv.experiment.run_horizontal import (
            warm_up,  # whole runs, which need what reports and folders need
        )

        warm_up(self._prepared, self._device)

    def greet(self, server: Any) -> None:
        """Call server and ledger once: a first call between two actors takes seconds."""
        get(server.device.remote(), self._timeout, "the server's greeting")
        assert self._ledger is not None
        get(self._ledger.ready.remote(), self._timeout, "the ledger's greeting")

    def run(self, origin: float, share: HostShare, server: TransportAddress) -> None:
        """Let the clients here live their own loops until the run is over (wall clock)."""
        clock, timing = WallClock(origin), self._prepared.timing
        with closing(HostConnection(server, self._timeout, share.part)) as port:
            self._loop = PullLoop(self._client_group, port, timing, clock, share)
            if not self._stopping.is_set():
                self._loop.run()

    def stop(self) -> None:
        self._stopping.set()
        if self._loop:
            self._loop.stop()

    def look(self, version: int) -> Metrics:
        """Score the model at `version` while the loop runs."""
        return self._prepared.held_out(self._device).scored(
            partial(self._looking().evaluate, version)
        )

    def look_state(self, version: int) -> np.ndarray:
        """Return the state at `version` while the loop runs."""
        return self._looking().state(version)

    def _task(self, frame: memoryview) -> Callable[[], Sequence[bytes]] | None:
        task = work.read_task(frame)
        if task is None:
            return None
        if task.probe:
            probe = {name: getattr(self, name) for name in PROBES}[task.probe]
            return lambda: work.probed(task.probe, probe(task.version))
        return lambda: work.uploads(self._process(task.orders))

    def _process(self, orders: Sequence[Order]) -> list[Upload]:
        if self._range:
            self._range.reach(max(order.round for order in orders) - 1)
        group = self._client_group
        return list(processed(group, orders) if self._prepared.measured else group.process(orders))

    def _looking(self) -> LedgerGroup:
        if self._viewer is None:
            assert self._ledger is not None
            history = LedgerRange(self._ledger, self._timeout)
            self._viewer = cast(LedgerGroup, self._prepared.client_group(history, self._device))
        return self._viewer
