"""Runs of either kind, by any runner."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from raydpzv.config.catalog import scenario_of
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError, ReplayMismatch, SpecError
from raydpzv.experiment.finalize import (
    RowWriter,
    Run,
    RunFinalizer,
    RunOptions,
    contradicts,
    run_folder,
)
from raydpzv.experiment.local_session import LocalSession, frozen_heap, one_thread, open_ledger
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.resuming import continued, fall_back
from raydpzv.interrupts import interruptible
from raydpzv.notebook import PACE, CellLine
from raydpzv.records.callbacks import Callback, StatusCallback
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.registry import RUNNERS
from raydpzv.sim.interfaces import Status
from raydpzv.storage.download import check_apart, created


def run(
    spec: AnyScenario | str,
    out: str | Path | None = None,
    *,
    runner: str = "local",
    scenario: str = "",
    progress: Callable[[Status], None] | None = None,
    callbacks: Sequence[Callback] = (),
    stop: threading.Event | None = None,
    address: str | None = None,
    verbose: bool = False,
    storage: str | None = None,
) -> Run:
    """Run a scenario and return its summary, rows and models.

    spec: a scenario, or the name of one. out: a run folder to write, which must not hold a run yet;
    None writes
    nothing. runner: "local" (this process) or "ray" (server and clients are actors; joins the
    surrounding cluster or starts a local one). callbacks: called while the run is at work
    (docs/watching.md). storage: the URI of a folder on a file system of pyarrow's, to which `out`
    is uploaded as it grows (docs/cluster.md). The others as in `RunOptions`. Raises InputError
    before anything is written, RunError after.
    """
    for given in callbacks:
        if not isinstance(given, Callback):
            raise InputError(
                f"callbacks: wanted objects of raydpzv.Callback, got {given!r}; derive a class "
                "from it"
            )
    start = RUNNERS[runner]
    if storage is not None and out is None:
        raise InputError(
            "storage: goes with out, the folder on this machine that is uploaded there; give both"
        )
    if storage is not None and out is not None:
        check_apart(Path(out), storage)
    options = RunOptions(
        Path(out) if out is not None else None,
        scenario,
        progress,
        stop or threading.Event(),
        address,
        verbose,
        callbacks=callbacks,
    )
    asked = scenario_of(spec)
    if runner == "local" and asked.resources.lane == "socket":
        raise SpecError(
            'resources.lane: wanted "auto" or "ray" with the local runner, which has no actors, '
            'got "socket"'
        )
    prepared = prepare(asked)

    def waits(what: str) -> None:
        options.watch.status(Status(stage=what))

    with created(storage, "run", waits=waits) if storage is not None else nullcontext() as uploader:
        return _watched(start, prepared, replace(options, storage=uploader), own_stop=stop is None)


def resume(
    path: str | Path, *, runner: str | None = None, callbacks: Sequence[Callback] = ()
) -> Run:
    """Resume an interrupted run in its folder, under the virtual clock to the same bits; as
    `raydpzv resume` does.

    Hand over the same model, data and method first, if they are your own: make the scenario again.
    runner: left out, "local", under the wall clock the run's first one. Raises InputError and
    DataError.
    """
    if not isinstance(path, str | Path):
        raise InputError(
            f"path: wanted the folder of a run, got {type(path).__name__}; give what `out` was"
        )
    asked = RUNNERS[runner] if runner else None
    prepared, folder, name = continued(Path(path))
    start = asked or RUNNERS[usual_runner(prepared.spec, folder)]
    return _watched(start, prepared, RunOptions(folder, name, callbacks=callbacks), own_stop=True)


def usual_runner(spec: AnyScenario, folder: RunFolder) -> str:
    """Return the default runner of a resumed run: under the wall clock its first one, which made
    its times.
    """
    began = str(folder.environment().get("runner"))
    return began if spec.clock.kind == "wall" and began in RUNNERS else "local"


def _watched(
    start: Callable[..., Run], prepared: Prepared, options: RunOptions, *, own_stop: bool
) -> Run:
    """Run, with a line of progress in a notebook; own_stop: nobody else sets `stop`, so that Ctrl-C
    does.
    """
    line, out = CellLine(), options.out
    folder = out.path if isinstance(out, RunWriter) else out
    how = (
        f"continue with raydpzv.resume({str(folder)!r})"
        if folder
        else "give out=FOLDER to keep a run that resumes"
    )
    budget = prepared.spec.budget.updates

    def show(status: Status) -> None:
        of = f" of {budget:,}" if budget else ""
        scored = "" if math.isnan(status.accuracy) else f", accuracy {status.accuracy:.3f}"
        done = f"{status.updates:,}{of} updates{scored}"
        line.show(f"waiting for {status.stage}" if status.stage else done, now=True)

    watch = [StatusCallback(show, PACE)] if line.shown else []
    with interruptible(options.stop if own_stop else None, f"stopped; {how}"):
        return start(prepared, replace(options, callbacks=[*options.callbacks, *watch]))


def run_local(prepared: Prepared, options: RunOptions | None = None) -> Run:
    """Run in this process. Raises RunError if the run fails, InputError before anything is
    written.
    """
    given = options or RunOptions()
    with (
        one_thread(prepared.engine),
        frozen_heap(),
        run_folder(given, prepared, runner="local", device=prepared.local_device) as folder,
    ):
        writer = RowWriter(folder, prepared.spec.record.flush, given.watch)
        finalizer = RunFinalizer(prepared, writer, given)
        while True:
            with open_ledger(prepared, folder) as ledger:
                session = LocalSession(prepared, ledger, writer, finalizer, given)
                try:
                    return session.run()
                except ReplayMismatch as error:
                    if not contradicts(error, folder):
                        raise
                    contradiction = error
            with finalizer.failing(session.status):
                prepared = fall_back(prepared, writer, contradiction, session.status.time)
