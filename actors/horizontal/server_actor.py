"""The server actor of horizontal runs: the server's role, its loop, the record and, in virtual time, the whole run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from actors.device import claim_device
from actors.horizontal.client_group_pool import ClientGroupPool, PoolExecutor
from actors.ledger_client import RelayedLedger
from actors.remote import get
from actors.report_barrier import ReportPort
from actors.transport.hosts import HostConversation
from actors.transport.port import TransportPort
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.model_evaluator import ModelEvaluator, SnapshotWriter, WeightsEvaluator
from raydpzv.experiment.run_horizontal import (
    OWN_MODELS,
    checkpoint_of,
    resume_server,
    virtual_run,
    warm_up,
)
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.privacy.release import Spent
from raydpzv.records.checkpoint import Checkpoint, Piece
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.segments.pull_segment import PullLeg
from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import USER, Activation, Status
from raydpzv.sim.pull import PullServerLoop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import VirtualRun
from raydpzv.sim.wall import LegBegin


class HorizontalServerActor(ReportPort, TransportPort):
    """Plain class; `actors.vertical.actor_set` wraps it.

    Uploads are served in the threads of their sockets, or as calls in the default concurrency group. Control calls have
    a group of their own and answer meanwhile. Looks at the model wait for a host, in a third group. Checkpoints under
    the wall clock have a fourth.
    """

    CONTROL = (
        "status",
        "drain",
        "stop",
        "spent",
        "note_loss",
        "note_clocks",
        "written",
        *TransportPort.TRANSPORT_CALLS,
        *ReportPort.CALLS,
    )
    LOOKING = ("look", "show", "next_piece")
    KEEPING = ("keep_leg",)

    def __init__(self, prepared: PreparedHorizontal) -> None:
        ReportPort.__init__(self)
        self._timeout = prepared.spec.resources.timeout
        TransportPort.__init__(self, partial(HostConversation, self), self._timeout)
        claim_device(0.0)
        self._prepared, self.separate = prepared, prepared.separate
        self._privacy_filter = prepared.privacy_filter()
        self._recorder = Recorder(epsilons=self._privacy_filter.epsilons)
        self._pieces: list[Piece] = []
        self._lock = threading.Lock()
        # with noise of the system's a round that no checkpoint knows of is a release that no account knows of
        self._holds = prepared.setting is not None and not prepared.releases_again
        self._piece, self._written = threading.Event(), threading.Event()
        self._stopping, self._over = threading.Event(), False
        self._hosts: PoolExecutor | None = None
        self._wall: PullServerLoop | None = None
        self._leg: PullLeg | None = None
        self._parameters: np.ndarray | None = None
        self._drift: tuple[float, float] | None = None
        self._evaluated = 0

    def device(self) -> str:
        """Return where the server computes; a host's greeting."""
        return "cpu"

    def begin(self, ledger: Any | None, checkpoint: Checkpoint | None, *, keeps: bool) -> None:
        """Take up the state of the run: its start, or a checkpoint's; the ledger actor is open already.

        keeps: checkpoints are wanted.
        """
        prepared, self._checkpoint = self._prepared, checkpoint
        self._ledger: RelayedLedger | None = None
        self._server: Any
        if ledger is None:
            self._server = prepared.server()
        else:
            self._ledger = RelayedLedger(ledger, prepared.plan.header(), self._timeout)
            self._ledger.adopt()
            self._server = prepared.server(self._ledger)
        if checkpoint:
            resume_server(self._server, checkpoint)
        self._server_loop = ServerLoop(
            *(self._server, self._privacy_filter, self._recorder, prepared.budget(), self._gate),
        )
        self._pace = prepared.pace() if keeps else None

    def run_virtual(self, pool: ClientGroupPool) -> None:
        """Run the whole virtual-time loop."""
        prepared = self._prepared
        self._hosts = PoolExecutor(
            *(pool, self._peers(pool.actors, self._timeout, "host")),
            lean=not prepared.separate,
            pinned=prepared.pinned,
            noted=self.note_loss,
            drifts=prepared.drifts,
        )
        server = self._server
        self._see(self._hosts if prepared.seeded else WeightsEvaluator(prepared, server, "cpu"))
        run = virtual_run(
            prepared,
            self._server_loop,
            self._hosts,
            self._view,
            self._checkpoint,
            stop=self._stopping,
            tick=lambda: self._ticked(run),
            updated=lambda: self._updated(run),
            stopped=lambda: self._stopped(run),
        )
        try:
            run.run()
        finally:
            self._over = True
        self._parameters = self._view.state(self._server_loop.updates)[0]
        if prepared.separate:
            self._drift = self._hosts.drift(self._server_loop.updates)
        self._hosts.finish()
        self.close_transport()

    def warm_up(self) -> None:
        """Let throw-away parties make a run's first updates here, so that what compiles is no service's."""
        warm_up(self._prepared, "cpu")

    def bring_leg(self) -> None:
        """Bring rows and accounts to where a leg begins under the wall clock."""
        assert self._ledger is not None
        self._leg = PullLeg(self._server_loop, self._recorder, self._checkpoint)
        self._leg.bring(self._ledger, accounted=self._prepared.setting is not None)
        self._evaluated = self._leg.place.evaluated // self._prepared.spec.evaluate.every

    def leg(self) -> LegBegin:
        """Return where the leg begins."""
        return self._begun().place

    def keep_leg(self, *, due: bool) -> None:
        """Take a checkpoint from which the next leg can begin (wall clock), if it is `due` or the time has come."""
        pace, loop = self._pace, self._server_loop
        if pace is None or not (due or self._due()):
            return
        pace.begin()
        with self._open().halted() as now:
            stopped = due and loop.stop_reason == USER  # all hosts have handed in what they had
            piece = self._recorder.drain(), self._begun().take(now, stopped=stopped)
            with self._lock:
                self._pieces.append(piece)
        loop.checkpointed(pace.taken(loop.updates, 0))

    def open_wall(self, origin: float, host: Any) -> None:
        """Open for hosts under the wall clock, for a leg that was brought here; the model is looked at in `host`."""
        self._begun().begin(origin)
        service = self._prepared.timing.service
        self._wall = PullServerLoop(self._server_loop, WallClock(origin), lambda which: service.of(0, which))
        self._see(_GroupEvaluator(host, self._timeout))

    def show(self, host: Any) -> None:
        """Look at the model in another host from now on: the one before was lost."""
        self._see(_GroupEvaluator(host, self._timeout))

    def wake(self, client: int) -> Order | None:
        """Return what a client is to work at; None: the run is over."""
        return self._open().wake(client)

    def exchange(self, upload: Upload, how: Activation) -> bool:
        """Serve one upload; tell whether the run goes on."""
        return self._open().exchange(upload, how)

    def look(self, now: bool = False) -> None:
        """Evaluate if it is due (or `now`), and keep a snapshot if one is due (wall clock)."""
        due = self._server_loop.updates // self._prepared.spec.evaluate.every
        if now or due > self._evaluated:
            self._open().evaluate(self._view.evaluate)
            self._evaluated = due
        self._snapshots.look(self._server_loop.updates)

    def parameters(self) -> np.ndarray:
        """Return the model after the last update, float32 [d]."""
        if self._parameters is None:  # wall clock
            self._parameters = self._view.state(self._server_loop.updates)[0]
        return self._parameters

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says of this runner's own matters."""
        facts: dict[str, Any] = {"host_calls": self._hosts.calls} if self._hosts else {}
        if self._drift:
            facts["drift"] = self._drift
        return facts | (self._pace.facts() if self._pace else {})

    def note_loss(self, host: int, done: str) -> None:
        """Record that a host was lost."""
        time = self._server_loop.status().time
        self._recorder.emit("fault", time=time, party=f"host {host}", kind="host lost", message=done)

    def note_clocks(self, offsets: Sequence[Mapping[str, Any]]) -> None:
        """Record how far clocks are from this machine's; offsets: rows of type `clock` but for their time."""
        time = self._server_loop.status().time
        for offset in offsets:
            self._recorder.emit("clock", time=time, **offset)

    def status(self) -> Status:
        """Return where the run stands."""
        return self._server_loop.status()

    def spent(self) -> Spent | None:
        """Return what was released so far: nothing."""
        return self._privacy_filter.spent()

    def drain(self, *, rest: bool = True) -> list[Piece]:
        """Return the rows since the last call; of rounds as far as a checkpoint goes with them, if any are taken.

        rest: also rows after the last one, of a run without rounds or one that is over.
        """
        pa.default_memory_pool().release_unused()  # what the calls before took: this one would take more beside it
        with self._lock:
            pieces, self._pieces = self._pieces, []
            if rest and (self._over or self._prepared.asynchronous or self._pace is None):
                pieces.append((self._recorder.drain(), None))
        return pieces

    def next_piece(self, seconds: float) -> None:
        """Wait until the loop holds for a checkpoint to be written, or so long."""
        if self._piece.wait(seconds):
            self._piece.clear()

    def written(self) -> None:
        """Go on: what was handed over is written."""
        self._written.set()

    def stop(self, reason: str) -> None:
        """End the run."""
        self._stopping.set()
        self._gate.go_on()
        if self._wall:
            self._wall.stop(reason)

    def _see(self, view: ModelEvaluator) -> None:
        self._view = view
        self._snapshots = SnapshotWriter(self._ledger, self._prepared.spec.record.snapshots, view)

    def _updated(self, run: VirtualRun) -> None:
        self._snapshots.look(self._server_loop.updates)
        if not self._prepared.asynchronous and self._due(now=self._stopping.is_set()):
            self._keep(run)

    def _ticked(self, run: VirtualRun) -> None:
        if self._prepared.asynchronous and self._due():
            self._keep(run)

    def _due(self, *, now: bool = False) -> bool:
        """Tell whether a checkpoint is due, or wanted now.

        After the last update there is nothing to go on with: a continuation would make one more.
        """
        loop, pace = self._server_loop, self._pace
        return pace is not None and loop.stop_reason is None and (now or pace.due(loop.updates))

    def _stopped(self, run: VirtualRun) -> None:
        if self._prepared.asynchronous:
            self._keep(run)
        # of others the last checkpoint was taken when the stop was seen
        elif self._privacy_filter.state():
            self._keep(run, Recorder().drain())  # rows since the last are of orders that are sent again

    def _keep(self, run: VirtualRun, rows: Rows | None = None) -> None:
        """Hand over rows (None: all so far), and that the run can go on after them; wait for that where it holds.

        That is after a round, or between two events of a run without rounds.
        """
        if (pace := self._pace) is None:
            return
        pace.begin()
        updates = self._server_loop.updates
        state = run.moment() if self._prepared.asynchronous else run.state()
        if self._prepared.drifts:
            assert self._hosts is not None
            state[OWN_MODELS] = self._hosts.models(updates)
        checkpoint = checkpoint_of(self._server, updates, state)
        self._written.clear()
        with self._lock:
            self._pieces.append((self._recorder.drain() if rows is None else rows, checkpoint))
        self._server_loop.checkpointed(pace.taken(updates, 0))
        if self._holds:
            self._piece.set()
            self._written.wait()

    def _begun(self) -> PullLeg:
        if self._leg is None:
            raise RuntimeError("no leg is begun: bring_leg comes first")
        return self._leg

    def _open(self) -> PullServerLoop:
        if self._wall is None:
            raise RuntimeError("the server is not open: open_wall comes first")
        return self._wall


class _GroupEvaluator:
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
