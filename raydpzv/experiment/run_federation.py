"""Run a horizontal scenario in this process: rounds and pulling clients in virtual time, or hosts as threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raydpzv.experiment.checkpoint import Checkpoint, Cut
from raydpzv.experiment.closing import Closing, Run, Sink, opened
from raydpzv.experiment.federation import Federation
from raydpzv.experiment.folder import RunFolder
from raydpzv.experiment.ledgers import begin_ledger, ledger_facts
from raydpzv.experiment.plan import MODEL
from raydpzv.experiment.run import one_thread
from raydpzv.experiment.threads import HEAD_START, run_threads
from raydpzv.experiment.view import CrewView, ServerView, Snapshots, View
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.decomfl_clients import SeparateClients
from raydpzv.methods.fedavg import FedAvgServer
from raydpzv.methods.roles import Crew, Order
from raydpzv.records.recorder import Recorder
from raydpzv.sim.clock import WallClock
from raydpzv.sim.desk import Desk
from raydpzv.sim.host import CrewHost, Host
from raydpzv.sim.pull import PullDesk, PullLoop, PullRun
from raydpzv.sim.terms import Status
from raydpzv.sim.virtual import VirtualRun
from raydpzv.wire.seeds import Tail

Progress = Callable[[Status], None]


def federation_device(federation: Federation) -> str:
    """Return "cuda" if hosts are to have a GPU share and there is one, else "cpu"."""
    wanted = federation.spec.resources.host_gpus > 0
    return "cuda" if wanted and torch.cuda.is_available() else "cpu"


def run_federation(
    federation: Federation,
    out: Path | RunFolder | None = None,
    *,
    scenario: str = "",
    progress: Progress = lambda status: None,
    stop: threading.Event | None = None,
) -> Run:
    """Run a federation in this process; arguments and errors as of `raydpzv.experiment.run.run_prepared`."""
    spec, device = federation.spec, federation_device(federation)
    name = scenario or spec.name
    with one_thread(), opened(out, federation, scenario=name, runner="local", device=device) as folder:
        checkpoint = folder.checkpoint() if folder and isinstance(out, RunFolder) else None
        ledger = open_ledger(federation, folder, checkpoint)
        try:
            sink = Sink(folder, spec.record.flush)
            closing = Closing(federation, sink, name)
            return _Session(
                federation, device, ledger, sink, closing, progress, stop or threading.Event(), checkpoint
            ).run()
        finally:
            if ledger:
                ledger.close()


def open_ledger(
    federation: Federation, folder: RunFolder | None, checkpoint: Checkpoint | None
) -> Ledger | None:
    """Return the run's ledger: new, or as it was at the checkpoint; None for methods that send weights."""
    if not federation.seeded:
        return None
    return begin_ledger(
        folder.ledger if folder else None,
        federation.plan.header(),
        checkpoint.round if checkpoint else 0,
        fsync=federation.spec.record.fsync,
    )


class _Session:
    """One run in this process, from the first order to the summary."""

    def __init__(
        self,
        federation: Federation,
        device: str,
        ledger: Ledger | None,
        sink: Sink,
        closing: Closing,
        progress: Progress,
        stop: threading.Event,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._federation, self._device, self._ledger = federation, device, ledger
        self._sink, self._closing, self._progress, self._stop = sink, closing, progress, stop
        self._checkpoint = checkpoint
        self._crew: Crew
        self._server: Any
        self._recorder = Recorder()
        self._cut = Cut(self._recorder, federation.spec.record.flush)
        self._view: View
        if ledger:
            self._crew = crew = federation.seeded_crew(ledger, device)
            self._host = CrewHost(crew)
            self._server = federation.seeded_server(ledger, device)
            self._view = CrewView(federation, crew, self._host, device)
        else:
            self._crew = federation.weight_crew(device)
            self._host = CrewHost(self._crew)
            self._server = federation.weight_server(device)
            self._view = ServerView(federation, self._server, device)
        if checkpoint:
            resume_server(self._server, checkpoint)
        self._snapshots = Snapshots(ledger, federation.spec.record.snapshots, self._view)
        self._desk = Desk(self._server, federation.guard(), self._recorder, federation.budget())

    def run(self) -> Run:
        """Run, and write what there is however the run ends."""
        try:
            (self._virtual if self._federation.spec.clock.kind == "virtual" else self._wall)()
            parameters = self._view.state(self._desk.updates)[0]
            facts = ledger_facts(self._ledger) | self._drift()
        except BaseException as error:
            self._sink.add(self._recorder.drain())
            self._closing.failed(error, self._desk.status(), None)
            raise
        self._sink.add(self._recorder.drain())
        return self._closing.done({MODEL: parameters}, self._desk.status(), None, facts)

    def _drift(self) -> dict[str, Any]:
        """What the snapshot-free revert did to the bits: measured, where it is in use."""
        if not isinstance(self._crew, SeparateClients):
            return {}
        drift = self._crew.drift(self._desk.updates)
        return {"drift": {"largest": drift.largest, "share": drift.share}}

    def _tick(self) -> None:
        self._progress(self._desk.status())
        if self._federation.asynchronous and self._sink.due():
            self._sink.add(self._recorder.drain())

    def _virtual(self) -> None:
        run = virtual_run(
            self._federation,
            self._desk,
            self._host,
            self._view,
            self._checkpoint,
            stop=self._stop,
            tick=self._tick,
            updated=lambda: self._updated(run),
        )
        run.run()

    def _updated(self, run: VirtualRun) -> None:
        self._snapshots.look(self._desk.updates)
        # after the last update there is nothing to go on with: a continuation would make one more
        rounds_go_on = not self._federation.asynchronous and self._desk.stop_reason is None
        if rounds_go_on and (self._cut.due() or self._stop.is_set()):
            self._sink.settle(self._cut.rows(), checkpoint_of(self._server, self._desk.updates, run.state()))

    def _wall(self) -> None:
        assert self._ledger is not None
        hosts = local_hosts(self._federation)
        crews = [self._federation.seeded_crew(self._ledger, self._device) for _ in range(hosts)]
        for crew in crews:
            warm_up(crew)
        clock = WallClock.starting_in(HEAD_START)
        timing = self._federation.timing
        desk = PullDesk(self._desk, clock, lambda which: timing.service.of(0, which))
        loops = [
            PullLoop(crew, desk, timing, clock, part=part, parts=hosts) for part, crew in enumerate(crews)
        ]

        def evaluate() -> None:
            desk.evaluate(self._view.evaluate)

        def look() -> None:
            self._snapshots.look(self._desk.updates)
            self._tick()

        evaluate()
        run_threads(
            loops,
            self._desk,
            desk.stop,
            clock,
            self._federation.spec,
            stop=self._stop,
            evaluate=evaluate,
            look=look,
        )
        evaluate()
        self._tick()


def virtual_run(
    federation: Federation,
    desk: Desk,
    host: Host,
    view: View,
    checkpoint: Checkpoint | None,
    *,
    stop: threading.Event,
    tick: Callable[[], None],
    updated: Callable[[], None],
) -> VirtualRun:
    """Return a federation's run under the virtual clock, from its start or from a checkpoint."""
    kind = PullRun if federation.asynchronous else VirtualRun
    return kind(
        desk,
        host,
        federation.timing,
        score=lambda: view.evaluate(desk.updates),
        evaluate_every=federation.spec.evaluate.every,
        stop=stop,
        tick=tick,
        updated=updated,
        state=checkpoint.state if checkpoint else None,
    )


def resume_server(server: Any, checkpoint: Checkpoint) -> None:
    """Bring a fresh server to the state after a checkpoint's round."""
    if isinstance(server, FedAvgServer):
        assert checkpoint.weights is not None
        server.adopt(checkpoint.weights)
    server.resume(checkpoint.round)


def checkpoint_of(server: Any, round: int, state: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint after a round."""
    return Checkpoint(round, state, server.parameters() if isinstance(server, FedAvgServer) else None)


def warm_up(crew: Crew) -> None:
    """Let a host do a piece of work that nobody uses: first calls compile, and no epoch should wait for that."""
    nothing = Tail(np.zeros(0, np.uint64), np.zeros(0, np.float32))
    crew.perform([Order(0, nothing, round=1, at_once=True)])


def local_hosts(federation: Federation) -> int:
    """Return how many hosts (threads) a wall-clock run in this process has."""
    hosts = federation.spec.resources.hosts
    return len(os.sched_getaffinity(0)) if hosts == "auto" else hosts
