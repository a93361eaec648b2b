"""Runs of either kind in this process: begun, or gone on with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from raydpzv.experiment import run
from raydpzv.experiment.closing import Run
from raydpzv.experiment.federation import Federation
from raydpzv.experiment.folder import RunFolder
from raydpzv.experiment.prepared import Prepared
from raydpzv.experiment.rebuild import resuming_federation
from raydpzv.experiment.replay import resuming
from raydpzv.experiment.run_federation import run_federation
from raydpzv.experiment.spec_horizontal import HorizontalSpec
from raydpzv.sim.terms import Status


def run_here(
    experiment: Prepared,
    out: Path | RunFolder | None = None,
    *,
    scenario: str = "",
    progress: Callable[[Status], None] = lambda status: None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment in this process; as `raydpzv.experiment.run.run_prepared`, for scenarios of either kind."""
    if isinstance(experiment, Federation):
        return run_federation(experiment, out, scenario=scenario, progress=progress, stop=stop)
    return run.run_prepared(experiment, out, scenario=scenario, progress=progress, stop=stop)


def continued(path: Path) -> tuple[Prepared, RunFolder, str]:
    """Return the experiment that goes on, the folder it writes to (locked), and the scenario's name.

    Raises InputError if the run is complete or cannot be continued, DataError if its folder is damaged.
    """
    across = isinstance(RunFolder.open(path).spec(), HorizontalSpec)
    return resuming_federation(path) if across else resuming(path)
