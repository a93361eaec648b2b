"""A trial as Ray Tune sees it: a run whole in one process, which waits at each evaluation for what Tune decides."""

from __future__ import annotations

import importlib
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.device import claim_device
from actors.trial_resources import TrialNeeds
from raydpzv.errors import missing
from raydpzv.methods.roles import Metrics
from raydpzv.search.trial_checkpoint import MEASURED, TrialRun
from raydpzv.sim.interfaces import Evaluated, Status


@dataclass(frozen=True)
class TrialHooks:
    """What a trial's run is given: what to call at evaluations, what to tell where it stands, what stops it.

    group: the placement group that its process is in, None if it is in none; run: the trial's run of a user's own
    Tuner, None in a search.
    """

    evaluated: Evaluated
    progress: Callable[[Status], None]
    stop: threading.Event
    group: Any
    run: TrialRun | None = None


Work = Callable[[Mapping[str, Any], TrialHooks], str]
"""Runs one trial of a configuration; returns why there is no result, "" if there is one, or raises."""
Runs = Callable[[Mapping[str, Any], str, Path], TrialRun]
"""Returns the run of a trial, by its configuration, its name in Tune, and Tune's folder for it on this machine."""


def require_tune() -> Any:
    """Return `ray.tune`. Raises InputError with the command that installs it."""
    try:
        return importlib.import_module("ray.tune")
    except ImportError:
        raise missing("Ray Tune", "tune", ", or search without it: --runner local") from None


def trial_resources(needs: TrialNeeds) -> Any:
    """Return what a trial asks for, as Tune takes it."""
    return require_tune().PlacementGroupFactory(needs.bundles(), strategy=needs.strategy)


def measured(status: Status, metrics: Metrics) -> dict[str, float]:
    """Return what a trial reports at an evaluation; a metric that was not measured is left out."""
    found: dict[str, float | None] = {}
    for part, given in (("", metrics), ("validation_", metrics.validation)):
        for name in MEASURED if given else ():
            found[f"{part}{name}"] = getattr(given, name)
    paper, client = status.privacy.epsilons()
    found |= {"updates": status.updates, "simulated_seconds": status.time}
    found |= {"epsilon_client": client, "epsilon_paper": paper}
    return {name: value for name, value in found.items() if value is not None and not math.isnan(value)}


class PausingRun(threading.Thread):
    """A trial's run in a thread of its own, which goes on from each evaluation when it is told to.

    waits: does it stand still meanwhile? Under the wall clock it must not. beat: seconds after which it says where it
    stands though there is no evaluation yet; None: never. after: updates up to which evaluations were reported before.
    group, own: see `TrialHooks`.
    """

    def __init__(
        self,
        work: Work,
        config: Mapping[str, Any],
        *,
        waits: bool,
        beat: float | None,
        after: int = 0,
        group: Any = None,
        own: TrialRun | None = None,
    ) -> None:
        super().__init__(name="trial", daemon=True)
        self._work, self._config, self._waits, self._beat = work, config, waits, beat
        self._after, self._group, self._own = after, group, own
        self._stop_asked, self._go_on = threading.Event(), threading.Semaphore(0)
        self._reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self._status, self._pauses = Status(), False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the trial to its end."""
        last: dict[str, Any] = {"reason": ""}
        try:
            hooks = TrialHooks(self._evaluated, self._keep, self._stop_asked, self._group, self._own)
            last["reason"] = self._work(self._config, hooks)
        except BaseException as error:
            self._error = error
        self._reports.put(last)

    def next_report(self) -> dict[str, Any]:
        """Let the run go on to its next evaluation, and return what was measured; at its end {"reason": ...}.

        A report without any measure says where it stands (updates). Raises the run's error.
        """
        if self.ident is None:
            self.start()
        elif self._pauses:
            self._go_on.release()
        try:
            report = self._reports.get(timeout=self._beat)
        except queue.Empty:
            self._pauses = False
            return {"updates": self._status.updates}
        self._pauses = self._waits
        if self._error:
            raise self._error
        return report

    def end(self) -> None:
        """Stop the run after the update in progress, and wait until it has written what there is."""
        self._stop_asked.set()
        self._go_on.release()
        if self.is_alive():
            self.join()

    def _keep(self, status: Status) -> None:
        self._status = status

    def _evaluated(self, status: Status, metrics: Metrics) -> None:
        if self._stop_asked.is_set() or status.updates <= self._after:
            return
        self._reports.put(measured(status, metrics))
        if self._waits:
            self._go_on.acquire()


def trainable_class(
    work: Work,
    *,
    gpus: float,
    waits: bool,
    beat: float | None = None,
    runs: Runs | None = None,
    keeps: bool = False,
) -> type[Any]:
    """Return a `tune.Trainable` whose trials are `work`; gpus: the share of a GPU that each is given.

    It reports at every evaluation after the first update, and "reason" at the end; waits, beat: see `PausingRun`. What
    is reused for a trial after another stops that other first, so that every run writes its summary. runs: of which
    Tune's checkpoints are copies; None: of none, where the caller resumes runs itself. keeps: ask Tune for a checkpoint
    at every report.
    """
    tune = require_tune()
    workplace = os.getcwd()

    class RunTrainable(tune.Trainable):  # type: ignore[name-defined]
        def setup(self, config: dict[str, Any]) -> None:
            import ray

            claim_device(gpus)
            self._group = ray.util.get_current_placement_group()
            if os.path.isdir(workplace):
                os.chdir(workplace)
            self._begin(config)

        def _begin(self, config: dict[str, Any]) -> None:
            self._own = runs(config, self.trial_id, Path(self.logdir)) if runs else None
            self._config = config
            self._stand({})

        def _stand(self, last: dict[str, Any]) -> None:
            """Be ready to run; last: what was reported before."""
            self._last = last
            self._run = PausingRun(
                *(work, self._config),
                waits=waits,
                beat=beat,
                after=last.get("updates", 0),
                group=self._group,
                own=self._own,
            )

        def step(self) -> dict[str, Any]:
            final = self._own.final_report() if self._own and self._run.ident is None else None
            report = self._run.next_report() if final is None else {**final, "reason": ""}
            named = {"run_folder": str(self._own.path)} if self._own else {}
            if "reason" in report:
                return {**self._last, **report, **named, "done": True}
            self._last = report if len(report) > 1 else self._last
            return {**report, **named, **({"should_checkpoint": True} if keeps else {})}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
            if self._own is None:
                return {}
            self._own.save(Path(checkpoint_dir), self._last, stands=waits or not self._run.is_alive())
            return None

        def load_checkpoint(self, checkpoint: Any) -> None:
            if self._own:
                self._stand(self._own.load(Path(checkpoint)))

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._run.end()
            self._begin(new_config)
            return True

        def cleanup(self) -> None:
            self._run.end()

    return RunTrainable
