"""Scenario files, the command line, and the few names a Python user needs.

import scenarios

spec = scenarios.load("digits_dpzv", ["method.perturbations=2", "budget.updates=500"])
run = scenarios.run(spec)                       # in this process
run = scenarios.run(spec, runner="ray")         # one actor per client
run.summary["accuracy"], run.rows("evaluation")  # an Arrow table
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.scenario_horizontal import HorizontalScenario
from raydpzv.config.toml import AnyScenario, override
from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.finalize import Run
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.prepare import Prepared, prepared
from raydpzv.experiment.runner import run_here
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import Status
from scenarios.catalog import load

__all__ = [
    "RUNNERS",
    "HorizontalScenario",
    "Run",
    "Runner",
    "VerticalScenario",
    "load",
    "override",
    "run",
    "run_prepared",
]

Runner = Literal["local", "ray"]
RUNNERS: tuple[Runner, ...] = ("local", "ray")


def run(
    spec: AnyScenario | str,
    out: str | Path | None = None,
    *,
    runner: Runner = "local",
    scenario: str = "",
    progress: Callable[[Status], None] = lambda status: None,
    stop: threading.Event | None = None,
    address: str | None = None,
    verbose: bool = False,
) -> Run:
    """Run a scenario and return its summary, rows and models.

    spec: a scenario, or the name of one.
    out: a run folder to write, which must not hold a run yet; None writes nothing. runner: "local" (this process)
    or "ray" (server and clients are actors; joins the surrounding cluster or starts a local one). progress is
    called with where the run stands; setting `stop` ends it cleanly. address, verbose: for Ray, see
    `actors.cluster.connected`. Raises InputError before anything is written, RunError after.
    """
    folder = Path(out) if out is not None else None
    if runner not in RUNNERS:
        raise SpecError(
            f'runner "{runner}" is unknown. {suggest(runner, RUNNERS)}Choose {", ".join(RUNNERS)}'
        )
    return run_prepared(
        prepared(load(spec) if isinstance(spec, str) else spec),
        folder,
        runner=runner,
        scenario=scenario,
        progress=progress,
        stop=stop,
        address=address,
        verbose=verbose,
    )


def run_prepared(
    experiment: Prepared,
    out: Path | RunFolder | None,
    *,
    runner: Runner,
    scenario: str = "",
    progress: Callable[[Status], None] = lambda status: None,
    stop: threading.Event | None = None,
    address: str | None = None,
    verbose: bool = False,
) -> Run:
    """Run an experiment whose data is loaded already; as `run`."""
    if runner == "local":
        return run_here(experiment, out, scenario=scenario, progress=progress, stop=stop)
    if isinstance(experiment, PreparedHorizontal):
        from actors.horizontal.driver import run_horizontal as run_on_ray

        return run_on_ray(
            experiment,
            out,
            scenario=scenario,
            progress=progress,
            stop=stop,
            address=address,
            verbose=verbose,
        )
    from actors.vertical import driver

    return driver.run_prepared(
        experiment,
        out,
        scenario=scenario,
        progress=progress,
        stop=stop,
        address=address,
        verbose=verbose,
    )
