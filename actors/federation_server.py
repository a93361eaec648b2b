"""The server actor of horizontal runs: the server's role, the desk, the record and, in virtual time, the whole loop."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from actors.crew_host import Crews, RayCrews
from actors.device import settle
from actors.history import RelayedLedger
from actors.host import get
from actors.transport import Wire, Work, pack_work, unpack_upload
from raydpzv.experiment.checkpoint import Checkpoint, Cut
from raydpzv.experiment.federation import Federation
from raydpzv.experiment.run_federation import checkpoint_of, resume_server, virtual_run
from raydpzv.experiment.view import ServerView, Snapshots, View
from raydpzv.methods.roles import Metrics
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.sim.clock import WallClock
from raydpzv.sim.desk import Desk
from raydpzv.sim.pull import PullDesk
from raydpzv.sim.terms import Activation, Spent, Status
from raydpzv.sim.virtual import VirtualRun

Piece = tuple[Rows, Checkpoint | None]
"""Rows, and where the run can go on after them."""


class FederationServer:
    """Plain class; `actors.cast` wraps it.

    Uploads are served in the default concurrency group; control calls have one of their own and answer meanwhile;
    looks at the model have a third, as they wait for a host.
    """

    CONTROL = ("status", "drain", "stop", "spent", "note_loss")
    LOOKING = ("look", "show")

    def __init__(self, federation: Federation) -> None:
        settle(0.0)
        self._federation = federation
        self._timeout = federation.spec.resources.timeout
        self._recorder = Recorder()
        self._guard = federation.guard()
        self._pieces: list[Piece] = []
        self._lock = threading.Lock()
        self._stopping, self._over = threading.Event(), False
        self._hosts: RayCrews | None = None
        self._wall: PullDesk | None = None
        self._evaluated = 0

    def device(self) -> str:
        """Return where the server computes; the first call that proves that it has come up."""
        return "cpu"

    def begin(self, ledger: Any | None, checkpoint: Checkpoint | None) -> None:
        """Take up the state of the run: its start, or a checkpoint's; the ledger actor is open already."""
        federation, self._checkpoint = self._federation, checkpoint
        self._ledger: RelayedLedger | None = None
        self._server: Any
        if ledger is None:
            self._server = federation.weight_server()
        else:
            self._ledger = RelayedLedger(ledger, federation.plan.header(), self._timeout)
            self._ledger.adopt()
            self._server = federation.seeded_server(self._ledger)
        if checkpoint:
            resume_server(self._server, checkpoint)
        self._desk = Desk(self._server, self._guard, self._recorder, federation.budget())
        self._cut = Cut(self._recorder, federation.spec.record.flush)

    def run_virtual(self, crews: Crews) -> None:
        """Run the whole virtual-time loop."""
        federation = self._federation
        self._hosts = RayCrews(
            crews, lean=not federation.separate, separate=federation.separate, noted=self.note_loss
        )
        server = self._server
        self._see(self._hosts if federation.seeded else ServerView(federation, server, "cpu"))
        run = virtual_run(
            federation,
            self._desk,
            self._hosts,
            self._view,
            self._checkpoint,
            stop=self._stopping,
            tick=lambda: None,
            updated=lambda: self._updated(run),
        )
        try:
            run.run()
        finally:
            self._over = True

    def open_wall(self, origin: float, host: Any) -> None:
        """Open for hosts under the wall clock; the model is looked at in `host`."""
        service = self._federation.timing.service
        self._wall = PullDesk(self._desk, WallClock(origin), lambda which: service.of(0, which))
        self._see(_HostView(host, self._timeout))

    def show(self, host: Any) -> None:
        """Look at the model in another host from now on: the one before was lost."""
        self._see(_HostView(host, self._timeout))

    def wake(self, client: int) -> tuple[int, int, Work | None] | None:
        """Return what a client is to work at: round, bytes and, if it keeps a model, its message; None: it is over."""
        order = self._open().wake(client)
        if order is None:
            return None
        message = pack_work([order], lean=False) if self._federation.separate else None
        return order.round, order.body.wire_bytes, message

    def exchange(self, upload: Wire, how: tuple[float, float, bool, float]) -> bool:
        """Serve one upload; tell whether the run goes on."""
        return self._open().exchange(unpack_upload(upload), Activation(*how))

    def look(self, now: bool = False) -> None:
        """Evaluate if it is due (or `now`), and keep a snapshot if one is due (wall clock)."""
        due = self._desk.updates // self._federation.spec.evaluate.every
        if now or due > self._evaluated:
            self._open().evaluate(self._view.evaluate)
            self._evaluated = due
        self._snapshots.look(self._desk.updates)

    def parameters(self) -> np.ndarray:
        """Return the model after the last update, float32 [d]."""
        x: np.ndarray = self._view.state(self._desk.updates)[0]
        return x

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says of this runner's own matters (virtual clock)."""
        if self._hosts is None:
            return {}
        facts: dict[str, Any] = {"host_calls": self._hosts.calls}
        if self._federation.separate:
            facts["drift"] = self._hosts.drift(self._desk.updates)
        return facts

    def note_loss(self, host: int, done: str) -> None:
        """Take down that a host was lost."""
        time = self._desk.status().time
        self._recorder.emit("fault", time=time, party=f"host {host}", kind="host lost", message=done)

    def status(self) -> Status:
        """Return where the run stands."""
        return self._desk.status()

    def spent(self) -> Spent | None:
        """Return what was released so far: nothing."""
        return self._guard.spent()

    def drain(self) -> list[Piece]:
        """Return the rows since the last call; those of rounds as far as there is a checkpoint that goes with them."""
        with self._lock:
            pieces, self._pieces = self._pieces, []
        if self._over or self._federation.asynchronous:
            pieces.append((self._recorder.drain(), None))
        return pieces

    def stop(self, reason: str) -> None:
        """End the run."""
        self._stopping.set()
        if self._wall:
            self._wall.stop(reason)

    def _see(self, view: View) -> None:
        self._view = view
        self._snapshots = Snapshots(self._ledger, self._federation.spec.record.snapshots, view)

    def _updated(self, run: VirtualRun) -> None:
        self._snapshots.look(self._desk.updates)
        # after the last update there is nothing to go on with: a continuation would make one more
        rounds_go_on = not self._federation.asynchronous and self._desk.stop_reason is None
        if rounds_go_on and (self._cut.due() or self._stopping.is_set()):
            piece = self._cut.rows(), checkpoint_of(self._server, self._desk.updates, run.state())
            with self._lock:
                self._pieces.append(piece)

    def _open(self) -> PullDesk:
        if self._wall is None:
            raise RuntimeError("the server is not open: open_wall comes first")
        return self._wall


class _HostView:
    """Looks at the model in a host actor whose loop runs."""

    def __init__(self, host: Any, timeout: float) -> None:
        self._host, self._timeout = host, timeout

    def evaluate(self, version: int) -> Metrics:
        """Score the model on the held-out rows."""
        metrics: Metrics = get(self._host.look.remote(version), self._timeout, "an evaluation")
        return metrics

    def state(self, version: int) -> np.ndarray:
        """Return parameters and momentum, if there is one."""
        state: np.ndarray = get(self._host.look_state.remote(version), self._timeout, "the model")
        return state
