"""One run in this process, from the first order to the summary: a loop in virtual time, else a
thread per client.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from raydpzv.experiment.finalize import RowWriter, Run, RunFinalizer, RunOptions, contradicts
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.run_core import LocalParties, RunParts
from raydpzv.lazy_import import torch
from raydpzv.ledger.ledger import Ledger, begin_ledger
from raydpzv.records.run_writer import RunWriter
from raydpzv.registry import LOCAL_PARTIES
from raydpzv.sim.client_threads import HEAD_START, run_threads
from raydpzv.sim.clock import WallClock
from raydpzv.sim.interfaces import FIRST_EVALUATION, USER, WARM_UP, Status
from raydpzv.sim.wall import EvaluationSchedule

PartiesMaker = Callable[[Any, RunParts], LocalParties]
"""(prepared, parts) to the parties of a run, restored to its checkpoint."""


class LocalSession:
    """One run, or its continuation from a folder's last checkpoint."""

    def __init__(
        self,
        prepared: Prepared,
        ledger: Ledger | None,
        writer: RowWriter,
        finalizer: RunFinalizer,
        options: RunOptions,
    ) -> None:
        self._spec, self._writer, self._finalizer, self._options = (
            prepared.spec,
            writer,
            finalizer,
            options,
        )
        folder = writer.folder
        make: PartiesMaker = LOCAL_PARTIES[self._spec.kind]
        checkpoint = folder.checkpoint() if folder else None
        controls = options.controls(keeps=folder is not None)
        self._parties = make(prepared, RunParts(ledger, writer, controls, checkpoint))
        self._core = self._parties.core

    @property
    def status(self) -> Status:
        """Where the run stands."""
        return self._core.status()

    def run(self) -> Run:
        """Run, and write what there is however the run ends, unless its checkpoint contradicts the
        ledger.
        """
        core = self._core
        try:
            (self._virtual if self._spec.clock.kind == "virtual" else self._wall)()
            models, facts = self._parties.models(), {**core.facts(), **self._parties.facts()}
        except BaseException as error:
            if not contradicts(error, self._writer.folder):
                self._writer.add(core.recorder.drain())
                self._finalizer.failed(error, core.status(), core.spent(), core.facts())
            raise
        finally:
            self._parties.end_threads()
        self._writer.add(core.recorder.drain(), last=True)
        ended = self._finalizer.done(models, core.status(), core.spent(), facts)
        if ended.summary["status"] == "done":
            self._parties.done()
        return ended

    def _tick(self) -> None:
        if self._options.watch.due():
            self._options.watch.status(self._core.status())
        if self._writer.due():
            self._writer.add(self._core.recorder.drain())

    def _virtual(self) -> None:
        self._options.watch.status(Status(stage=FIRST_EVALUATION))
        self._core.run_virtual(self._parties.host, self._tick)

    def _wall(self) -> None:
        core, parties, loop = self._core, self._parties, self._core.server_loop
        self._options.watch.status(Status(stage=WARM_UP))
        parties.warm_up()
        parties.bring_segment()
        start = core.segment.start
        if start.number == 1:  # before anything is served, however long it takes
            self._options.watch.status(Status(stage=FIRST_EVALUATION))
            parties.evaluate()
        clock = WallClock.starting_in(HEAD_START, start.time)
        loops = parties.open_wall(clock)
        seconds, every = self._spec.budget.seconds, self._spec.evaluate.every
        evaluations = EvaluationSchedule(every, start.evaluated)

        def poll() -> bool:
            if self._options.stop.is_set():
                core.wall.stop(USER)
            if seconds is not None and clock.now() >= seconds:
                core.wall.stop(f"the budget of {seconds:g} seconds is spent")
            if evaluations.due(loop.updates):
                parties.evaluate()
            parties.poll()
            self._tick()
            core.keep_segment(parties.saved)
            return loop.stop_reason is None

        core.keep_segment(parties.saved, due=True)
        run_threads(loops, core.wall.stop, poll)
        parties.close()
        if loop.stop_reason == USER:
            core.keep_segment(parties.saved, due=True)
        parties.evaluate()
        self._tick()


@contextmanager
def open_ledger(prepared: Prepared, folder: RunWriter | None) -> Iterator[Ledger | None]:
    """Give the ledger of a run in this process, new or with all that it has; None for methods
    without one.
    """
    header = prepared.ledger_header()
    if header is None:
        yield None
        return
    if folder and folder.read_ledger:
        ledger, folder.read_ledger = folder.read_ledger, None
        ledger.begin_writing()
    else:
        ledger = begin_ledger(folder.ledger if folder else None, header, fsync=prepared.fsync)
    with ledger:
        yield ledger


@contextmanager
def one_thread(engine: str) -> Iterator[None]:
    """Give torch one thread: more are slower on work of this size, and change the last bits.

    engine: of the run; nothing happens under compiled kernels, which have one thread.
    """
    if engine == "compiled":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Keep what is there already out of garbage collections: walking it once takes as long as
    hundreds of updates.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
