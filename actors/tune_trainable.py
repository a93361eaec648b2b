"""A trial of Ray Tune: a run in one process, which waits at each evaluation for Tune's decision."""

from __future__ import annotations

import importlib
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors.device import claim_device
from actors.trial_resources import TrialNeeds
from raydpzv.errors import missing
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.runner import run_local
from raydpzv.methods.roles import Metrics
from raydpzv.records.callbacks import StatusCallback
from raydpzv.search.trial_checkpoint import MEASURED, TrialRun
from raydpzv.sim.interfaces import Evaluated, Status


@dataclass(frozen=True)
class TrialHooks:
    """The links of a trial's run to Tune. evaluated: to call at evaluations; progress: to call with
    its status.

    stop: stops the run. group: the placement group of its process, if it has one. run: the run.
    """

    evaluated: Evaluated
    progress: Callable[[Status], None]
    stop: threading.Event
    group: Any
    run: TrialRun | None = None


Work = Callable[[Mapping[str, Any], TrialHooks], str]
"""Runs one trial of a configuration; returns why there is no result, "" if there is one, or
raises.
"""
Runs = Callable[[Mapping[str, Any], str, Path], TrialRun]
"""Returns the run of a trial, by its configuration, its name in Tune, and Tune's folder for it on
this machine.
"""


def require_tune() -> Any:
    """Return `ray.tune`. Raises InputError with the command that installs it."""
    try:
        return importlib.import_module("ray.tune")
    except ImportError:
        raise missing("Ray Tune", "tune") from None


def trial_resources(needs: TrialNeeds) -> Any:
    """Return what a trial asks for, as Tune takes it."""
    return require_tune().PlacementGroupFactory(needs.bundles(), strategy=needs.strategy)


def run_trial(
    hooks: TrialHooks, *, keeps: bool, run: Callable[[Prepared, RunOptions], Run] = run_local
) -> str:
    """Start or resume a trial's run; return "", since there is a result.

    keeps: write a checkpoint at each evaluation; run: makes the run, in this process if none is
    given.
    """
    assert hooks.run is not None
    experiment, folder = hooks.run.started()

    options = RunOptions(
        folder,
        stop=hooks.stop,
        evaluated=hooks.evaluated,
        callbacks=[StatusCallback(hooks.progress)],
        keep_evaluated=keeps,
    )
    run(experiment, options)
    return ""


def measured(status: Status, metrics: Metrics) -> dict[str, float]:
    """Return what a trial reports at an evaluation; a metric that was not measured is left out."""
    found: dict[str, float | None] = {}
    for part, given in (("", metrics), ("validation_", metrics.validation)):
        for name in MEASURED if given else ():
            found[f"{part}{name}"] = getattr(given, name)
        found |= {f"{part}{name}": value for name, value in given.measures.items()} if given else {}
    paper, client = status.privacy.epsilons()
    found |= {"updates": status.updates, "simulated_seconds": status.time}
    found |= {"epsilon_client": client, "epsilon_paper": paper}
    return {
        name: value for name, value in found.items() if value is not None and not math.isnan(value)
    }


@dataclass(frozen=True)
class Pauses:
    """When a trial's run reports and waits.

    waits: it stands still at each evaluation until Tune has decided; under the wall clock it must
    not. beat: seconds after which it reports its updates without an evaluation (None: never).
    after: updates up to which evaluations were reported before.
    """

    waits: bool
    beat: float | None = None
    after: int = 0


class PausingRun(threading.Thread):
    """A trial's run in a thread of its own. group, own: see `TrialHooks.group` and `run`."""

    def __init__(
        self,
        work: Work,
        config: Mapping[str, Any],
        pauses: Pauses,
        group: Any = None,
        own: TrialRun | None = None,
    ) -> None:
        super().__init__(name="trial", daemon=True)
        self._work, self._config, self._pauses = work, config, pauses
        self._group, self._own = group, own
        self._stop_asked, self._go_on = threading.Event(), threading.Semaphore(0)
        self._reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self._status, self._paused = Status(), False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the trial to its end."""
        last: dict[str, Any] = {"reason": ""}
        try:
            hooks = TrialHooks(
                self._evaluated, self._note, self._stop_asked, self._group, self._own
            )
            last["reason"] = self._work(self._config, hooks)
        except BaseException as error:
            self._error = error
        self._reports.put(last)

    def next_report(self) -> dict[str, Any]:
        """Let the run continue to its next evaluation, and return its measures; at its end
        {"reason": ...}.

        A report without any measure has the updates alone. Raises the run's error.
        """
        if self.ident is None:
            self.start()
        elif self._paused:
            self._go_on.release()

        # without an evaluation in time, how far the run is lets Tune act
        try:
            report = self._reports.get(timeout=self._pauses.beat)
        except queue.Empty:
            self._paused = False
            return {"updates": self._status.updates}
        self._paused = self._pauses.waits
        if self._error:
            raise self._error
        return report

    def end(self) -> None:
        """Stop the run after the update in progress, and wait until it has written its record."""
        self._stop_asked.set()
        self._go_on.release()
        if self.is_alive():
            self.join()

    def _note(self, status: Status) -> None:
        self._status = status

    def _evaluated(self, status: Status, metrics: Metrics) -> None:
        if self._stop_asked.is_set() or status.updates <= self._pauses.after:
            return
        self._reports.put(measured(status, metrics))
        if self._pauses.waits:
            self._go_on.acquire()


@dataclass(frozen=True)
class TrialSettings:
    """The settings that a Tuner's trials share. work: runs one; gpus: the share of a GPU that each
    is given.

    pauses: without `after`. runs: of which Tune's checkpoints are copies; None where the caller
    resumes runs itself.
    keeps: ask Tune for a checkpoint at every report.
    """

    work: Work
    gpus: float
    pauses: Pauses
    runs: Runs | None = None
    keeps: bool = False


def trainable_class(settings: TrialSettings) -> type[Any]:
    """Return a `tune.Trainable` for trials with these settings."""
    shared = {"settings": settings, "workplace": os.getcwd()}
    return type("RunTrainable", (_RunTrainable, require_tune().Trainable), shared)


class _RunTrainable:
    """The methods of a `tune.Trainable`: it reports at every evaluation after the first update,
    "reason" at the end.

    A process that is reused for another trial stops the trial before first, so that every run
    writes its summary.
    """

    settings: TrialSettings
    workplace: str
    trial_id: str
    logdir: str
    _run: PausingRun
    _last: dict[str, Any]

    def setup(self, config: dict[str, Any]) -> None:
        """Start in a new process."""
        import ray

        claim_device(self.settings.gpus)
        self._group = ray.util.get_current_placement_group()
        if os.path.isdir(self.workplace):
            os.chdir(self.workplace)
        self._begin(config)

    def step(self) -> dict[str, Any]:
        """Run to the next report and return it."""
        final = self._own.final_report() if self._own and self._run.ident is None else None
        report = self._run.next_report() if final is None else {**final, "reason": ""}
        named = {"run_folder": str(self._own.path)} if self._own else {}
        if self._own and "updates" in report:
            report["evaluations"] = report["updates"] // self._own.spec.evaluate.every
        if "reason" in report:
            return {**self._last, **report, **named, "done": True}
        self._last = report if self._is_evaluation(report) else self._last
        copied = self.settings.keeps and self._is_evaluation(report)
        return {**report, **named, **({"should_checkpoint": True} if copied else {})}

    @staticmethod
    def _is_evaluation(report: Mapping[str, Any]) -> bool:
        """Return whether a report has more than how far the run is."""
        return len(report.keys() - {"updates", "evaluations"}) > 0

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
        """Copy the run's folder."""
        if self._own is None:
            return {}
        still = self.settings.pauses.waits or not self._run.is_alive()
        self._own.save(Path(checkpoint_dir), self._last, paused=still)
        return None

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Take a copy of a run's folder as this trial's run."""
        if self._own:
            self._ready(self._own.load(Path(checkpoint)))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial in this process."""
        self._run.end()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        """Stop the run."""
        self._run.end()

    def _begin(self, config: dict[str, Any]) -> None:
        runs = self.settings.runs
        self._own = runs(config, self.trial_id, Path(self.logdir)) if runs else None
        self._config = config
        self._ready({})

    def _ready(self, last: dict[str, Any]) -> None:
        """Be ready to run; last: the last report before."""
        self._last = last
        pauses = replace(self.settings.pauses, after=last.get("updates", 0))
        self._run = PausingRun(self.settings.work, self._config, pauses, self._group, self._own)
