"""A horizontal run: its server loop on any runner, and its parties in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from raydpzv.data.table import Split
from raydpzv.errors import Diverged
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.model_evaluator import (
    ModelEvaluator,
    ReplicaEvaluator,
    ResumePoint,
    SnapshotWriter,
    WeightsEvaluator,
)
from raydpzv.experiment.run_core import LocalParties, RunCore, RunParts
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.limits import cores
from raydpzv.methods.roles import ClientGroup, LedgerGroup, Metrics, OwnModels, Server, Upload
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.recorder import Recorder
from raydpzv.records.schema import SCHEMAS
from raydpzv.segments.run_segments import PullSegment
from raydpzv.sim.arrivals import Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.executor import Executor, GroupExecutor
from raydpzv.sim.interfaces import Budget
from raydpzv.sim.pull import HostShare, PullLoop, PullRun, PullServerLoop
from raydpzv.sim.server_loop import ServerLoop, WatchedServer
from raydpzv.sim.virtual import LoopHooks, Scoring, Timing, VirtualRun
from raydpzv.sim.wall import SavedClient
from raydpzv.wire.messages import ClientModels
from raydpzv.wire.network import instant

OWN_MODELS = "own_models"
"""Under which name a checkpoint keeps the models of clients that nobody can rebuild,
`ClientModels`.
"""
_WARM_UP_ROWS = 512
"""Held-out rows that a warm-up scores, at most."""


class HorizontalCore(RunCore):
    """The server loop of a horizontal run. A view of the model follows by `watch`, before the run.

    own_models: asked for the models that only the clients have, after so many updates; only of
    methods that drift.
    """

    segment: PullSegment
    wall: PullServerLoop
    view: ModelEvaluator
    snapshots: SnapshotWriter
    own_models: Callable[[int], ClientModels]

    def __init__(self, prepared: PreparedHorizontal, parts: RunParts, device: str = "cpu") -> None:
        self._prepared, self.server = prepared, prepared.server(parts.ledger, device)
        if checkpoint := parts.checkpoint:
            self.server.restore(checkpoint.round, checkpoint.weights)
        super().__init__(prepared, self.server, parts)
        self.rounds = not prepared.asynchronous
        self.resume_point: ResumePoint | None = None

    def watch(self, view: ModelEvaluator) -> None:
        """Evaluate the model in this view from now on."""
        self.view = view
        self.snapshots = SnapshotWriter(self._ledger, self._prepared.spec.record.snapshots, view)

    def model(self) -> np.ndarray:
        """Return the model after the last update, float32 [d]."""
        return self.view.state(self.server_loop.updates)[0]

    def evaluate(self) -> None:
        """Evaluate the model under the wall clock, also before it is open."""
        if self.clock is None:
            updates = self.server_loop.updates
            self.server_loop.evaluated(self.view.evaluate(updates), self.segment.start.time)
        else:
            self.wall.evaluate(self.view.evaluate)

    def _updated(self, updates: int) -> None:
        self.snapshots.look(updates)
        if self.resume_point:
            self.resume_point.look(updates)

    def _virtual_run(self, host: Executor, hooks: LoopHooks) -> VirtualRun:
        state = self._checkpoint.state if self._checkpoint else None
        return virtual_run(self._prepared, self.server_loop, host, self.view, hooks, state)

    def _virtual_checkpoint(self, run: VirtualRun) -> Checkpoint:
        state, updates = run.state() if self.rounds else run.moment(), self.server_loop.updates
        if self._prepared.drifts:
            state[OWN_MODELS] = self.own_models(updates)
        return Checkpoint(updates, state, self.server.state())

    def bring_segment(self) -> None:
        """Restore rows and accounts to the start of a segment under the wall clock."""
        assert self._ledger is not None
        self.segment = PullSegment(self.server_loop, self.recorder, self._checkpoint)
        self.segment.bring(self._ledger, accounted=self._prepared.setting is not None)

    def open_wall(self, clock: WallClock) -> PullServerLoop:
        self.segment.record_start(clock.origin)
        self.wall = PullServerLoop(self.server_loop, clock, self._prepared.timing.service_seconds)
        self.clock = clock
        return self.wall

    def _segment_checkpoint(
        self, under_way: float, saved: Callable[[], Sequence[SavedClient]], *, stopped: bool
    ) -> Checkpoint:
        return self.segment.take(under_way, stopped=stopped)


class HorizontalParties(LocalParties):
    """The server and the clients of a horizontal run in this process."""

    core: HorizontalCore

    def __init__(self, prepared: PreparedHorizontal, parts: RunParts) -> None:
        ledger, checkpoint = parts.ledger, parts.checkpoint
        self._prepared, self._ledger, self._device = prepared, ledger, prepared.local_device
        self.core = core = HorizontalCore(prepared, parts, self._device)
        self._client_group = group = prepared.client_group(ledger, self._device)
        self.host = GroupExecutor(group, measured=prepared.measured)
        core.watch(_view(prepared, core.server, group, self.host, self._device))
        core.own_models = lambda version: cast(OwnModels, group).models()
        self._resume_point = core.resume_point = ResumePoint(
            ledger if parts.controls.keeps else None, core.view
        )
        self._hosts: list[ClientGroup] = []
        if checkpoint:
            if kept := own_models(checkpoint):
                cast(OwnModels, group).restore_models(kept)
            self._resume_point.begin(cast(LedgerGroup, group), checkpoint.round)

    def warm_up(self) -> None:
        warm_up(self._prepared, self._device)

    def bring_segment(self) -> None:
        """Build the hosts' clients, and restore rows and accounts to the start of a segment under
        the wall clock.
        """
        prepared, hosts = self._prepared, self._prepared.spec.resources.hosts
        count = cores() if hosts == "auto" else hosts
        self._hosts = [prepared.client_group(self._ledger, self._device) for _ in range(count)]
        self.core.bring_segment()

    def open_wall(self, clock: WallClock) -> Sequence[PullLoop]:
        wall, begins = self.core.open_wall(clock), self.core.segment.start.begins
        timing, parts = self._prepared.timing, len(self._hosts)
        return [
            PullLoop(group, wall, timing, clock, HostShare(part, parts, begins))
            for part, group in enumerate(self._hosts)
        ]

    def poll(self) -> None:
        self.core.snapshots.look(self.core.server_loop.updates)

    def evaluate(self) -> None:
        self.core.evaluate()

    def models(self) -> dict[str, np.ndarray]:
        return {MODEL: self.core.model()}

    def facts(self) -> dict[str, Any]:
        if not self._prepared.separate:
            return {}
        drift = cast(OwnModels, self._client_group).drift(self.core.server_loop.updates)
        return {"drift": {"largest": drift.largest, "share": drift.share}}

    def done(self) -> None:
        self._resume_point.end()


def _view(
    prepared: PreparedHorizontal, server: Any, group: ClientGroup, host: GroupExecutor, device: str
) -> ModelEvaluator:
    if not prepared.seeded:
        return WeightsEvaluator(prepared, server, device)
    return ReplicaEvaluator(prepared, cast(LedgerGroup, group), host, device)


def virtual_run(
    prepared: PreparedHorizontal,
    server_loop: ServerLoop,
    host: Executor,
    view: ModelEvaluator,
    hooks: LoopHooks,
    state: Mapping[str, Any] | None,
) -> VirtualRun:
    """Return a horizontal run under the virtual clock; state: of a checkpoint, None: from its
    start.
    """
    kind = PullRun if prepared.asynchronous else VirtualRun
    scoring = Scoring(lambda: view.evaluate(server_loop.updates), prepared.spec.evaluate.every)
    return kind(server_loop, host, prepared.timing, scoring, hooks, state)


def repeated(prepared: PreparedHorizontal, updates: int, seen: Callable[[Upload], None]) -> str:
    """Make a run's first updates again under the virtual clock, in memory; return the digest of
    their ledger.

    seen: called with each upload before it is served.
    """
    device, ledger = prepared.local_device, Ledger.create(None, prepared.plan.header())
    group, server = prepared.client_group(ledger, device), prepared.server(ledger, device)
    recorder = Recorder(frozenset(SCHEMAS))  # which keeps nothing
    watched = cast(Server, WatchedServer(server, seen))
    server_loop = ServerLoop(watched, prepared.privacy_filter(), recorder, Budget(updates=updates))
    unscored = Scoring(lambda: Metrics(math.nan, math.nan, math.nan), updates)
    VirtualRun(server_loop, GroupExecutor(group), prepared.timing, unscored).run()
    return ledger.digest


def own_models(checkpoint: Checkpoint) -> ClientModels | None:
    """Return the clients' own models that a checkpoint keeps, of methods whose models nobody can
    rebuild.
    """
    return cast("ClientModels | None", checkpoint.state.get(OWN_MODELS))


def warm_up(prepared: PreparedHorizontal, device: str) -> None:
    """Let throw-away parties make a run's first updates, so that first calls, which compile, are no
    epoch's.

    They are made anew and dropped: clients, server, rows, and a ledger in memory. Nothing leaves
    this function, so the data may be the run's own. Two clients wake in turn, each to what the
    other has done; a method of rounds makes two.
    """
    clients, test = prepared.parts.clients, prepared.split.test
    nothing = DelayModel([0.0] * clients, "constant", Key(0))
    arrivals = Trace({m: [m / 2, m / 2 + 1] for m in range(min(2, clients))})
    few = test.select(np.arange(min(_WARM_UP_ROWS, test.rows)))
    split = prepared.split
    prepared = replace(
        prepared,
        split=replace(split, test=few, validation=None)
        if isinstance(split, Split)
        else replace(split, test=few),
        timing=Timing(arrivals, nothing, nothing, instant(clients)),
        privacy=prepared.privacy and prepared.privacy.for_warm_up(),
        recorded=0,
    )
    ledger = Ledger.create(None, prepared.plan.header()) if prepared.seeded else None
    group, server = prepared.client_group(ledger, device), prepared.server(ledger, device)
    executor = GroupExecutor(group, measured=prepared.measured)
    view = _view(prepared, server, group, executor, device)
    recorder = Recorder()
    server_loop = ServerLoop(server, prepared.privacy_filter(), recorder, Budget(updates=2))
    run = virtual_run(prepared, server_loop, executor, view, LoopHooks(), None)
    try:
        run.run()
    except Diverged:
        return  # the run will say so itself, and put it on record
    recorder.drain()
