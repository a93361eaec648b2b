"""Run a scenario in this process: under the virtual clock as one loop, under the wall clock as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from raydpzv.experiment.build import Experiment
from raydpzv.experiment.closing import Closing, Run, Sink, opened
from raydpzv.experiment.folder import RunFolder
from raydpzv.experiment.keeper import keeping, opened_ledger
from raydpzv.experiment.ledgers import ledger_facts
from raydpzv.experiment.pace import barrier
from raydpzv.experiment.spec import Spec
from raydpzv.experiment.threads import HEAD_START, run_threads
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import Client, VerticalServer
from raydpzv.records.recorder import Recorder
from raydpzv.sim.clock import WallClock
from raydpzv.sim.desk import Desk
from raydpzv.sim.host import LocalHost, split_score
from raydpzv.sim.terms import Status
from raydpzv.sim.virtual import VirtualRun
from raydpzv.sim.wall import ClientLoop, WallDesk

Progress = Callable[[Status], None]


def run_prepared(
    experiment: Experiment,
    out: Path | RunFolder | None = None,
    *,
    scenario: str = "",
    progress: Progress = lambda status: None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment in this process.

    out: the run folder to write (None: nothing is written), or the folder of a run that continues; progress: called
    often with where the run stands; stop: set it to end the run early, cleanly. Raises RunError if the run fails.
    """
    device, name = local_device(experiment.spec), scenario or experiment.spec.name
    with one_thread():
        server = experiment.server.make(device)
        clients = [recipe.make(device) for recipe in experiment.clients]
        with (
            opened(out, experiment, scenario=name, runner="local", device=device) as folder,
            opened_ledger(experiment, folder) as ledger,
        ):
            sink = Sink(folder, experiment.spec.record.flush)
            closing = Closing(experiment, sink, name)
            return _Session(
                experiment, server, clients, ledger, sink, closing, progress, stop or threading.Event()
            ).run()


class _Session:
    """One run in this process, from the first order to the summary."""

    def __init__(
        self,
        experiment: Experiment,
        server: VerticalServer,
        clients: Sequence[Client],
        ledger: Ledger | None,
        sink: Sink,
        closing: Closing,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._experiment, self._sink, self._closing = experiment, sink, closing
        self._server, self._clients, self._ledger = keeping(experiment, server, ledger), clients, ledger
        self._progress, self._stop = progress, stop
        self._recorder = Recorder(experiment.skipped_rows())
        self._guard = experiment.guard()
        self._desk = Desk(self._server, self._guard, self._recorder, experiment.budget())

    def run(self) -> Run:
        """Run, and write what there is however the run ends."""
        try:
            (self._virtual if self._experiment.spec.clock.kind == "virtual" else self._wall)()
        except BaseException as error:
            self._sink.add(self._recorder.drain())
            facts = ledger_facts(self._ledger)
            self._closing.failed(error, self._desk.status(), self._guard.spent(), facts)
            raise
        self._sink.add(self._recorder.drain())
        models = parameters(self._server, self._clients)
        facts = ledger_facts(self._ledger)
        return self._closing.done(models, self._desk.status(), self._guard.spent(), facts)

    def _tick(self) -> None:
        self._progress(self._desk.status())
        if self._sink.due():
            self._sink.add(self._recorder.drain())

    def _virtual(self) -> None:
        host = LocalHost(self._clients)
        VirtualRun(
            self._desk,
            host,
            self._experiment.timing,
            score=split_score(self._server, host, len(self._clients)),
            evaluate_every=self._experiment.spec.evaluate.every,
            stop=self._stop,
            tick=self._tick,
        ).run()

    def _wall(self) -> None:
        spec, timing = self._experiment.spec, self._experiment.timing
        warm_up(self._experiment, local_device(spec))
        clock = WallClock.starting_in(HEAD_START)
        wall = WallDesk(
            self._desk, clock, lambda which: timing.service.of(0, which), len(self._clients), barrier(spec)
        )
        loops = [
            ClientLoop(m, role, wall, timing, clock, spec.resources.timeout)
            for m, role in enumerate(self._clients)
        ]

        def evaluate() -> None:
            wall.evaluate([loop.evaluate() for loop in loops])

        evaluate()
        run_threads(
            loops, self._desk, wall.stop, clock, spec, stop=self._stop, evaluate=evaluate, look=self._tick
        )
        wall.close()
        evaluate()
        self._tick()


def warm_up(experiment: Experiment, device: str) -> None:
    """Let throw-away parties do one exchange: first calls compile, and no epoch should wait for that."""
    server, client = experiment.server.make(device), experiment.clients[0].make(device)
    server.receive(client.perform(server.open()[0]))


def parameters(server: VerticalServer, clients: Sequence[Client]) -> dict[str, np.ndarray]:
    """Return every party's parameters by its name."""
    return {"server": server.parameters()} | {f"client {m}": c.parameters() for m, c in enumerate(clients)}


def local_device(spec: Spec) -> str:
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
