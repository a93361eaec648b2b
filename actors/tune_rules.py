"""Ray Tune's schedulers and searchers as a search asks for them. Imported where Ray Tune is."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
from ray import tune
from ray.tune import Callback
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import ConcurrencyLimiter, Searcher
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

from raydpzv.errors import SpecError, missing
from raydpzv.search.schedulers import REDUCTION
from raydpzv.search.search_terms import SearchWatch
from raydpzv.search.space import Dimension, literal, rounded
from raydpzv.search.tune_plan import SearchPlan, Trial

TRIAL = "trial"
"""The key of a trial's number in configurations that Optuna chose."""
EVALUATIONS = "evaluations"
"""The report's count of evaluations, by which HyperBand goes: its brackets start at one."""
_MOST_REFUSED = 200
"""Points without a trial to start, one after the other, before no more are asked for."""


def number_of(plan: SearchPlan, trial_id: str, config: Mapping[str, Any]) -> int:
    """Return the number of one of Tune's trials.

    Tune counts the trials that it was given, and PBT copies configurations from trial to trial.
    """
    if TRIAL in config:
        return int(config[TRIAL])
    return plan.started[int(trial_id.rpartition("_")[2])].number


def configuration(trial: Trial) -> dict[str, Any]:
    """Return a trial's settings as Tune shows them; lists, which Tune would take apart, as text."""
    return {
        name: literal(value) if isinstance(value, list) else value
        for name, value in trial.values.items()
    }


def scheduler_of(plan: SearchPlan) -> TrialScheduler:
    """Return the scheduler of a search."""
    chosen, mode = plan.scheduling, "max" if plan.higher else "min"
    if chosen.name == "asha":
        # a run ends by itself, so nothing is decided at its last evaluation
        return ASHAScheduler(
            "updates",
            plan.metric,
            mode,
            max_t=max(chosen.grace, chosen.budget - chosen.every),
            grace_period=chosen.grace,
            reduction_factor=REDUCTION,
            stop_last_trials=False,
        )

    if chosen.name == "hyperband":
        return RestoredHyperBand(
            EVALUATIONS,
            plan.metric,
            mode,
            max_t=chosen.budget // chosen.every,
            reduction_factor=REDUCTION,
            stop_last_trials=False,
        )

    if chosen.name == "pbt":
        return StepSizeTraining(
            chosen.budget,
            "updates",
            plan.metric,
            mode,
            perturbation_interval=chosen.interval,
            hyperparam_mutations={d.setting: _mutation(d) for d in plan.space},
            quantile_fraction=chosen.quantile,
            custom_explore_fn=_Within(plan.space),
            require_attrs=False,
            log_config=False,
            # all trials are compared after the same updates, and release alike until then
            synch=True,
        )
    return FIFOScheduler()


class StepSizeTraining(PopulationBasedTraining):
    """PBT that decides nothing at a run's last evaluation, after so many updates."""

    def __init__(self, last: int, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._last = last

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide by a report before the last."""
        if result.get("updates", 0) >= self._last:
            return str(TrialScheduler.CONTINUE)
        return str(super().on_trial_result(tune_controller, trial, result))


class RestoredHyperBand(HyperBandScheduler):
    """HyperBand that neither waits for trials that ended before it was restored, nor decides by
    reports without the metric.
    """

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial that still has to run."""
        if not trial.is_finished():
            super().on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide by a report that has the metric."""
        if self._metric not in result or EVALUATIONS not in result:
            return str(TrialScheduler.CONTINUE)
        return str(super().on_trial_result(tune_controller, trial, result))


def _mutation(dimension: Dimension) -> Any:
    """Return what PBT draws a step size from."""
    if dimension.kind == "choice":
        return list(dimension.values)
    draw = tune.loguniform if dimension.kind == "loguniform" else tune.uniform
    return draw(*dimension.values)


@dataclass(frozen=True)
class _Within:
    """Keeps the step sizes that PBT multiplies inside the space, where they were checked."""

    space: Sequence[Dimension]

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        ranges = [d for d in self.space if d.kind != "choice"]
        return config | {d.setting: rounded(config[d.setting], *d.values) for d in ranges}


def searcher_of(plan: SearchPlan, jobs: int | None) -> Any:
    """Return what gives Tune the trials; jobs: most at a time."""
    if plan.suggestions is None:
        points = [configuration(trial) for trial in plan.started]
        return BasicVariantGenerator(points_to_evaluate=points, max_concurrent=jobs or 0)
    found = Suggesting(plan)
    return ConcurrencyLimiter(found, max_concurrent=jobs) if jobs else found


class Suggesting(OptunaSearch):
    """OptunaSearch whose trials are numbered, differ, and keep the limit of ε."""

    def __init__(self, plan: SearchPlan) -> None:
        assert plan.suggestions is not None
        super().__init__(
            {dimension.setting: _distribution(dimension) for dimension in plan.space},
            metric=plan.metric,
            mode="max" if plan.higher else "min",
            seed=plan.suggestions.seed,
        )
        self._plan, self._tried = plan, list[tuple[str, ...]]()

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of the next trial."""
        for _ in range(_MOST_REFUSED):
            config = self._rounded(super().suggest(trial_id) or {})
            settings = settings_of(self._plan, config)
            if settings not in self._tried and self._starts(settings):
                self._tried.append(settings)
                return config | {TRIAL: len(self._tried) - 1}
            study: Any = self._ot_study
            study.tell(self._ot_trials.pop(trial_id), state=require_optuna().trial.TrialState.FAIL)
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn from a report that has the metric."""
        if self._metric in result:
            super().on_trial_result(trial_id, result)

    def _rounded(self, config: Mapping[str, Any]) -> dict[str, Any]:
        ranges = {d.setting: d.values for d in self._plan.space if "uniform" in d.kind}
        return {
            name: rounded(value, *ranges[name]) if name in ranges else value
            for name, value in config.items()
        }

    def _starts(self, settings: tuple[str, ...]) -> bool:
        """Return whether these settings are a scenario within the limit of ε."""
        try:
            return not self._plan.trial(0, 0, settings).skipped
        except SpecError:
            return False


def settings_of(plan: SearchPlan, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of a configuration that Optuna chose, "key=value" each."""
    return tuple(
        f"{d.setting}={config[d.setting] if d.kind == 'choice' else literal(config[d.setting])}"
        for d in plan.space
    )


def _distribution(dimension: Dimension) -> Any:
    """Return a dimension as Optuna has it; choices are text, since they may be lists."""
    kinds = require_optuna().distributions
    if dimension.kind == "choice":
        return kinds.CategoricalDistribution([literal(value) for value in dimension.values])
    low, high = dimension.values
    if dimension.kind == "randint":
        return kinds.IntDistribution(low, high)
    return kinds.FloatDistribution(low, high, log=dimension.kind == "loguniform")


def require_optuna() -> Any:
    """Return the module. Raises InputError with the command that installs it."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise missing("Optuna", "optuna", ", or draw at random: leave out --search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _error_of(trial: Any) -> str:
    """Return why a trial failed: Tune copies what it writes here to its storage only later."""
    file = trial.pickled_error_file
    error = cloudpickle.loads(Path(file).read_bytes()) if file else "its process was lost"
    return str(getattr(error, "cause", None) or error)


@dataclass(frozen=True)
class Observed:
    """A search whose trials are at work in this process."""

    plan: SearchPlan
    watch: SearchWatch
    stop: threading.Event
    """Ends the search."""
    reasons: dict[int, str]
    """Filled with why trials have no result."""


class TuneObserver(Callback):
    """Tells a search's watch of its trials, and ends Tune as Ctrl-C does once it is to stop.

    Tune saves its callbacks. A restored one finds the search of its process.
    """

    search: ClassVar[Observed | None] = None
    """The search of this process."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell that a trial started or resumed."""
        if found := self.search:
            found.watch.began(self._number(found, trial))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Tell what a trial measured."""
        if (found := self.search) and "reason" not in result:
            found.watch.reported(self._number(found, trial), result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell that a trial ended."""
        if found := self.search:
            found.watch.ended(self._number(found, trial), "")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell why a trial has no result."""
        if found := self.search:
            number = self._number(found, trial)
            found.reasons[number] = " ".join(_error_of(trial).split())[:500]
            found.watch.ended(number, found.reasons[number])

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """End Tune by the signal for which it saves its state and stops trials cleanly."""
        in_main = threading.current_thread() is threading.main_thread()
        if self.search and self.search.stop.is_set() and in_main:
            signal.raise_signal(signal.SIGUSR1)

    def _number(self, found: Observed, trial: Any) -> int:
        return number_of(found.plan, trial.trial_id, trial.config)
