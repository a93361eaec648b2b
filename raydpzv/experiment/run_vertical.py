"""Run a scenario in this process: under the virtual clock as one loop, under the wall clock as threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from raydpzv.config.scenario import VerticalScenario
from raydpzv.errors import ReplayMismatch
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
from raydpzv.experiment.release_ledger import LedgerServer, open_release_ledger, with_ledger
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.experiment.warm_up import warm_up
from raydpzv.ledger.ledger import Ledger, ledger_facts
from raydpzv.methods.roles import Client, VerticalServer
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.party_checkpoints import PartyCheckpoints
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_folder import RunFolder
from raydpzv.segments.wall_segment import WallLeg
from raydpzv.sim.clock import WallClock
from raydpzv.sim.executor import LocalExecutor, split_score
from raydpzv.sim.interfaces import FIRST_EVALUATION, USER, WARM_UP, Status
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import VirtualRun
from raydpzv.sim.wall import ClientLoop, LockedServerLoop


def run_vertical(
    experiment: PreparedVertical, options: RunOptions | None = None, fall_back: FallBack = no_fall_back
) -> Run:
    """Run in this process. Raises RunError if the run fails, InputError before anything is written."""
    given, device = options or RunOptions(), local_device(experiment.spec)
    with one_thread():
        roles = _roles(experiment, device)
        with run_folder(given, experiment, runner="local", device=device) as folder:
            writer = RowWriter(folder, experiment.spec.record.flush, given.watch)
            finalizer = RunFinalizer(experiment, writer, given)
            goes_on = folder is not None and isinstance(given.out, RunFolder) and not folder.is_recomputed
            while True:
                checkpoint = folder.checkpoint() if folder and goes_on else None
                with open_release_ledger(experiment, folder) as ledger:
                    session = _Session(experiment, *roles, ledger, writer, finalizer, given, checkpoint)
                    try:
                        return session.run()
                    except ReplayMismatch as error:
                        if not contradicts(error, folder):
                            raise
                        contradiction = error
                with finalizer.failing(session.status):
                    experiment = fall_back(experiment, writer, contradiction, session.status.time)
                roles = _roles(experiment, device)


def _roles(experiment: PreparedVertical, device: str) -> tuple[VerticalServer, Sequence[Client]]:
    """Return a fresh server and fresh clients."""
    return experiment.server.make(device), [factory.make(device) for factory in experiment.clients]


class _Session:
    """One run in this process, from the first order to the summary."""

    def __init__(
        self,
        experiment: PreparedVertical,
        server: VerticalServer,
        clients: Sequence[Client],
        ledger: Ledger | None,
        writer: RowWriter,
        finalizer: RunFinalizer,
        options: RunOptions,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._experiment, self._checkpoint = experiment, checkpoint
        self._writer, self._finalizer, folder = writer, finalizer, writer.folder
        self._server, self._clients, self._ledger = with_ledger(experiment, server, ledger), clients, ledger
        self._watch, self._stop, self._stop_at = options.watch, options.stop, options.stop_at
        self._keep_evaluated = options.keep_evaluated
        self._pace = experiment.pace() if folder and not folder.is_recomputed else None
        self._privacy_filter = experiment.privacy_filter()
        self._recorder = Recorder(experiment.skipped_rows(), self._privacy_filter.epsilons)
        self._server_loop = ServerLoop(
            *(self._server, self._privacy_filter, self._recorder, experiment.budget(), options.evaluated)
        )

    @property
    def status(self) -> Status:
        """Where the run stands."""
        return self._server_loop.status()

    def run(self) -> Run:
        """Run, and write what there is however the run ends, unless its checkpoint contradicts the ledger."""
        try:
            (self._virtual if self._experiment.spec.clock.kind == "virtual" else self._wall)()
        except BaseException as error:
            if not contradicts(error, self._writer.folder):
                self._writer.add(self._recorder.drain())
                self._finalizer.failed(
                    error, self._server_loop.status(), self._privacy_filter.spent(), self._facts()
                )
            raise
        self._writer.add(self._recorder.drain(), last=True)
        models = parameters(self._server, self._clients)
        spent = self._privacy_filter.spent()
        return self._finalizer.done(models, self._server_loop.status(), spent, self._facts())

    def _facts(self) -> dict[str, Any]:
        return ledger_facts(self._ledger) | (self._pace.facts() if self._pace else {})

    def _tick(self) -> None:
        if self._watch.due():
            self._watch.status(self._server_loop.status())
        if self._writer.due():
            self._writer.add(self._recorder.drain())

    def _virtual(self) -> None:
        self._watch.status(Status(stage=FIRST_EVALUATION))
        host = LocalExecutor(self._clients)
        pasts = self._server.past if isinstance(self._server, LedgerServer) else None
        roles, pace = PartyCheckpoints(self._server, host, len(self._clients), pasts), self._pace

        def tick() -> None:
            self._tick()
            loop = self._server_loop
            # after the last update there is nothing to go on with
            if pace is None or loop.stop_reason is not None:
                return
            asked = self._keep_evaluated and loop.to_tell
            if asked or (time.monotonic() >= pace.look and pace.due(loop.updates)):
                keep()

        def keep() -> None:
            if self._pace is None:
                return
            self._writer.hold(self._recorder.drain())
            self._pace.begin()  # rows become columns, and many of them a part, without checkpoints, too
            size = self._writer.write_checkpoint(roles.take(run))
            self._server_loop.checkpointed(self._pace.taken(self._server_loop.updates, size))

        if self._checkpoint:
            self._stop_at.count(self._checkpoint.round)
        run = VirtualRun(
            self._server_loop,
            host,
            self._experiment.timing,
            score=split_score(self._server, host, len(self._clients)),
            evaluate_every=self._experiment.spec.evaluate.every,
            stop=self._stop_at,
            tick=tick,
            updated=lambda: self._stop_at.count(self._server_loop.updates),
            stopped=keep,
            state=roles.go_on(self._checkpoint),
        )
        run.run()

    def _wall(self) -> None:
        spec, timing = self._experiment.spec, self._experiment.timing
        self._watch.status(Status(stage=WARM_UP))
        warm_up(self._experiment, local_device(spec))
        ledger = self._server if isinstance(self._server, LedgerServer) else None
        leg = WallLeg(self._server_loop, self._recorder, len(self._clients), self._checkpoint, ledger)
        leg.bring(LocalExecutor(self._clients))
        place = leg.place
        clock = WallClock.starting_in(HEAD_START, place.time)
        leg.begin(clock.origin)
        wall = LockedServerLoop(
            self._server_loop,
            clock,
            lambda which: timing.service.of(0, which),
            len(self._clients),
            self._experiment.barrier,
            orders=leg.orders,
            served=place.served,
        )
        loops = [
            ClientLoop(
                *(m, role, wall, timing, clock, spec.resources.timeout),
                after=place.after,
                works=place.served.get(m, 0),
            )
            for m, role in enumerate(self._clients)
        ]

        def evaluate() -> None:
            wall.evaluate([loop.evaluate() for loop in loops])

        def keep(*, due: bool = True) -> None:
            if self._pace is None or not (due or self._pace.due(self._server_loop.updates)):
                return
            self._pace.begin()
            with wall.halted() as under_way:
                saved = [loop.saved() for loop in loops] if leg.needs_clients else []
                rows, checkpoint = self._recorder.drain(), leg.take(under_way, saved)
            self._writer.hold(rows)
            size = self._writer.write_checkpoint(checkpoint)
            self._server_loop.checkpointed(self._pace.taken(checkpoint.round, size))

        def poll() -> None:
            self._tick()
            if self._server_loop.stop_reason is None:
                keep(due=False)

        if place.number == 1:
            evaluate()
        keep()
        run_threads(
            loops,
            self._server_loop,
            wall.stop,
            clock,
            spec,
            stop=self._stop,
            evaluate=evaluate,
            poll=poll,
            evaluated=place.evaluated,
        )
        wall.close()
        if self._server_loop.stop_reason == USER:
            keep()
        evaluate()
        self._tick()


def parameters(server: VerticalServer, clients: Sequence[Client]) -> dict[str, np.ndarray]:
    """Return every party's parameters by its name."""
    return {"server": server.parameters()} | {f"client {m}": c.parameters() for m, c in enumerate(clients)}


def local_device(spec: VerticalScenario) -> str:
    """Return "cuda" if the scenario gives any party a GPU share and there is one, else "cpu"."""
    resources = spec.resources
    shares = (resources.client_gpus, resources.server_gpus)
    each = [s for share in shares for s in (share if isinstance(share, tuple) else (share,))]
    wanted = any(share == "auto" or float(share) > 0 for share in each)
    return "cuda" if wanted and torch.cuda.is_available() else "cpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """Give torch one thread: more are slower on work of this size, and change the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
