"""The trials of a search on Ray Tune: one `Tuner` over the trainable, new or restored.

A trial is whole in one process, or has actors of its own. Its run's folder is the truth: whatever
Tune has saved of a trial that was killed, the trial resumes in its folder.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs

from actors.cluster import connected
from actors.machines import cluster_machines
from actors.own_objects import check_travel, put_data, take_data
from actors.runner import run_on_ray
from actors.shares import Share
from actors.trial_resources import TrialNeeds, trial_with_actors, whole_trials
from actors.tune_trainable import (
    Pauses,
    TrialHooks,
    TrialSettings,
    require_tune,
    run_trial,
    trainable_class,
    trial_resources,
)
from raydpzv.compare.run_comparison import RUNS_FOLDER
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import override
from raydpzv.errors import (
    InputError,
    RaydpzvError,
    RunError,
    SpecError,
    StoppedEarly,
    command,
    suggest,
)
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.experiment.runner import run_local
from raydpzv.files import SEARCH, keep_traceback
from raydpzv.search.schedulers import PAUSES, without_checkpoint
from raydpzv.search.search_terms import SearchWatch, TrialOutcomes, TuneOptions
from raydpzv.search.space import literal
from raydpzv.search.trial_checkpoint import TrialRun
from raydpzv.search.tune_plan import SearchPlan, Trial, plan_words, read_plan
from raydpzv.trust import trust_words

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # its progress beside ours
    # a folder of its own for each trial, in which no relative path is right
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # a second record of each trial; loggers that a user asks for are callbacks
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # tracebacks: the table gives the reason in one line
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a run that diverges has no metric
}
"""Tune's own behaviour that is switched off."""
_BEAT = 1.0
"""Seconds between a trial's reports of its updates: how long a stop may wait for it."""
_STATE = "tune"
"""Folder of Tune's own files below the search's."""
_COPIES = 4
"""Copies of a run that Tune keeps: those that others may still resume from."""

_LOGGERS = {
    "csv": "CSVLoggerCallback",
    "json": "JsonLoggerCallback",
    "tensorboard": "TBXLoggerCallback",
}
"""Tune's loggers by name; others are callbacks."""

Run = Callable[[Path, SearchWatch, threading.Event], TrialOutcomes]


@contextmanager
def on_tune(plan: SearchPlan, how: TuneOptions) -> Iterator[Run]:
    """Yield what runs the trials of a search; as `raydpzv.registry.TUNERS` finds it.

    What does not fit or cannot travel is refused before anything is written.
    """
    require_tune()
    if plan.suggestions is not None:
        from actors.tune_rules import require_optuna

        require_optuna()
    check_travel(_specs(plan))
    _loggers(how, plan.metric)
    with connected(how.address, verbose=how.verbose):
        needs = _Needs(plan, how.jobs)
        needs.check()
        yield lambda folder, watch, stop: _run(plan, how, needs, folder, watch, stop)


def _specs(plan: SearchPlan) -> list[AnyScenario]:
    return [trial.spec for trial in plan.started] or [plan.first_spec]


class _Needs:
    """What each trial of a search asks of the connected cluster."""

    def __init__(self, plan: SearchPlan, jobs: int | None) -> None:
        self._plan, self._machines = plan, cluster_machines()
        self._alike = None if plan.place.actors else whole_trials(_specs(plan), self._machines)
        if self._alike and jobs and plan.scheduling.name in PAUSES:
            # paused trials count for Tune's own limit, so each asks for its part of the cluster
            cpus = [machine.has.get("CPU", 0.0) for machine in self._machines]
            part = max(1.0, min(sum(cpus) / jobs, max(cpus)))
            self._alike = TrialNeeds(Share(part, self._alike.process.gpus))

    def of(self, spec: AnyScenario) -> TrialNeeds:
        """Return the needs of a trial. Raises Unplaceable with the arithmetic."""
        return self._alike or trial_with_actors(spec, self._machines)

    def of_config(self, config: Mapping[str, Any]) -> Any:
        """Return the same as Tune takes it, of a trial's configuration."""
        return trial_resources(self._alike or self.of(_trial_of(self._plan, config).spec))

    def check(self) -> None:
        """Raise Unplaceable unless the cluster can hold each trial alone."""
        checked = list[TrialNeeds]()
        for spec in _specs(self._plan):
            if (one := self.of(spec)) not in checked:
                checked.append(one)
                one.check(self._machines)
                if one.actors:
                    one.try_out()

    @property
    def gpus(self) -> float:
        """The share of a GPU of a trial's own process."""
        return self._alike.process.gpus if self._alike else 0.0


def _trial_of(plan: SearchPlan, config: Mapping[str, Any], number: int | None = None) -> Trial:
    """Return the trial of a configuration; number: which it is, if that is known."""
    from actors.tune_rules import TRIAL, configuration, settings_of

    if TRIAL in config:
        return plan.trial(int(config[TRIAL]), 0, settings_of(plan, config))
    if number is not None:
        return plan.trials[number]
    tried = {name: value for name, value in config.items() if value is not None}
    return next(trial for trial in plan.started if configuration(trial) == tried)


def _run(
    plan: SearchPlan,
    how: TuneOptions,
    needs: _Needs,
    folder: Path,
    watch: SearchWatch,
    stop: threading.Event,
) -> TrialOutcomes:
    """Run the trials until all are over or `stop` is set."""
    from ray.tune import TuneError

    from actors.tune_rules import Observed, TuneObserver

    tune, reasons = require_tune(), dict[int, str]()
    os.environ.update(_ENVIRONMENT)
    # failed trials are reported by the table
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    trainable = tune.with_resources(_trainable(plan, needs, folder.absolute()), needs.of_config)
    where = _Experiment(plan, folder)
    TuneObserver.search = Observed(plan, watch, stop, reasons)
    try:
        tuner = where.restored(trainable) or _new_tuner(plan, how, trainable, where)
        where.keep_plan(folder)
        tuner.fit()
    except TuneError as error:
        last = str(error).strip().rpartition("\n")[2]
        raise RunError(
            f"Ray Tune broke off ({last}); continue with: {command('resume', folder)}"
        ) from error
    finally:
        TuneObserver.search = None
    return where.outcome(folder, reasons, stopped=stop.is_set())


def _new_tuner(plan: SearchPlan, how: TuneOptions, trainable: Any, where: _Experiment) -> Any:
    from actors.tune_rules import TuneObserver, scheduler_of, searcher_of

    tune = require_tune()
    return tune.Tuner(
        trainable,
        param_space={} if plan.suggestions else dict.fromkeys(plan.settings),
        tune_config=tune.TuneConfig(
            scheduler=scheduler_of(plan),
            search_alg=searcher_of(plan, None if plan.scheduling.name in PAUSES else how.jobs),
            num_samples=plan.size,
            # a process keeps the placement group that it was started in
            reuse_actors=not plan.place.actors,
        ),
        run_config=tune.RunConfig(
            name=where.name,
            storage_path=where.parent,
            callbacks=[TuneObserver(), *_loggers(how, plan.metric), *how.callbacks],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=_COPIES, checkpoint_at_end=plan.place.storage is not None
            ),
            verbose=0,
        ),
    )


def _loggers(how: TuneOptions, metric: str) -> list[Any]:
    """Return Tune's loggers by their names. Raises SpecError."""
    for name in how.loggers:
        if name not in _LOGGERS:
            near = suggest(name, _LOGGERS)
            raise SpecError(
                f'--log: wanted {", ".join(_LOGGERS)}, comma between them, got "{name}". {near}'.rstrip()
            )
    found = importlib.import_module("ray.tune.logger")
    return [_of_evaluations(getattr(found, _LOGGERS[name]), metric)() for name in how.loggers]


def _of_evaluations(logger: type[Any], metric: str) -> type[Any]:
    """Return a logger that leaves out reports of how far a run is: one's first report decides its
    columns.
    """

    def log_trial_result(self: Any, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        if metric in result:
            logger.log_trial_result(self, iteration, trial, result)

    return type(logger.__name__, (logger,), {"log_trial_result": log_trial_result})


def _trainable(plan: SearchPlan, needs: _Needs, folder: Path) -> type[Any]:
    """Return the trainable of a search's trials."""
    data = put_data(_specs(plan))
    keeps = plan.place.storage is not None or plan.scheduling.name in PAUSES

    def trial_run(config: Mapping[str, Any], trial_id: str, workplace: Path) -> TrialRun:
        from actors.tune_rules import number_of

        trial = _trial_of(plan, config, number_of(plan, trial_id, config))
        spec, name = trial.spec, trial.planned().folder
        if plan.copies:  # step sizes that were copied from another trial
            spec = override(spec, [f"{key}={literal(config[key])}" for key in trial.values])
        runs = (folder if plan.place.storage is None else workplace) / RUNS_FOLDER
        return TrialRun(runs / name, spec, name, trial.settings, charged=True)

    def work(config: Mapping[str, Any], hooks: TrialHooks) -> str:
        assert hooks.run is not None
        take_data(data)
        if plan.place.storage is None and not (folder / SEARCH).is_file():
            raise RunError(
                f"{folder} is not on the machine of this trial; give an --out that all machines of "
                "the cluster see, or --storage"
            )
        own = needs.of(hooks.run.spec)
        run = partial(run_on_ray, place=own.place(hooks.group)) if own.actors else run_local
        return _with_reason(hooks.run, lambda: run_trial(hooks, keeps=keeps, run=run))

    pauses = Pauses(all(spec.clock.kind == "virtual" for spec in _specs(plan)), _BEAT)
    settings = TrialSettings(work, needs.gpus, pauses, trial_run, plan.place.storage is not None)
    return trainable_class(settings)


def _with_reason(run: TrialRun, make: Callable[[], str]) -> str:
    """Make a run; a failure becomes one line, and its traceback a file in the run's folder.

    A run that diverged is at its end.
    """
    try:
        return make()
    except StoppedEarly:
        return ""
    except Exception as error:
        if run.final_report() is not None:
            return ""

        # a wrong setting needs no traceback
        if run.path.is_dir() and not isinstance(error, InputError):
            keep_traceback(run.path)
        line = str(error) if isinstance(error, RaydpzvError) else f"{type(error).__name__}: {error}"
        raise RunError(" ".join(line.split())) from error


class _Experiment:
    """Where Tune keeps its state of a search, and with a storage copies of the runs."""

    def __init__(self, plan: SearchPlan, folder: Path) -> None:
        self._plan = plan
        self.name = _STATE if plan.place.storage is None else plan.name
        self.parent = (
            str(folder.absolute()) if plan.place.storage is None else plan.place.storage.rstrip("/")
        )
        self.path = f"{self.parent}/{self.name}"

    def restored(self, trainable: Any) -> Any:
        """Return the Tuner of this search, None where there is none yet. Raises InputError."""
        tune = require_tune()
        if not tune.Tuner.can_restore(self.path):
            return None
        if self._plan.place.storage is not None:
            self._check_stored()
        # a trial that failed is tried again
        return tune.Tuner.restore(self.path, trainable, resume_errored=True)

    def _check_stored(self) -> None:
        """Raise InputError for a storage with another search, or that no search can resume from."""
        files, path = pyarrow.fs.FileSystem.from_uri(f"{self.path}/{SEARCH}")
        with tempfile.TemporaryDirectory() as scratch:
            pyarrow.fs.copy_files(path, f"{scratch}/{SEARCH}", source_filesystem=files)
            # a copy has no mark, and the user gave the search again
            with trust_words(plan_words(self._plan)):
                stored = read_plan(Path(scratch) / SEARCH)

        if not stored.same_as(self._plan):
            raise InputError(f"{self.path}: holds another search; choose another --storage")
        for spec in _specs(self._plan):
            setting = planned_privacy(spec)
            if (setting is not None and setting.noise == "system") or without_checkpoint(spec):
                raise InputError(
                    f"{self.path}: trials draw what no copy keeps, such as noise of the operating "
                    "system, and what they released before is on no record here; start a new "
                    "search in another --storage, or one with an --out that all machines see"
                )

    def keep_plan(self, folder: Path) -> None:
        """Copy the plan to the storage, if there is one."""
        if self._plan.place.storage is not None:
            pyarrow.fs.copy_files(str(folder / SEARCH), f"{self.path}/{SEARCH}")

    def outcome(self, folder: Path, reasons: Mapping[int, str], *, stopped: bool) -> TrialOutcomes:
        """Return what Tune says of the trials; download the runs that are in the storage alone."""
        from actors.tune_rules import number_of

        tune = require_tune()
        trials = {
            number_of(self._plan, trial.trial_id, trial.config): trial
            for trial in tune.ExperimentAnalysis(self.path).trials or []
        }
        if self._plan.place.storage is not None:
            for number, trial in trials.items():
                _download(trial, folder / RUNS_FOLDER / f"{number:04d}")
        return TrialOutcomes(
            frozenset(n for n, trial in trials.items() if trial.status == "TERMINATED"),
            frozenset(n for n, t in trials.items() if t.status != "PENDING" or t.last_result),
            reasons,
            stopped,
        )


def _download(trial: Any, path: Path) -> None:
    """Download the last copy of a trial's run."""
    if trial.checkpoint is None:
        return
    made = path.with_name(f"{path.name}.copy")
    shutil.rmtree(made, ignore_errors=True)
    trial.checkpoint.to_directory(made)
    shutil.rmtree(path, ignore_errors=True)
    made.rename(path)
