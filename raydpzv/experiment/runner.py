"""Runs of either kind, by any runner: begun, or gone on with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raydpzv.config.catalog import load
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.rebuild import gone_back_horizontal, resuming_horizontal
from raydpzv.experiment.reexecute import gone_back as gone_back_vertical
from raydpzv.experiment.reexecute import resuming
from raydpzv.experiment.run_horizontal import run_horizontal
from raydpzv.experiment.run_vertical import run_vertical
from raydpzv.records.callbacks import Callback
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import RUNNERS
from raydpzv.sim.interfaces import Status

_HERE: dict[str, Callable[[Any, RunOptions], Run]] = {
    "vertical": run_vertical,
    "horizontal": run_horizontal,
}

_GONE_BACK: dict[str, Callable[[Any, RunFolder], Prepared]] = {
    "vertical": gone_back_vertical,
    "horizontal": gone_back_horizontal,
}


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
) -> Run:
    """Run a scenario and return its summary, rows and models.

    spec: a scenario, or the name of one. out: a run folder to write, which must not hold a run yet; None writes
    nothing. runner: "local" (this process) or "ray" (server and clients are actors; joins the surrounding cluster or
    starts a local one). callbacks: told of the run while it is at work (docs/watching.md). The others as in
    `RunOptions`. Raises InputError before anything is written, RunError after.
    """
    for given in callbacks:
        if not isinstance(given, Callback):
            raise InputError(
                f"callbacks: wanted objects of raydpzv.Callback, got {given!r}; derive a class from it"
            )
    start = RUNNERS[runner]
    options = RunOptions(
        Path(out) if out is not None else None,
        scenario,
        progress,
        stop or threading.Event(),
        address,
        verbose,
        callbacks=callbacks,
    )
    asked = load(spec) if isinstance(spec, str) else spec
    if runner == "local" and asked.resources.lane == "socket":
        raise SpecError(
            'resources.lane: wanted "auto" or "ray" with the local runner, which has no actors, got "socket"'
        )
    found: Run = start(prepare(asked), options)
    return found


def run_local(experiment: Prepared, options: RunOptions | None = None) -> Run:
    """Run in this process."""
    return _HERE[experiment.spec.kind](experiment, options or RunOptions())


def continued(
    path: Path, moved: Sequence[str] = (), *, in_place: bool = False
) -> tuple[Prepared, RunFolder, str]:
    """Return what goes on, the folder it writes to (locked), and the scenario's name.

    moved: where its data are now, see `RunFolder.open`; in_place: see `resuming`. Raises InputError if the run is
    complete or cannot be continued, DataError if its folder is damaged.
    """
    if RunFolder.open(path, moved).spec().kind == "vertical":
        return resuming(path, moved, in_place=in_place)
    return resuming_horizontal(path, moved)


def gone_back(experiment: Prepared, folder: RunFolder) -> Prepared:
    """Return what goes on from the last checkpoint of the run that a folder is written by; reads alone.

    experiment: as the run was begun or continued with. Raises InputError if the run cannot go on, DataError if what it
    has written is damaged.
    """
    return _GONE_BACK[experiment.spec.kind](experiment, folder)
