"""The server actor: holds the server's role and, with the virtual clock, the whole loop."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from actors.device import settle
from actors.host import RayHost
from actors.transport import Wire, pack_order, unpack_upload
from raydpzv.experiment.build import Experiment
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.sim.clock import WallClock
from raydpzv.sim.desk import Desk
from raydpzv.sim.host import Host, LocalHost, split_score
from raydpzv.sim.terms import Activation, Spent, Status
from raydpzv.sim.virtual import VirtualRun
from raydpzv.sim.wall import Answer, WallDesk


class ServerActor:
    """Plain class; `actors.execute` wraps it.

    Uploads are served in the default concurrency group, one at a time; control calls have a group of their own
    and answer while a service or the virtual loop runs; clients that wait for a barrier wait in a third.
    """

    CONTROL = ("status", "drain", "stop", "evaluate", "spent")
    WAITING = ("wait",)

    def __init__(self, experiment: Experiment, gpus: float) -> None:
        self._device = settle(gpus)
        self._experiment = experiment
        self._recorder = Recorder(experiment.skipped_rows())
        self._guard = experiment.guard()
        self._role = experiment.server.make(self._device)
        self._desk = Desk(self._role, self._guard, self._recorder, experiment.budget())
        self._stopping = threading.Event()
        self._wall: WallDesk | None = None
        self._local = [recipe.make(self._device) for recipe in experiment.clients]

    def device(self) -> str:
        """Return where the server computes; the first call that proves that it has come up."""
        return self._device

    def run_virtual(self, actors: Mapping[int, Any]) -> None:
        """Run the whole virtual-time loop; clients without an actor live here."""
        spec = self._experiment.spec
        host: Host = RayHost(actors, spec.resources.timeout) if actors else LocalHost(self._local)
        VirtualRun(
            self._desk,
            host,
            self._experiment.timing,
            score=split_score(self._role, host, spec.split.clients),
            evaluate_every=spec.evaluate.every,
            stop=self._stopping,
        ).run()

    def warm_up(self, upload: Wire) -> None:
        """Let a throw-away server serve an upload, so that first-call costs do not count as a service."""
        self._experiment.server.make(self._device).receive(unpack_upload(upload))

    def first_order(self) -> Wire:
        """Return what a throw-away server would open with (for warming up)."""
        return pack_order(self._experiment.server.make(self._device).open()[0])

    def open_wall(self, origin: float) -> None:
        """Open for clients under the wall clock."""
        timing, clients = self._experiment.timing, self._experiment.spec.split.clients
        self._wall = WallDesk(
            self._desk, WallClock(origin), lambda which: timing.service.of(0, which), clients
        )

    def first(self, client: int) -> tuple[Wire | None, bool]:
        """Return a client's first order."""
        return _packed(self._open().first(client))

    def exchange(
        self, upload: Wire, how: tuple[float, float, bool, float], applied: float
    ) -> tuple[Wire | None, bool]:
        """Serve one upload."""
        return _packed(self._open().exchange(unpack_upload(upload), Activation(*how), applied))

    def wait(self, client: int, seconds: float) -> tuple[Wire | None, bool]:
        """Wait for an order for this client."""
        return _packed(self._open().wait(client, seconds))

    def finish(self, client: int, applied: float) -> None:
        """Note when a client's last answer was applied."""
        self._open().finish(client, applied)

    def evaluate(self, uploads: list[Wire]) -> None:
        """Score held-out embeddings, in client order."""
        self._open().evaluate([unpack_upload(u) for u in uploads])

    def close(self) -> None:
        """Take down what was left open (wall clock)."""
        self._open().close()

    def status(self) -> Status:
        """Return where the run stands."""
        return self._desk.status()

    def drain(self) -> Rows:
        """Return the rows since the last call."""
        return self._recorder.drain()

    def spent(self) -> Spent | None:
        """Return what was released so far."""
        return self._guard.spent()

    def stop(self, reason: str) -> None:
        """End the run."""
        self._stopping.set()
        if self._wall:
            self._wall.stop(reason)

    def parameters(self) -> np.ndarray:
        """Return the head's parameters."""
        return self._role.parameters()

    def local_parameters(self, client: int) -> np.ndarray:
        """Return the parameters of a client that lives here."""
        return self._local[client].parameters()

    def _open(self) -> WallDesk:
        if self._wall is None:
            raise RuntimeError("the server is not open: open_wall comes first")
        return self._wall


def _packed(answer: Answer) -> tuple[Wire | None, bool]:
    return (pack_order(answer.order) if answer.order else None), answer.over
