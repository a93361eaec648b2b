"""What every run does, wherever its parties are: serve, take the checkpoints that are due, stop,
and report facts.

A run in this process and a server actor hold one `RunCore` each. They differ in the sink: rows and
checkpoints go to a `RowWriter` here, to a queue that the driver empties on Ray. What vertical and
horizontal runs do differently is in `run_vertical` and `run_horizontal`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from raydpzv.experiment.prepare import Prepared
from raydpzv.ledger.ledger import Ledger, ledger_facts
from raydpzv.methods.roles import Server
from raydpzv.privacy.release import Spent
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import Rows
from raydpzv.segments.run_segments import RunSegment
from raydpzv.sim.client_threads import Loop
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import Executor
from raydpzv.sim.interfaces import USER, Evaluated, Status, unheard
from raydpzv.sim.pull import PullServerLoop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import LoopHooks, VirtualRun
from raydpzv.sim.wall import LockedServerLoop, SavedClient


class Sink(Protocol):
    """Where a run's checkpoints go, each with the rows before it."""

    def hold(self, rows: Rows) -> None:
        """Take rows that a checkpoint follows."""
        ...

    def write_checkpoint(self, checkpoint: Checkpoint) -> int:
        """Take that checkpoint; return its bytes, 0 where they are not known yet."""
        ...

    def settle(self) -> None:
        """Wait until the checkpoint is written, where the run must not make an update before."""
        ...


class StopAt:
    """Ends a run under the virtual clock when `stop` is set, or after so many updates."""

    def __init__(self, stop: threading.Event, until: int | None = None) -> None:
        self._stop, self._until, self._reached = stop, until, False

    def count(self, updates: int) -> None:
        """Note how many updates the run has made."""
        self._reached = self._until is not None and updates >= self._until

    def is_set(self) -> bool:
        return self._reached or self._stop.is_set()


@dataclass(frozen=True)
class RunControls:
    """How a run is steered from outside.

    evaluated: called at each evaluation. keeps: whether checkpoints are taken. keep_evaluated:
    whether one is taken at each evaluation, too.
    """

    stop: StopAt
    evaluated: Evaluated = unheard
    keeps: bool = False
    keep_evaluated: bool = False


@dataclass(frozen=True)
class RunParts:
    """What a run's loop works with: its ledger, if it keeps one, where checkpoints go, and how it
    is steered.

    checkpoint: where the run resumes; None: at its start.
    """

    ledger: Ledger | None
    sink: Sink
    controls: RunControls
    checkpoint: Checkpoint | None


class RunCore(ABC):
    """One run's server loop with its privacy account, rows and checkpoints. server: keeps the
    ledger, if any.
    """

    rounds = False
    """Whether checkpoints are taken after rounds; else they are taken between two events."""

    segment: RunSegment
    """Under the wall clock: the segment that runs here, since `bring_segment`."""
    wall: LockedServerLoop | PullServerLoop
    """Under the wall clock: the server's loop, since `open_wall`."""
    clock: WallClock | None = None
    """Under the wall clock: the run's clock, since `open_wall`."""

    def __init__(self, prepared: Prepared, server: Server, parts: RunParts) -> None:
        controls = parts.controls
        self._sink, self._controls = parts.sink, controls
        self._ledger, self._checkpoint = parts.ledger, parts.checkpoint
        self._every = prepared.spec.evaluate.every
        self.privacy_filter = prepared.privacy_filter()
        self.recorder = Recorder(
            prepared.skipped_rows(), self.privacy_filter.epsilons, prepared.age_window
        )
        self.server_loop = ServerLoop(
            server, self.privacy_filter, self.recorder, prepared.budget(), controls.evaluated
        )
        self._policy = prepared.checkpoint_policy() if controls.keeps else None

    def status(self) -> Status:
        """Return where the run stands."""
        return self.server_loop.status()

    def spent(self) -> Spent | None:
        """Return what was released so far."""
        return self.privacy_filter.spent()

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says about the ledger and the checkpoints."""
        return ledger_facts(self._ledger) | self.checkpoint_facts()

    def checkpoint_facts(self) -> dict[str, Any]:
        """Return what summary.json says about the checkpoints."""
        return self._policy.facts() if self._policy else {}

    @property
    def takes_checkpoints(self) -> bool:
        """Whether checkpoints are taken."""
        return self._policy is not None

    def stop_wall(self, reason: str) -> None:
        """End the run under the wall clock, if it is open."""
        if self.clock:
            self.wall.stop(reason)

    def run_virtual(self, host: Executor, tick: Callable[[], None] = lambda: None) -> None:
        """Run under the virtual clock. host: does the clients' work; tick: called after every
        service.
        """

        def ticked() -> None:
            tick()
            now = self._controls.keep_evaluated and self.server_loop.report_pending
            if not self.rounds and self._due(now=now):
                self._keep(run)

        def updated() -> None:
            updates, controls = self.server_loop.updates, self._controls
            self._updated(updates)
            controls.stop.count(updates)
            evaluated = controls.keep_evaluated and updates % self._every == 0
            if self.rounds and self._due(now=evaluated or controls.stop.is_set()):
                self._keep(run)

        def stopped() -> None:
            if not self.rounds:
                if self._policy:
                    self._keep(run)
            # of rounds the last checkpoint was taken when the stop was seen
            elif self._policy and self.privacy_filter.state():
                # rows since then are of orders that are sent again
                self._keep(run, Recorder().drain())

        if self._checkpoint:
            self._controls.stop.count(self._checkpoint.round)
        run = self._virtual_run(host, LoopHooks(self._controls.stop, ticked, updated, stopped))
        run.run()

    def keep_segment(
        self, saved: Callable[[], Sequence[SavedClient]] = lambda: (), *, due: bool = False
    ) -> None:
        """Take a checkpoint from which the next segment can start (wall clock), if it is `due` or
        the time has come.

        saved: asked for the clients' states. Nothing is served meanwhile, so that all parties are
        at one moment.
        """
        policy = self._policy
        if policy is None or not (due or self._due()):
            return
        policy.begin()
        with self.wall.halted() as under_way:
            stopped = due and self.server_loop.stop_reason == USER
            checkpoint = self._segment_checkpoint(under_way, saved, stopped=stopped)
            self._sink.hold(self.recorder.drain())
        size = self._sink.write_checkpoint(checkpoint)
        self.server_loop.checkpointed(policy.taken(checkpoint.round, size))

    def _keep(self, run: VirtualRun, rows: Rows | None = None) -> None:
        """Hand over rows (None: all so far) and a checkpoint from which the run can resume after
        them.
        """
        policy = self._policy
        assert policy is not None
        self._sink.hold(self.recorder.drain() if rows is None else rows)
        policy.begin()  # rows become columns, and many of them a part, without checkpoints, too
        updates = self.server_loop.updates
        size = self._sink.write_checkpoint(self._virtual_checkpoint(run))
        self.server_loop.checkpointed(policy.taken(updates, size))
        self._sink.settle()

    def _due(self, *, now: bool = False) -> bool:
        """Return whether a checkpoint is due, or wanted now.

        After the last update there is nothing to resume: a continuation would make one more.
        """
        loop, policy = self.server_loop, self._policy
        return policy is not None and loop.stop_reason is None and (now or policy.due(loop.updates))

    def _updated(self, updates: int) -> None:  # noqa: B027  (most runs have nothing to do)
        """Note an update of the model under the virtual clock, before new orders are sent."""

    @abstractmethod
    def _virtual_run(self, host: Executor, hooks: LoopHooks) -> VirtualRun:
        """Return the run under the virtual clock, its roles restored to the checkpoint."""

    @abstractmethod
    def _virtual_checkpoint(self, run: VirtualRun) -> Checkpoint:
        """Return where the run can resume under the virtual clock."""

    @abstractmethod
    def open_wall(self, clock: WallClock) -> Any:
        """Start the segment and open the server's loop for clients under the wall clock."""

    @abstractmethod
    def _segment_checkpoint(
        self, under_way: Any, saved: Callable[[], Sequence[SavedClient]], *, stopped: bool
    ) -> Checkpoint:
        """Return where the next segment can start; stopped: nothing more can be under way."""


class LocalParties(ABC):
    """The parties of a run in this process, and its server loop. A wing has more to do than is done
    here.
    """

    core: RunCore
    host: Executor

    @abstractmethod
    def warm_up(self) -> None:
        """Let throw-away parties make a run's first exchanges (wall clock)."""

    @abstractmethod
    def bring_segment(self) -> None:
        """Restore the parties to the start of a segment (wall clock)."""

    @abstractmethod
    def open_wall(self, clock: WallClock) -> Sequence[Loop]:
        """Start the segment; return the loops that live in a thread each."""

    def poll(self) -> None:  # noqa: B027
        """Do what is due every 20 ms (wall clock)."""

    def saved(self) -> Sequence[SavedClient]:
        """Return what a checkpoint keeps of each client (wall clock)."""
        return []

    @abstractmethod
    def evaluate(self) -> None:
        """Evaluate the model (wall clock), also before `open_wall`."""

    def close(self) -> None:  # noqa: B027
        """Record what the loops left open (wall clock)."""

    @abstractmethod
    def models(self) -> Mapping[str, np.ndarray]:
        """Return the final parameters by name."""

    def facts(self) -> Mapping[str, Any]:
        """Return more for summary.json of a run that did not fail."""
        return {}

    def done(self) -> None:  # noqa: B027
        """Clean up after a run that spent its budget."""

    def end_threads(self) -> None:  # noqa: B027
        """End the threads that clients' work was done in, however the run ended."""
