"""Runs of either kind in this process: begun, or gone on with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from raydpzv.config.scenario_horizontal import HorizontalScenario
from raydpzv.experiment import run_vertical
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.rebuild import resuming_horizontal
from raydpzv.experiment.reexecute import resuming
from raydpzv.experiment.run_horizontal import run_horizontal
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import Status


def run_here(
    experiment: Prepared,
    out: Path | RunFolder | None = None,
    *,
    scenario: str = "",
    progress: Callable[[Status], None] = lambda status: None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment in this process, of either kind; as `raydpzv.experiment.run_vertical.run_prepared`."""
    if isinstance(experiment, PreparedHorizontal):
        return run_horizontal(experiment, out, scenario=scenario, progress=progress, stop=stop)
    return run_vertical.run_prepared(experiment, out, scenario=scenario, progress=progress, stop=stop)


def continued(path: Path) -> tuple[Prepared, RunFolder, str]:
    """Return the experiment that goes on, the folder it writes to (locked), and the scenario's name.

    Raises InputError if the run is complete or cannot be continued, DataError if its folder is damaged.
    """
    across = isinstance(RunFolder.open(path).spec(), HorizontalScenario)
    return resuming_horizontal(path) if across else resuming(path)
