"""What the server actors of vertical and horizontal runs share: a run's core behind the calls of
its driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from actors.device import claim_device
from actors.transport.port import TransportPort
from actors.transport.server import Talk
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.run_core import RunControls, RunCore, StopAt
from raydpzv.methods.roles import Metrics
from raydpzv.privacy.release import Spent
from raydpzv.records.checkpoint import Checkpoint, Piece
from raydpzv.records.store import Rows
from raydpzv.sim.interfaces import Status
from raydpzv.sim.wall import SegmentStart

Report = tuple[Status, Metrics]
"""Where the run stood at an evaluation, and the metrics."""


class ReportBarrier:
    """What a server's loop calls at each evaluation. It lets all pass until the driver asks for
    reports.
    """

    def __init__(self) -> None:
        self._asked = self._holds = False
        self._reports: list[Report] = []
        self._lock = threading.Lock()
        self._passes = threading.Event()

    def open(self, *, holds: bool) -> None:
        """Keep evaluations for the driver from now on.

        holds: whether the loop waits until the driver has read them. Under the wall clock it must
        not.
        """
        self._asked, self._holds = True, holds

    def __call__(self, status: Status, metrics: Metrics) -> None:
        """Hand over an evaluation, and wait until the driver lets the loop continue."""
        if not self._asked:
            return
        self._passes.clear()
        with self._lock:
            self._reports.append((status, metrics))
        if self._holds:
            self._passes.wait()

    def taken(self) -> list[Report]:
        """Return the evaluations since the last call."""
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def release(self) -> None:
        """Let the loop continue."""
        self._passes.set()


class PieceQueue:
    """A `Sink` that the driver empties: rows, and checkpoints each after its rows.

    waits: whether the run waits after a checkpoint until the driver has written it.
    """

    def __init__(self, *, waits: bool) -> None:
        self._pieces: list[Piece] = []
        self._held: Rows | None = None  # rows whose checkpoint is being taken
        self._lock = threading.Lock()
        self._waits, self._added, self._written = waits, threading.Event(), threading.Event()

    def hold(self, rows: Rows) -> None:
        with self._lock:
            self._held = rows

    def write_checkpoint(self, checkpoint: Checkpoint) -> int:
        """Take that checkpoint; the driver knows its size."""
        self._written.clear()
        with self._lock:
            assert self._held is not None
            self._pieces.append((self._held, checkpoint))
            self._held = None
        return 0

    def settle(self) -> None:
        """Wait until the checkpoint is written, if the run waits for that."""
        if self._waits:
            self._added.set()
            self._written.wait()

    def close(self) -> None:
        """Give up a checkpoint that broke off; its rows remain."""
        with self._lock:
            if self._held is not None:
                self._pieces.append((self._held, None))
                self._held = None

    def drain(self, rest: Callable[[], Rows] | None) -> list[Piece]:
        """Return what came since the last call; rest: drains the rows after the last checkpoint,
        None: not these.
        """
        with self._lock:
            pieces, self._pieces = self._pieces, []
            if rest is not None and self._held is None:
                pieces.append((rest(), None))
        return pieces

    def next_piece(self, seconds: float) -> None:
        """Return when the run waits for a checkpoint to be written, or after this time."""
        if self._added.wait(seconds):
            self._added.clear()

    def written(self) -> None:
        """Let the run continue: its checkpoint is written."""
        self._written.set()


class ServerActor(TransportPort):
    """Plain class; its children are wrapped by `actors.actor_process.start`.

    Uploads are served one at a time. Control calls, and checkpoints under the wall clock, have
    threads of their own.
    """

    CONTROL: tuple[str, ...] = (
        "status",
        "drain",
        "written",
        "stop",
        "spent",
        "note_clocks",
        "checkpoint_facts",
        "hear",
        "heard",
        "go_on",
        "close",
        "close_transport",
    )
    KEEPING = ("keep_segment",)
    core: RunCore
    """Set once the run starts (`begin`)."""

    def __init__(self, prepared: Prepared, gpus: float, talk: Talk) -> None:
        self._timeout = prepared.spec.resources.timeout
        super().__init__(talk, self._timeout)
        self._device = claim_device(gpus)
        self._queue = PieceQueue(waits=prepared.awaits_checkpoints)
        self._stopping, self._over = threading.Event(), False
        self._reports = ReportBarrier()

    def _controls(self, *, keeps: bool) -> RunControls:
        """Return how the driver steers the run; keeps: whether checkpoints are taken."""
        return RunControls(StopAt(self._stopping), self._reports, keeps)

    def segment_start(self) -> SegmentStart:
        """Return where the segment starts (wall clock)."""
        return self.core.segment.start

    def hear(self, holds: bool) -> None:
        """Keep evaluations for the driver from now on; holds: see `ReportBarrier`."""
        self._reports.open(holds=holds)

    def heard(self) -> list[Report]:
        """Return the evaluations since the last call."""
        return self._reports.taken()

    def go_on(self) -> None:
        """Continue after an evaluation that the driver has read."""
        self._reports.release()

    def status(self) -> Status:
        """Return where the run stands."""
        return self.core.status()

    def spent(self) -> Spent | None:
        """Return what was released so far."""
        return self.core.spent()

    def checkpoint_facts(self) -> dict[str, Any]:
        """Return what summary.json says about checkpoints, their writing apart."""
        return self.core.checkpoint_facts()

    def note_clocks(self, offsets: Sequence[Mapping[str, Any]]) -> None:
        """Record how far clocks are from this machine's; offsets: rows of type `clock` but for
        their time.
        """
        time = self.core.status().time
        for offset in offsets:
            self.core.recorder.emit("clock", time=time, **offset)

    def drain(self, *, rest: bool = True) -> list[Piece]:
        """Return the rows since the last call, and the checkpoints among them.

        rest: also the rows after the last checkpoint. Those of rounds wait for the next one until
        the run is over.
        """
        # of the calls before; this one would take more beside it
        pa.default_memory_pool().release_unused()
        core = self.core
        open_round = core.rounds and core.takes_checkpoints and not self._over
        return self._queue.drain(core.recorder.drain if rest and not open_round else None)

    def next_piece(self, seconds: float) -> None:
        """Return when the run waits for a checkpoint to be written, or after this time."""
        self._queue.next_piece(seconds)

    def written(self) -> None:
        """Let the run continue: its checkpoint is written."""
        self._queue.written()

    def stop(self, reason: str) -> None:
        """End the run."""
        self._stopping.set()
        self._reports.release()
        self.core.stop_wall(reason)

    def close(self) -> None:
        """End the connections of actors that live their own loops (wall clock)."""
        self.close_transport()

    def _run_core(self, host: Any) -> None:
        """Run the core under the virtual clock."""
        try:
            self.core.run_virtual(host)
        finally:
            self._over = True
            self._queue.close()
