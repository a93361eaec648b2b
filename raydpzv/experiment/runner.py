"""Runs of either kind, by any runner."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from raydpzv.config.catalog import scenario_of
from raydpzv.config.paths import locations
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import InputError, ReplayMismatch, RunWarning
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
from raydpzv.experiment.resuming import continued, drop_left_over, fall_back, prepared_again
from raydpzv.files import is_written
from raydpzv.interrupts import interruptible
from raydpzv.notebook import PACE, CellLine
from raydpzv.records.callbacks import Callback, StatusCallback
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.settings_diff import require_settings
from raydpzv.registry import RUNNERS
from raydpzv.sim.interfaces import Status
from raydpzv.storage.download import copy_rest, find_copy, local_copy, unused_storage
from raydpzv.storage.filesystem import is_uri
from raydpzv.trust import code_words, trust_words

P = ParamSpec("P")


def _warning(function: Callable[P, Run]) -> Callable[P, Run]:
    """Return a function for scripts and notebooks, which see what the terminal prints of a run."""

    @wraps(function)
    def told(*given: P.args, **named: P.kwargs) -> Run:
        found = function(*given, **named)
        for line in found.warnings:
            warnings.warn(line, RunWarning, stacklevel=2)
        return found

    return told


@_warning
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
    storage_path: str | Path | None = None,
    name: str | None = None,
) -> Run:
    """Run a scenario and return its summary, rows and models.

    spec: a scenario, or the name of one. out: a run folder to write, which must not hold a run yet;
    None writes nothing. runner: "local" (this process) or "ray" (server and clients are actors;
    joins the surrounding cluster or starts a local one). callbacks: called while the run is at work
    (docs/watching.md). storage_path and name: as in Ray Train and Tune, a folder or a URI that
    pyarrow opens, and the run's name there. A run is found again by both: it starts, resumes, or is
    returned if it is complete. The folder that is copied to a URI is `out`, by default runs/NAME.
    The others as in `RunOptions`. A RunWarning says what to look at before the result is believed.
    Raises InputError before anything is written, RunError after.
    """
    for given in callbacks:
        if not isinstance(given, Callback):
            raise InputError(
                f"callbacks: wanted objects of raydpzv.Callback, got {given!r}; derive a class "
                "from it"
            )
    options = RunOptions(
        Path(out) if out is not None else None,
        scenario,
        progress,
        stop or threading.Event(),
        address,
        verbose,
        callbacks=callbacks,
    )
    asked, own_stop = scenario_of(spec), stop is None
    if storage_path is None and name is None:
        return start(asked, runner, options, own_stop=own_stop)
    uri, folder = _stored(storage_path, name, out)
    if not is_found(folder, uri):
        return start(asked, runner, replace(options, out=folder), uri, own_stop=own_stop)
    with given_again(asked) as moved:
        if run := found_run(asked, folder, moved):
            return replace(run, prepared=prepared_again(RunFolder.open(folder, moved)))
        return _resume(folder, runner, options, moved, own_stop=own_stop)


def start(
    asked: AnyScenario,
    runner: str,
    options: RunOptions,
    storage: str | None = None,
    *,
    own_stop: bool = False,
) -> Run:
    """Start a new run. storage: a URI to copy its folder to; own_stop: see `_watched`."""
    make = RUNNERS[runner]
    if storage is not None:
        if not isinstance(options.out, Path):
            raise InputError("storage: wanted out, the folder that is copied there; give both")
        options = replace(options, storage=unused_storage(storage, options.out))
    return _watched(make, prepare(asked), options, own_stop=own_stop)


def is_found(folder: Path, storage: str | None) -> bool:
    """Return whether a run is in this folder or in a storage, from which it is downloaded there."""
    return find_copy(storage, folder) if storage is not None else RunFolder.begun(folder)


@contextmanager
def given_again(asked: AnyScenario) -> Iterator[list[str]]:
    """Inside, the folder of a run may name the code that its user's scenario names; yields where
    the data are now, for `found_run`.
    """
    tree = as_tree(asked)
    with trust_words(code_words(tree)):
        yield locations(tree)


def found_run(asked: AnyScenario, folder: Path, moved: Sequence[str]) -> Run | None:
    """Return the complete run of a folder, without its experiment; None if it is to resume.

    moved: where its data are now, see `RunFolder.open`. Raises InputError for a run with other
    settings than those asked for.
    """
    found = RunFolder.open(folder, moved)
    # how many "all" are is for the data to say
    whole = getattr(asked.method, "batch", None) == "all"
    require_settings(found, prepare(asked).spec if whole else asked)
    if found.completed_by() is None:
        return None
    copy_rest(folder)
    if is_written(folder) is False:
        drop_left_over(found)
    return Run(found.summary(), found.rows(), found.models(), folder)


def _stored(
    storage_path: str | Path | None, name: str | None, out: str | Path | None
) -> tuple[str | None, Path]:
    """Return the URI that these words name (None: a folder of this machine), and the run's folder
    here.
    """
    plain = name is not None and name not in ("", ".", "..") and name == Path(name).name
    if storage_path is None or name is None or not plain:
        raise InputError(
            "storage_path, name: wanted a folder or URI and the run's name there, without /, got "
            f"{storage_path!r} and {name!r}; give both, or out alone"
        )
    if is_uri(str(storage_path)):
        return f"{str(storage_path).rstrip('/')}/{name}", Path(out or Path("runs") / name)
    if out is not None:
        raise InputError(
            f"out: wanted none, since storage_path is a folder and the run is in "
            f"{Path(storage_path) / name}; leave one of them out"
        )
    return None, Path(storage_path) / name


@_warning
def resume(
    path: str | Path, *, runner: str | None = None, callbacks: Sequence[Callback] = ()
) -> Run:
    """Resume an interrupted run in its folder, under the virtual clock to the same bits; as
    `raydpzv resume` does.

    Hand over the same model, data and method first, if they are your own: make the scenario again.
    path: the run's folder, or the URI of a copy, which is downloaded to runs/NAME. runner: left
    out, "local", under the wall clock the run's first one. Raises InputError and DataError.
    """
    if not isinstance(path, str | Path):
        raise InputError(
            f"path: wanted the folder of a run, got {type(path).__name__}; give what `out` was"
        )
    folder = local_copy(str(path)) if is_uri(str(path)) else Path(path)
    return _resume(folder, runner, RunOptions(callbacks=callbacks), own_stop=True)


def _resume(
    folder: Path,
    runner: str | None,
    options: RunOptions,
    moved: Sequence[str] = (),
    *,
    own_stop: bool,
) -> Run:
    asked = RUNNERS[runner] if runner else None
    prepared, opened, name = continued(folder, moved)
    make = asked or RUNNERS[usual_runner(prepared.spec, opened)]
    options = replace(options, out=opened, scenario=name)
    return _watched(make, prepared, options, own_stop=own_stop)


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
