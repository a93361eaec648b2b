"""Run a horizontal scenario in this process: rounds and pulling clients in virtual time, or hosts as threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from raydpzv.data.table import Split
from raydpzv.errors import Diverged, ReplayMismatch
from raydpzv.experiment.client_threads import HEAD_START, run_threads
from raydpzv.experiment.finalize import (
    FallBack,
    RowWriter,
    Run,
    RunFinalizer,
    RunOptions,
    contradicts,
    no_fall_back,
    run_folder,
)
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.model_evaluator import (
    ModelEvaluator,
    ReplicaEvaluator,
    ResumePoint,
    SnapshotWriter,
    WeightsEvaluator,
)
from raydpzv.experiment.run_vertical import one_thread
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger, begin_ledger, ledger_facts
from raydpzv.methods.roles import ClientGroup, LedgerGroup, OwnModels
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import Rows
from raydpzv.segments.pull_segment import PullLeg
from raydpzv.sim.arrivals import Trace
from raydpzv.sim.clock import WallClock
from raydpzv.sim.delays import DelayModel
from raydpzv.sim.executor import Executor, GroupExecutor
from raydpzv.sim.interfaces import FIRST_EVALUATION, USER, WARM_UP, Budget, Status, Stop
from raydpzv.sim.pull import PullLoop, PullRun, PullServerLoop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import Timing, VirtualRun
from raydpzv.wire.messages import ClientModels
from raydpzv.wire.network import instant

OWN_MODELS = "own_models"
"""Under which name a checkpoint keeps the models of clients that nobody can rebuild, `ClientModels`."""
_WARM_UP_ROWS = 512
"""Held-out rows that a warm-up scores, at most."""


def horizontal_device(prepared: PreparedHorizontal) -> str:
    """Return "cuda" if hosts are to have a GPU share and there is one, else "cpu"."""
    wanted = prepared.spec.resources.host_gpus > 0
    return "cuda" if wanted and torch.cuda.is_available() else "cpu"


def run_horizontal(
    prepared: PreparedHorizontal, options: RunOptions | None = None, fall_back: FallBack = no_fall_back
) -> Run:
    """Run in this process. Raises RunError if the run fails, InputError before anything is written."""
    given, device = options or RunOptions(), horizontal_device(prepared)
    with one_thread(), run_folder(given, prepared, runner="local", device=device) as folder:
        writer = RowWriter(folder, prepared.spec.record.flush, given.watch)
        finalizer = RunFinalizer(prepared, writer, given)
        while True:
            checkpoint = folder.checkpoint() if folder and isinstance(given.out, RunFolder) else None
            ledger = open_ledger(prepared, folder)
            session = _Session(prepared, device, ledger, writer, finalizer, given, checkpoint)
            try:
                return session.run()
            except ReplayMismatch as error:
                if not contradicts(error, folder):
                    raise
                contradiction = error
            finally:
                if ledger:
                    ledger.close()
            with finalizer.failing(session.status):
                prepared = fall_back(prepared, writer, contradiction, session.status.time)


def open_ledger(prepared: PreparedHorizontal, folder: RunFolder | None) -> Ledger | None:
    """Return the run's ledger: new, or with all that it has; None for methods that send weights."""
    if not prepared.seeded:
        return None
    path = folder.ledger if folder else None
    return begin_ledger(path, prepared.plan.header(), fsync=prepared.spec.record.fsync)


def parties(
    prepared: PreparedHorizontal, ledger: Ledger | None, device: str
) -> tuple[ClientGroup, GroupExecutor, Any, ModelEvaluator]:
    """Return the clients of one process, what does their work, the server, and what evaluates the model."""
    group, server = prepared.client_group(ledger, device), prepared.server(ledger, device)
    executor = GroupExecutor(group, measured=prepared.measured)
    if ledger is None:
        return group, executor, server, WeightsEvaluator(prepared, server, device)
    return group, executor, server, ReplicaEvaluator(prepared, cast(LedgerGroup, group), executor, device)


class _Session:
    """One run in this process, from the first order to the summary."""

    def __init__(
        self,
        prepared: PreparedHorizontal,
        device: str,
        ledger: Ledger | None,
        writer: RowWriter,
        finalizer: RunFinalizer,
        options: RunOptions,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._prepared, self._device, self._ledger = prepared, device, ledger
        self._writer, self._finalizer = writer, finalizer
        self._watch, self._stop, self._stop_at = options.watch, options.stop, options.stop_at
        self._keep_evaluated = options.keep_evaluated
        self._checkpoint = checkpoint
        self._privacy_filter = prepared.privacy_filter()
        self._recorder = Recorder(epsilons=self._privacy_filter.epsilons)
        self._pace = prepared.pace() if writer.folder else None
        self._client_group, self._host, self._server, self._view = parties(prepared, ledger, device)
        if checkpoint:
            resume_server(self._server, checkpoint)
            if kept := own_models(checkpoint):
                cast(OwnModels, self._client_group).restore_models(kept)
        self._snapshots = SnapshotWriter(ledger, prepared.spec.record.snapshots, self._view)
        self._resume_point = ResumePoint(ledger if writer.folder else None, self._view)
        if checkpoint:
            self._resume_point.begin(cast(LedgerGroup, self._client_group), checkpoint.round)
        self._server_loop = ServerLoop(
            *(self._server, self._privacy_filter, self._recorder, prepared.budget(), options.evaluated)
        )

    @property
    def status(self) -> Status:
        """Where the run stands."""
        return self._server_loop.status()

    def run(self) -> Run:
        """Run, and write what there is however the run ends, unless its checkpoint contradicts the ledger."""
        try:
            (self._virtual if self._prepared.spec.clock.kind == "virtual" else self._wall)()
            parameters = self._view.state(self._server_loop.updates)[0]
            facts = ledger_facts(self._ledger) | self._drift() | (self._pace.facts() if self._pace else {})
        except BaseException as error:
            if not contradicts(error, self._writer.folder):
                self._writer.add(self._recorder.drain())
                spent, facts = self._privacy_filter.spent(), ledger_facts(self._ledger)
                self._finalizer.failed(error, self._server_loop.status(), spent, facts)
            raise
        self._writer.add(self._recorder.drain(), last=True)
        spent = self._privacy_filter.spent()
        ended = self._finalizer.done({MODEL: parameters}, self._server_loop.status(), spent, facts)
        if ended.summary["status"] == "done":
            self._resume_point.end()
        return ended

    def _drift(self) -> dict[str, Any]:
        """What the snapshot-free revert did to the bits: measured, where it is in use."""
        if not self._prepared.separate:
            return {}
        drift = cast(OwnModels, self._client_group).drift(self._server_loop.updates)
        return {"drift": {"largest": drift.largest, "share": drift.share}}

    def _tick(self) -> None:
        if self._watch.due():
            self._watch.status(self._server_loop.status())
        if self._writer.due():
            self._writer.add(self._recorder.drain())

    def _virtual(self) -> None:
        self._watch.status(Status(stage=FIRST_EVALUATION))
        if self._checkpoint:
            self._stop_at.count(self._checkpoint.round)
        run = virtual_run(
            self._prepared,
            self._server_loop,
            self._host,
            self._view,
            self._checkpoint,
            stop=self._stop_at,
            tick=lambda: self._ticked(run),
            updated=lambda: self._updated(run),
            stopped=lambda: self._stopped(run),
        )
        run.run()

    def _ticked(self, run: VirtualRun) -> None:
        self._tick()
        if self._prepared.asynchronous and self._due(now=self._keep_evaluated and self._server_loop.to_tell):
            self._keep(run)

    def _updated(self, run: VirtualRun) -> None:
        self._snapshots.look(self._server_loop.updates)
        self._resume_point.look(self._server_loop.updates)
        self._stop_at.count(self._server_loop.updates)
        evaluated = (
            self._keep_evaluated and self._server_loop.updates % self._prepared.spec.evaluate.every == 0
        )
        if not self._prepared.asynchronous and self._due(now=evaluated or self._stop_at.is_set()):
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
        """Write rows (None: all so far), and that the run can go on after them.

        That is after a round, or between two events of a run without rounds.
        """
        if (pace := self._pace) is None:
            return
        self._writer.hold(self._recorder.drain() if rows is None else rows)
        pace.begin()  # rows become columns, and many of them a part, without checkpoints, too
        updates = self._server_loop.updates
        state = run.moment() if self._prepared.asynchronous else run.state()
        if self._prepared.drifts:
            state[OWN_MODELS] = cast(OwnModels, self._client_group).models()
        checkpoint = checkpoint_of(self._server, updates, state)
        size = self._writer.write_checkpoint(checkpoint)
        self._server_loop.checkpointed(pace.taken(updates, size))

    def _wall(self) -> None:
        assert self._ledger is not None
        self._watch.status(Status(stage=WARM_UP))
        leg = PullLeg(self._server_loop, self._recorder, self._checkpoint)
        hosts = local_hosts(self._prepared)
        pool = [self._prepared.client_group(self._ledger, self._device) for _ in range(hosts)]
        warm_up(self._prepared, self._device)
        leg.bring(self._ledger, accounted=self._prepared.setting is not None)
        place = leg.place
        clock = WallClock.starting_in(HEAD_START, place.time)
        leg.begin(clock.origin)
        timing = self._prepared.timing
        server_loop = PullServerLoop(self._server_loop, clock, lambda which: timing.service.of(0, which))
        loops = [
            PullLoop(client_group, server_loop, timing, clock, part=part, parts=hosts, begins=place.begins)
            for part, client_group in enumerate(pool)
        ]

        def evaluate() -> None:
            server_loop.evaluate(self._view.evaluate)

        def keep(*, stopped: bool = False) -> None:
            if (pace := self._pace) is None:
                return
            pace.begin()
            with server_loop.halted() as now:
                rows, checkpoint = self._recorder.drain(), leg.take(now, stopped=stopped)
            self._writer.hold(rows)
            size = self._writer.write_checkpoint(checkpoint)
            self._server_loop.checkpointed(pace.taken(checkpoint.round, size))

        def look() -> None:
            self._snapshots.look(self._server_loop.updates)
            self._tick()
            if self._due():
                keep()

        if place.number == 1:
            evaluate()
        keep()
        run_threads(
            loops,
            self._server_loop,
            server_loop.stop,
            clock,
            self._prepared.spec,
            stop=self._stop,
            evaluate=evaluate,
            poll=look,
            evaluated=place.evaluated,
        )
        if self._server_loop.stop_reason == USER:
            keep(stopped=True)
        evaluate()
        self._tick()


def virtual_run(
    prepared: PreparedHorizontal,
    server_loop: ServerLoop,
    host: Executor,
    view: ModelEvaluator,
    checkpoint: Checkpoint | None,
    *,
    stop: Stop,
    tick: Callable[[], None],
    updated: Callable[[], None],
    stopped: Callable[[], None] = lambda: None,
) -> VirtualRun:
    """Return a horizontal run under the virtual clock, from its start or from a checkpoint."""
    kind = PullRun if prepared.asynchronous else VirtualRun
    return kind(
        server_loop,
        host,
        prepared.timing,
        score=lambda: view.evaluate(server_loop.updates),
        evaluate_every=prepared.spec.evaluate.every,
        stop=stop,
        tick=tick,
        updated=updated,
        stopped=stopped,
        state=checkpoint.state if checkpoint else None,
    )


def own_models(checkpoint: Checkpoint) -> ClientModels | None:
    """Return the clients' own models that a checkpoint keeps, of methods whose models nobody can rebuild."""
    kept: ClientModels | None = checkpoint.state.get(OWN_MODELS)
    return kept


def resume_server(server: Any, checkpoint: Checkpoint) -> None:
    """Bring a fresh server to the state after a checkpoint's round."""
    server.restore(checkpoint.round, checkpoint.weights)


def checkpoint_of(server: Any, round: int, state: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint after a round."""
    return Checkpoint(round, state, server.state())


def warm_up(prepared: PreparedHorizontal, device: str) -> None:
    """Let throw-away parties make a run's first updates, so that first calls, which compile, are no epoch's.

    They are made anew and dropped: clients, server, rows, and a ledger in memory. Nothing leaves this function, so the
    data may be the run's own. Two clients wake in turn, each to what the other has done; a method of rounds makes two.
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
    _, executor, server, view = parties(prepared, ledger, device)
    recorder = Recorder()
    server_loop = ServerLoop(server, prepared.privacy_filter(), recorder, Budget(updates=2))
    run = virtual_run(
        *(prepared, server_loop, executor, view, None),
        stop=threading.Event(),
        tick=lambda: None,
        updated=lambda: None,
    )
    try:
        run.run()
    except Diverged:
        return  # the run will say so itself, and put it on record
    recorder.drain()


def local_hosts(prepared: PreparedHorizontal) -> int:
    """Return how many hosts (threads) a wall-clock run in this process has."""
    hosts = prepared.spec.resources.hosts
    return len(os.sched_getaffinity(0)) if hosts == "auto" else hosts
