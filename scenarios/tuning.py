"""A scenario as a trainable of Ray Tune, for a Tuner of one's own.

from ray import tune
from scenarios.tuning import resources, trainable

spec = raydpzv.load("digits_dpzv", ["budget.updates=500"])
tune.Tuner(
    tune.with_resources(trainable(spec), resources(spec)),
    param_space={"method.lr": tune.loguniform(1e-3, 1e-1), "seed": tune.grid_search([0, 1])},
).fit()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.trial_resources import TrialNeeds, whole_trials
from actors.tune_trainable import (
    Pauses,
    TrialHooks,
    TrialSettings,
    run_trial,
    trainable_class,
    trial_resources,
)
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import override
from raydpzv.search.space import in_order, literal
from raydpzv.search.trial_checkpoint import TrialRun

__all__ = ["resources", "trainable"]


def trainable(spec: AnyScenario, out: str | Path | None = None) -> type[Any]:
    """Return a class for `tune.Tuner` whose trials are runs of a scenario, each whole in its own
    process.

    A trial's configuration holds settings by their dotted names, such as "method.lr". It reports at
    every evaluation: accuracy, loss, areas of two classes, the same with validation_ before them,
    updates, simulated_seconds, and epsilon_client and epsilon_paper where they are accounted, and
    run_folder; and stands still until Tune has decided. One that Tune stops ends cleanly. Tune's
    checkpoints are copies of the run's folder, from which trials resume.

    out: a folder that all machines see, in which each trial has its run's folder, by Tune's name of
    the trial. None: on the trial's machine, with a checkpoint at every evaluation. Raises
    InputError if Ray Tune is not installed; a trial raises SpecError for settings that do not fit.
    """
    folder = None if out is None else Path(out).absolute()

    def trial_run(config: Mapping[str, Any], trial: str, workplace: Path) -> TrialRun:
        settings = in_order(f"{name}={literal(value)}" for name, value in config.items())
        return TrialRun((folder or workplace / "runs") / trial, override(spec, settings), trial)

    def work(config: Mapping[str, Any], hooks: TrialHooks) -> str:
        return run_trial(hooks, keeps=True)

    pauses = Pauses(waits=spec.clock.kind == "virtual")
    gpus = _needs(spec).process.gpus
    return trainable_class(TrialSettings(work, gpus, pauses, trial_run, keeps=folder is None))


def resources(spec: AnyScenario) -> Any:
    """Return what a trial asks for, for `tune.with_resources`: 1 CPU, and its parties' GPU shares
    together.
    """
    return trial_resources(_needs(spec))


def _needs(spec: AnyScenario) -> TrialNeeds:
    """A GPU share that is "auto" is none before Ray has started."""
    import ray

    from actors.machines import cluster_machines

    return whole_trials([spec], cluster_machines() if ray.is_initialized() else None)
