"""A search, resolved: every trial with its whole scenario, and by what the best is chosen.

It is written into the search's folder as search.toml before the first trial. So a resumed search is
the one that was started, even if the files it came from have changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field, TypeAdapter, ValidationError

from raydpzv.compare.plan import Planned, PlannedLine
from raydpzv.compare.run_comparison import RUNS_FOLDER, plan_written
from raydpzv.config.paths import check_moved, unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import changed, overridden
from raydpzv.config.tree import read_tree
from raydpzv.errors import DataError, InputError, SpecError, command, suggest
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.files import SEARCH
from raydpzv.foreign import is_foreign
from raydpzv.privacy.claims import Claim
from raydpzv.search.schedulers import Scheduling
from raydpzv.search.space import Dimension, in_order
from raydpzv.search.trial_checkpoint import settings_of_trial
from raydpzv.trust import code_words, require_own_folder, require_trust

METRICS = {
    f"{part}{name}": better
    for part in ("", "validation_")
    for name, better in (
        ("accuracy", "max"),
        ("loss", "min"),
        ("roc_auc", "max"),
        ("pr_auc", "max"),
        ("balanced_accuracy", "max"),
        ("concordance", "max"),
    )
}
"""What a best trial can be chosen by, and whether more or less of it is better: on test or on
validation rows.
"""
OF_NUMBERS = {"rmse": "min", "r2": "max", "validation_rmse": "min", "validation_r2": "max"}
"""The same of models of numbers."""
_PICKLES = "tune"
"""What holds code in each search's folder, for its mark: Ray Tune pickles its state."""
_TOLERANCE = 1 + 1e-9
"""Rounding error allowed where an ε meets the limit."""


def is_higher_better(metric: str, spec: AnyScenario) -> bool:
    """Return whether more of a metric is better; of a user's own the scenario says so
    (`evaluate.lower`).
    """
    own = metric.removeprefix("validation_") in (spec.evaluate.lower or ())
    return {**METRICS, **OF_NUMBERS}.get(metric, "min" if own else "max") == "max"


@dataclass(frozen=True)
class TunedLine:
    """What is tuned as one: a scenario, or a method of a comparison at one ε."""

    label: str
    """Its name in tables."""
    scenario: Mapping[str, Any]
    """Its settings before those of a trial."""
    epsilon: float | None = None
    """What its noise is calibrated to in a comparison."""

    def spec(self, settings: Sequence[str] = ()) -> AnyScenario:
        """Return the scenario with settings, "key=value" each. Raises SpecError."""
        return changed(dict(self.scenario), in_order(settings), str(self))

    def __str__(self) -> str:
        return self.label if self.epsilon is None else f"{self.label} at ε={self.epsilon:g}"


@dataclass(frozen=True)
class Trial:
    """One point of the space."""

    number: int
    """Its place in the table, and the name of its run's folder."""
    line: int
    """Place of what it is a trial of, in `SearchPlan.lines`."""
    settings: tuple[str, ...]
    """The values that it tries, "key=value" each."""
    spec: AnyScenario
    """The scenario that it runs."""
    skipped: str = ""
    """Why it is not started; "": it is."""

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name."""
        pairs = (item.partition("=") for item in self.settings)
        return {name: json.loads(value) for name, _, value in pairs}

    @property
    def point(self) -> tuple[int, tuple[str, ...]]:
        """What trials have in common that differ in their seed alone."""
        return self.line, tuple(s for s in self.settings if not s.startswith("seed="))

    def planned(self) -> Planned:
        """Return the trial as a run to make."""
        line = PlannedLine(str(self), None, False, self.spec)
        return Planned(line, self.spec, f"{self.number:04d}")

    def __str__(self) -> str:
        return f"trial {self.number} ({', '.join(self.settings)})"


@dataclass(frozen=True)
class Suggestions:
    """How Optuna chooses each trial by the results of earlier ones."""

    samples: Annotated[int, Field(ge=1)]
    """Trials in all."""
    seed: int
    """Seed of the draws."""


@dataclass(frozen=True)
class TrialPlace:
    """Where trials run, and where Ray Tune keeps them: a search at another place is the same."""

    actors: bool = False
    """Has each trial actors of its own? Its bits are the same."""
    storage: str | None = None
    """Where Tune keeps its state and copies of the runs; None: in the search's folder."""


@dataclass(frozen=True)
class SearchPlan:
    """Trials, and how the search goes about them."""

    name: str
    """Of the scenario or the comparison."""
    metric: str
    """See METRICS."""
    lines: tuple[TunedLine, ...]
    """The scenario alone, or the methods of a comparison that are tuned, each at one ε."""
    space: tuple[Dimension, ...] = ()
    """What varies of a scenario."""
    trials: tuple[Trial, ...] = ()
    """All trials; none where Optuna chooses them."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    suggestions: Suggestions | None = None
    """How Optuna chooses trials; None: all are known."""
    epsilon: float | None = None
    """What no trial's proved ε may exceed."""
    held_out: tuple[str, ...] = ()
    """Settings that trials have and the chosen scenario has not."""
    soonest: float | None = None
    """Choose what reaches this value of the metric in the fewest simulated seconds."""
    comparison: Mapping[str, Any] | None = None
    """The comparison file whose methods are tuned; None: a scenario is."""
    place: TrialPlace = field(default_factory=TrialPlace)

    def __post_init__(self) -> None:
        first, metrics = self.first_spec, [*METRICS, *OF_NUMBERS]
        if self.metric not in metrics and not first.evaluate.metrics:
            near = suggest(self.metric, metrics)
            raise SpecError(
                f"--metric: wanted one of {', '.join(metrics)}, or a measure of your own "
                f'(evaluate.metrics), got "{self.metric}". {near}'.rstrip()
            )

        # a trial without such rows would have no metric
        if self.metric.startswith("validation_"):
            for spec in [trial.spec for trial in self.trials] or [first]:
                if not spec.data.validation_fraction:
                    raise SpecError(
                        f"--metric {self.metric}: wanted validation rows, a trial holds none "
                        "back; set data.validation_fraction, such as --set "
                        "data.validation_fraction=0.2"
                    )

    @property
    def first_spec(self) -> AnyScenario:
        """A trial's scenario."""
        return self.trials[0].spec if self.trials else self.lines[0].spec(self.held_out)

    @property
    def higher(self) -> bool:
        """Is more of the metric better?"""
        return is_higher_better(self.metric, self.first_spec)

    @property
    def settings(self) -> list[str]:
        """The names of the settings that vary, as tables order them."""
        if self.space:
            return [dimension.setting for dimension in self.space]
        return list(dict.fromkeys(name for trial in self.trials for name in trial.values))

    @property
    def started(self) -> list[Trial]:
        """The trials that are not skipped."""
        return [trial for trial in self.trials if not trial.skipped]

    @property
    def log_scaled(self) -> list[str]:
        """Settings that pictures have on a logarithmic axis."""
        return [d.setting for d in self.space if d.kind == "loguniform"]

    @property
    def copies(self) -> bool:
        """Do trials copy one another and change step sizes in mid-run?"""
        return self.scheduling.name == "pbt"

    @property
    def size(self) -> int:
        """How many trials are started in all."""
        return self.suggestions.samples if self.suggestions else len(self.started)

    def trial(self, number: int, line: int, settings: Sequence[str]) -> Trial:
        """Return a trial, skipped if its ε exceeds the limit. Raises SpecError."""
        spec = self.lines[line].spec([*self.held_out, *settings])
        skipped = "" if self.epsilon is None else refusal(planned_claim(spec), self.epsilon)
        return Trial(number, line, tuple(settings), spec, skipped)

    def known_trials(self, folder: Path) -> tuple[Trial, ...]:
        """Return the trials, where Optuna chooses them those with a run."""
        if self.suggestions is None:
            return self.trials
        paths = sorted((folder / RUNS_FOLDER).glob("[0-9]" * 4))
        return tuple(self.trial(int(path.name), 0, settings_of_trial(path)) for path in paths)

    def chosen_spec(self, trial: Trial) -> AnyScenario:
        """Return the scenario of a trial as it is run when chosen, with no rows held out for it."""
        return self.lines[trial.line].spec(trial.settings) if self.held_out else trial.spec

    def same_as(self, other: SearchPlan) -> bool:
        """Return whether two searches are one, wherever their data lie and their trials run."""
        one, another = (replace(p, place=TrialPlace()).tree() for p in (self, other))
        for tree in (one, another):
            for line in tree["lines"]:
                line["scenario"] = unlocated(line["scenario"])
        return one == another

    def tree(self) -> dict[str, Any]:
        """Return the plan as plain data that TOML can hold."""
        found = {
            "name": self.name,
            "metric": self.metric,
            "epsilon": self.epsilon,
            "held_out": list(self.held_out),
            "soonest": self.soonest,
            "space": [asdict(dimension) for dimension in self.space],
            "place": {k: v for k, v in vars(self.place).items() if v is not None},
            "scheduling": asdict(self.scheduling),
            "suggestions": asdict(self.suggestions) if self.suggestions else None,
            "comparison": self.comparison,
            "lines": [
                {name: value for name, value in vars(line).items() if value is not None}
                for line in self.lines
            ],
            "trials": [{"line": t.line, "settings": list(t.settings)} for t in self.trials],
        }
        # TOML has no word for nothing
        return {name: value for name, value in found.items() if value is not None}


def points_of(plan: SearchPlan, points: Sequence[tuple[int, tuple[str, ...]]]) -> tuple[Trial, ...]:
    """Return the trials at points, each of a line and its settings.

    Raises SpecError, which names the combination, also where the ε limit skips all of them.
    """
    found = list[Trial]()
    for number, (line, settings) in enumerate(points):
        try:
            found.append(plan.trial(number, line, settings))
        except SpecError as error:
            raise SpecError(
                f"trial {number} of the space ({', '.join(settings)}): {error}"
            ) from None

    # with nothing to start, the limit is no search but a mistake
    if found and all(trial.skipped for trial in found):
        raise SpecError(
            f"--epsilon {plan.epsilon:g}: {_least(found)}; raise it, or put more noise or fewer "
            "updates into the space"
        )
    return tuple(found)


def _least(skipped: Sequence[Trial]) -> str:
    """Return which of the trials that were all skipped has the least ε."""
    claims = ((planned_claim(trial.spec), trial) for trial in skipped)
    proved = [(claim.epsilon, t) for claim, t in claims if claim and claim.holds]
    if not proved:
        return f"none of {len(skipped)} trials has a proved ε: {skipped[0].skipped}"
    epsilon, trial = min(proved, key=lambda one: one[0])
    return f"the least of {len(skipped)} trials is ε={epsilon:.4g}, of {trial}"


def planned_claims(spec: AnyScenario) -> tuple[Claim, ...]:
    """Return what a whole run of a scenario will claim, as planned; () where no noise is added."""
    setting = planned_privacy(spec)
    return setting.claims() if setting else ()


def planned_claim(spec: AnyScenario) -> Claim | None:
    """Return the claim against whom a scenario's noise is meant, None where none is added."""
    setting = planned_privacy(spec)
    return setting.primary_claim() if setting else None


def refusal(claim: Claim | None, epsilon: float) -> str:
    """Return why a trial with this claim is not started under a limit of ε, "" if it is."""
    if claim is None:
        return "no noise is added, so that no ε is proved"
    if not claim.holds:
        return f"no ε is proved against {claim.adversary}: {claim.note}"
    if claim.epsilon > epsilon * _TOLERANCE:
        return f"its proved ε={claim.epsilon:.4g} against {claim.adversary} exceeds {epsilon:g}"
    return ""


def check_limit(epsilon: float | None) -> None:
    """Raise SpecError for a limit that is no ε."""
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise SpecError(f"--epsilon: wanted a finite number above 0, got {epsilon:g}")


def run_path(folder: Path, trial: Trial) -> Path:
    """Return the run folder of a trial."""
    return folder / RUNS_FOLDER / trial.planned().folder


def search_folder(folder: Path, plan: SearchPlan) -> AbstractContextManager[None]:
    """Hold a search's folder while the block runs: made now, or with what is there of the same
    search.
    """

    def check() -> None:
        if not plan_to_resume(folder).same_as(plan):
            raise InputError(
                f"{folder}: holds another search (other trials or settings); choose another --out, "
                f"or continue that one: {command('resume', folder)}"
            )

    words = [_PICKLES, *plan_words(plan)]
    return plan_written(folder, "search", SEARCH, tomli_w.dumps(plan.tree()), check, words)


def plan_words(plan: SearchPlan) -> Iterator[str]:
    """Yield the words of a plan that name a user's objects, also those that it may yet draw."""
    for line in plan.lines:
        yield from code_words(line.scenario)
    for dimension in plan.space:
        yield from (str(value) for value in dimension.values if is_foreign(value))
    for trial in plan.trials:
        pairs = (setting.partition("=")[2] for setting in trial.settings)
        yield from (value.strip('"') for value in pairs if is_foreign(value.strip('"')))


@dataclass(frozen=True)
class _TrialEntry:
    line: int
    settings: tuple[str, ...]


@dataclass(frozen=True)
class _SearchFile(SearchPlan):
    """search.toml, as `SearchPlan.tree` returns it: a plan whose trials are still to be made."""

    trials: tuple[_TrialEntry, ...] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check nothing yet: that would look for what the plan names."""


def plan_to_resume(folder: Path, moved: Sequence[str] = ()) -> SearchPlan:
    """Read the plan of a search to resume in its folder; moved: see `read_plan`.

    Also raises InputError for a folder of somebody else: Tune loads the pickles in it.
    """
    plan = read_plan(folder / SEARCH, moved)
    require_own_folder(folder, SEARCH, "Ray Tune's pickles in it may run any code")
    return plan


def read_plan(path: Path, moved: Sequence[str] = ()) -> SearchPlan:
    """Read a plan that `search_folder` wrote; moved: where its data are now, see `RunFolder.open`.

    Raises DataError if it is damaged, SpecError if `moved` has another setting, InputError as
    `raydpzv.trust.require_trust` does.
    """
    moved = check_moved(moved)
    try:
        # as JSON, since pydantic takes lists for tuples there and yet converts nothing else
        text = json.dumps(read_tree(path, "the plan of a search"), default=str)
        found = TypeAdapter(_SearchFile).validate_json(text)
        require_trust(path.parent, path.name, plan_words(found))

        given = vars(found) | {
            "lines": tuple(
                replace(line, scenario=overridden(dict(line.scenario), moved))
                for line in found.lines
            ),
            "trials": (),
        }
        plan = SearchPlan(**given)
        points = [(entry.line, entry.settings) for entry in found.trials]
        return replace(plan, trials=points_of(plan, points))
    except (SpecError, ValidationError, IndexError) as error:
        fault = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: no readable plan of a search ({fault}); start a new one"
        ) from None
