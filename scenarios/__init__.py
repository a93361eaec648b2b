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

from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.closing import Run
from raydpzv.experiment.federation import Federation
from raydpzv.experiment.folder import RunFolder
from raydpzv.experiment.local import run_here
from raydpzv.experiment.prepared import Prepared, prepared
from raydpzv.experiment.spec import Spec
from raydpzv.experiment.spec_horizontal import HorizontalSpec
from raydpzv.experiment.toml import AnySpec, override
from raydpzv.sim.terms import Status
from scenarios.find import load

__all__ = ["RUNNERS", "HorizontalSpec", "Run", "Runner", "Spec", "load", "override", "run", "run_prepared"]

Runner = Literal["local", "ray"]
RUNNERS: tuple[Runner, ...] = ("local", "ray")


def run(
    spec: AnySpec | str,
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
    `actors.session.connected`. Raises InputError before anything is written, RunError after.
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
    if isinstance(experiment, Federation):
        from actors.federation import run_federation as run_on_ray

        return run_on_ray(
            experiment,
            out,
            scenario=scenario,
            progress=progress,
            stop=stop,
            address=address,
            verbose=verbose,
        )
    from actors import execute

    return execute.run_prepared(
        experiment,
        out,
        scenario=scenario,
        progress=progress,
        stop=stop,
        address=address,
        verbose=verbose,
    )
