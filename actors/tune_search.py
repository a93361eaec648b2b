"""A search on Ray Tune: trials side by side, each whole in one process or with actors of its own.

An interrupted search resumes from its own folder. Tune's saved state is never read, and objects
handed to Tune here are saved as nothing (`__reduce__`).
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from actors.cluster import connected
from actors.machines import cluster_machines
from actors.own_objects import check_travel, put_data, take_data
from actors.runner import run_on_ray
from actors.trial_resources import TrialNeeds, trial_with_actors, whole_trials
from actors.tune_trainable import (
    Pauses,
    TrialHooks,
    TrialSettings,
    Work,
    require_tune,
    trainable_class,
    trial_resources,
)
from raydpzv.compare.plan import Planned
from raydpzv.compare.run_comparison import RUNS_FOLDER, STOPPED, PoolOptions, run_planned
from raydpzv.errors import RunError, command
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import run_local
from raydpzv.records.callbacks import StatusCallback
from raydpzv.records.secrets_file import read_key
from raydpzv.search.asha import Promotion, TrialLeg
from raydpzv.search.run_search import Make
from raydpzv.search.search_folder import SEARCH, Decision, cut_short, decision_log, decisions
from raydpzv.search.search_plan import REDUCTION, SearchPlan, Trial
from raydpzv.search.search_terms import SearchWatch

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # its progress beside ours
    # a folder of its own for each trial, in which no relative path is right
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # a second record of each trial, beside its run folder
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # tracebacks: the table gives the reason in one line
}
"""Tune's own behaviour that is switched off."""
_BEAT = 1.0
"""Seconds between a trial's reports of its updates: how long a stop may wait for it."""
_OWN_FILES = "tune"
"""Folder of Tune's own files below the search's, removed at its end."""


Needs = Mapping[int, TrialNeeds]
"""The resources of each trial, by its number."""


@contextmanager
def tune_cluster(address: str | None, *, verbose: bool) -> Iterator[None]:
    """Be connected to a Ray for trials. Raises InputError if Ray Tune is not installed."""
    require_tune()
    with connected(address, verbose=verbose):
        yield


def cluster_needs(trials: Sequence[Trial], *, actors: bool) -> Needs:
    """Return the trials' resources in the connected cluster; actors: each trial has its own.

    Raises Unplaceable with the arithmetic unless the cluster can hold each alone.
    """
    machines = cluster_machines()
    specs = [trial.spec for trial in trials]
    alike = whole_trials(specs, machines) if trials and not actors else None
    needs = {trial.number: alike or trial_with_actors(trial.spec, machines) for trial in trials}
    for one in _distinct(needs):
        one.check(machines)
        if actors:
            one.try_out()
    return needs


def _distinct(needs: Needs) -> list[TrialNeeds]:
    found = list[TrialNeeds]()
    for one in needs.values():
        if one not in found:
            found.append(one)
    return found


@contextmanager
def on_tune(pool: PoolOptions, plan: SearchPlan, todo: Sequence[Trial]) -> Iterator[Make]:
    """Yield what runs trials on Ray Tune. What does not fit or cannot travel is refused before
    anything is written.
    """
    check_travel(trial.spec for trial in todo)

    def make(
        plan: SearchPlan,
        todo: Sequence[Trial] | Promotion,
        folder: Path,
        watch: SearchWatch,
        stop: threading.Event,
        until: int | None,
    ) -> None:
        search = TuneSearch(plan, folder, watch, stop, pool.jobs)
        if isinstance(todo, Promotion):
            search.promote(todo)
        elif todo:
            search.run(todo, cluster_needs(todo, actors=plan.actors), until)

    with tune_cluster(pool.address, verbose=pool.verbose):
        cluster_needs(todo, actors=plan.actors)
        yield make


@dataclass(frozen=True)
class TuneSearch:
    """A search on Ray Tune, inside `tune_cluster`, until all trials are over or `stop` is set.

    jobs: most trials at a time (None: as many as fit). A trial whose process dies has no result;
    the others continue.
    """

    plan: SearchPlan
    folder: Path
    watch: SearchWatch
    stop: threading.Event
    jobs: int | None = None

    def run(self, todo: Sequence[Trial], needs: Needs, until: int | None = None) -> None:
        """Run trials; needs: see `cluster_needs`; until: updates after which each pauses (None: at
        its end).
        """
        grid = require_tune().grid_search([trial.number for trial in todo])
        with decision_log(self.folder) as log:
            self._fit(
                todo,
                needs,
                param_space={"trial": grid, "until": until},
                # a process keeps the group that it was started in
                reuse_actors=not self.plan.actors,
                max_concurrent_trials=self.jobs,
                scheduler=scheduler_of(self.plan, self.folder, log),
            )

    def promote(self, todo: Promotion) -> None:
        """Resume the trials that a search promotes until none is left to promote.

        Without `jobs`, as many at a time as fit the cluster as it is now: a trial is chosen when
        there is room for it.
        """
        trials = list(self.plan.started())
        needs = cluster_needs(trials, actors=False)
        machines = cluster_machines()
        self._fit(
            trials,
            needs,
            param_space={},
            reuse_actors=True,
            max_concurrent_trials=self.jobs
            or min(one.capacity(machines) for one in _distinct(needs)),
            search_alg=_searcher(todo, self.watch, self.stop),
            num_samples=-1,
        )

    def _fit(
        self, trials: Sequence[Trial], needs: Needs, *, param_space: Mapping[str, Any], **how: Any
    ) -> None:
        """Let Tune run trials; its configurations name them by number, and the updates after which
        they pause.
        """
        tune, folder = require_tune(), self.folder.absolute()
        os.environ.update(_ENVIRONMENT)
        logging.getLogger("ray.tune").setLevel(
            logging.CRITICAL
        )  # we report failed trials ourselves
        data = put_data(trial.spec for trial in trials)
        work = _work({trial.number: trial.planned() for trial in trials}, needs, folder, data)
        gpus = max(one.process.gpus for one in needs.values())
        pauses = Pauses(all(trial.spec.clock.kind == "virtual" for trial in trials), _BEAT)
        with _without_own_files(folder):
            tune.Tuner(
                tune.with_resources(
                    trainable_class(TrialSettings(work, gpus, pauses)),
                    lambda config: trial_resources(needs[config["trial"]]),
                ),
                param_space=param_space,
                tune_config=tune.TuneConfig(
                    trial_name_creator=_name, trial_dirname_creator=_dirname, **how
                ),
                run_config=tune.RunConfig(
                    name=_OWN_FILES,
                    storage_path=str(folder),
                    stop=_stopper(self.stop),
                    callbacks=[_callback(self.watch)],
                    failure_config=tune.FailureConfig(max_failures=0),
                    verbose=0,
                ),
            ).fit()


@contextmanager
def _without_own_files(folder: Path) -> Iterator[None]:
    """Remove the files that Tune writes for itself, and turn its error into one line."""
    from ray.tune import TuneError

    shutil.rmtree(folder / _OWN_FILES, ignore_errors=True)
    try:
        yield
    except TuneError as error:
        last = str(error).strip().rpartition("\n")[2]
        raise RunError(
            f"Ray Tune broke off ({last}); continue with: {command('resume', folder)}"
        ) from error
    finally:
        shutil.rmtree(folder / _OWN_FILES, ignore_errors=True)


def _work(
    trials: Mapping[int, Planned], needs: Needs, folder: Path, data: Mapping[str, Any]
) -> Work:
    def run_trial(config: Mapping[str, Any], hooks: TrialHooks) -> str:
        take_data(data)
        if not (folder / SEARCH).is_file():
            return (
                f"{folder} is not on the machine of this trial; give an --out that all machines of "
                "the cluster see"
            )
        planned, own = trials[config["trial"]], needs[config["trial"]]
        options = RunOptions(
            stop=hooks.stop,
            callbacks=[StatusCallback(hooks.progress)],
            data_key=read_key(
                folder
            ),  # read there: what is handed over here Tune writes into a file
            evaluated=hooks.evaluated,
            until=config["until"],
        )
        run = partial(run_on_ray, place=own.place(hooks.group)) if own.actors else run_local
        reason = run_planned(planned, folder / RUNS_FOLDER / planned.folder, options, run)
        return "" if reason == STOPPED else reason

    return run_trial


def _name(trial: Any) -> str:
    return f"{trial.config['trial']:04d}"


def _dirname(trial: Any) -> str:
    # a continued trial is another one to Tune
    return f"{_name(trial)}-{trial.config['until'] or 'end'}"


def _searcher(todo: Promotion, watch: SearchWatch, stop: threading.Event) -> Any:
    """Return the object that Tune asks for the next trial whenever there is room for one."""
    from ray.tune.search import Searcher

    class Promoting(Searcher):
        def __init__(self) -> None:
            super().__init__()
            self._legs = dict[str, TrialLeg]()

        def suggest(self, trial_id: str) -> Any:
            if stop.is_set() or ((leg := todo.next_leg()) is None and not self._legs):
                return self.FINISHED
            if leg is None:
                return None
            self._legs[trial_id] = leg
            watch.sent(leg)
            return {"trial": leg.trial, "until": leg.until}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            todo.ended(self._legs.pop(trial_id))

        def save(self, checkpoint_path: str) -> None:
            """Save nothing: a search resumes from its own folder."""

        def restore(self, checkpoint_path: str) -> None:
            """Start anew, as any search does in Tune."""

        def __reduce__(self) -> Any:
            return Searcher, ()

    return Promoting()


def scheduler_of(plan: SearchPlan, folder: Path, log: Callable[[Decision], object]) -> Any:
    """Return the scheduler: none, or Tune's ASHA with the reports from before an interruption."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

    if plan.scheduler != "asha":
        return FIFOScheduler()
    asha: Any = ASHAScheduler(
        "updates",
        plan.metric,
        "max" if plan.higher else "min",
        max_t=plan.budget,
        grace_period=plan.grace,
        reduction_factor=REDUCTION,
    )
    known = dict[int, Any]()

    def named(number: int) -> Any:
        """Return a trial under the name that ASHA knows, the same after an interruption."""
        if number not in known:
            known[number] = SimpleNamespace(trial_id=f"{number:04d}")
            asha.on_trial_add(None, known[number])
        return known[number]

    def decide(number: int, report: Mapping[str, Any]) -> bool:
        """Return whether to stop a trial; one that has spent its budget ends by itself."""
        stops = asha.on_trial_result(None, named(number), dict(report)) == TrialScheduler.STOP
        return stops and report["updates"] < plan.budget

    for told in decisions(folder):
        decide(told.trial, {"updates": told.updates, plan.metric: told.value})
    cut = cut_short(folder)

    class LoggedHalving(FIFOScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            number, updates = trial.config["trial"], result["updates"]
            if plan.metric not in result:  # a report between evaluations
                return str(TrialScheduler.CONTINUE)
            if (
                number in cut
            ):  # decided before the interruption, which came before its run had ended
                stops = updates >= cut[number]
            else:
                stops = decide(number, result)
                log(Decision(number, updates, result[plan.metric], stops))
            return TrialScheduler.STOP if stops else TrialScheduler.CONTINUE

        def __reduce__(self) -> Any:
            return FIFOScheduler, ()

    return LoggedHalving()


def _stopper(stop: threading.Event) -> Any:
    from ray.tune import Stopper
    from ray.tune.stopper import NoopStopper

    class UsersStopper(Stopper):
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return stop.is_set()

        def __reduce__(self) -> Any:
            return NoopStopper, ()

    return UsersStopper()


def _callback(watch: SearchWatch) -> Any:
    from ray.tune import Callback

    class Reporting(Callback):
        def on_trial_start(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            watch.began(trial.config["trial"])

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if "reason" not in result:
                watch.reported(trial.config["trial"], result)

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            watch.ended(trial.config["trial"], str(trial.last_result.get("reason", "")))

        def on_trial_error(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            error = trial.get_pickled_error() or trial.get_error()
            watch.ended(
                trial.config["trial"],
                " ".join((str(error) or "its process was lost").split())[:500],
            )

        def __reduce__(self) -> Any:
            return Callback, ()

    return Reporting()
