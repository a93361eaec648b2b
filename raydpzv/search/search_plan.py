"""A search, resolved: every trial with its whole scenario, by what the best is chosen, which trials
are cut short.

It is written into the search's folder before the first trial. So a resumed search is the one that
was started, even if the files it came from have changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from raydpzv.compare.plan import Planned, PlannedLine
from raydpzv.config.paths import check_moved, unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree, overridden, override, parse
from raydpzv.config.tree import read_tree
from raydpzv.errors import DataError, SpecError, suggest
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.foreign import is_foreign
from raydpzv.privacy.claims import Claim
from raydpzv.search.space import KINDS, Dimension, in_order
from raydpzv.search.suggest import Outcome, suggested
from raydpzv.settings.bounds import Positive
from raydpzv.settings.fields import Section
from raydpzv.trust import code_words, require_trust

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
SCHEDULERS = ("none", "asha", "pbt")
REDUCTION = 3
"""Of the trials that reach one of its rungs, Ray Tune's ASHA lets the best third resume to thrice
as many updates.
"""
_TOLERANCE = 1 + 1e-9


def is_higher_better(metric: str, spec: AnyScenario) -> bool:
    """Return whether more of a metric is better; of a user's own the scenario says so
    (`evaluate.lower`).
    """
    own = metric.removeprefix("validation_") in (spec.evaluate.lower or ())
    return {**METRICS, **OF_NUMBERS}.get(metric, "min" if own else "max") == "max"


@dataclass(frozen=True)
class Trial:
    """One point of the space; settings: "key=value" each; skipped: why it is not started, "" if it
    is.
    """

    number: int
    settings: tuple[str, ...]
    spec: AnyScenario
    skipped: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name."""
        pairs = (item.partition("=") for item in self.settings)
        return {name: json.loads(value) for name, _, value in pairs}

    def planned(self) -> Planned:
        """Return the trial as a run to make."""
        return Planned(
            PlannedLine(str(self), None, False, self.spec), self.spec, f"{self.number:04d}"
        )

    def __str__(self) -> str:
        return f"trial {self.number} ({', '.join(self.settings)})"


Space = Annotated[tuple[Dimension, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Drawing:
    """How a search chooses its next trials by the results of earlier ones (`suggest`).

    samples: trials in all; batch: how many are chosen at a time; seed: of the draws; base: the
    scenario whose settings are varied.
    """

    space: tuple[Dimension, ...]
    samples: int
    batch: int
    seed: int
    base: AnyScenario

    def make(self, settings: Sequence[str]) -> AnyScenario:
        """Return the scenario with settings. Raises SpecError."""
        return override(self.base, settings)

    def accepts(self, settings: tuple[str, ...]) -> bool:
        """Return whether these settings are a scenario."""
        try:
            planned_claims(self.make(in_order(settings)))
        except SpecError:
            return False
        return True


@dataclass(frozen=True)
class Population:
    """How trials resume from one another (`raydpzv.search.population`).

    interval: updates of a leg; quantile: share of the trials that take donors, and of those that
    are taken; seed: of the draws; space: of the step sizes.
    """

    space: Space
    interval: Annotated[int, Field(ge=1)]
    quantile: Annotated[float, Field(gt=0, le=0.5)]
    seed: int


@dataclass(frozen=True)
class SearchPlan:
    """Trials, and how the search goes about them.

    metric: see METRICS; grace: updates before asha's first decision, 0 without asha; epsilon: what
    no trial's proved ε may exceed; actors: has each trial actors of its own? Its bits are the same.
    drawing: how more trials are chosen, None where all are here. population: how trials resume from
    one another, None: they do not.
    promotes: do asha's trials pause at rungs and resume later (`raydpzv.search.asha`)? Else Ray
    Tune stops them.
    log_scaled: settings that pictures have on a logarithmic axis.
    """

    name: str
    metric: str
    scheduler: str
    grace: int
    epsilon: float | None
    trials: tuple[Trial, ...]
    actors: bool = False
    drawing: Drawing | None = None
    population: Population | None = None
    promotes: bool = False
    log_scaled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        metrics = [*METRICS, *OF_NUMBERS]
        if self.metric not in metrics and not self.trials[0].spec.evaluate.metrics:
            near = suggest(self.metric, metrics)
            raise SpecError(
                f"--metric: wanted one of {', '.join(metrics)}, or a measure of your own "
                "(evaluate.metrics), got "
                f'"{self.metric}". {near}'.rstrip()
            )
        if self.scheduler not in SCHEDULERS:
            known, near = ", ".join(SCHEDULERS[:-1]), suggest(self.scheduler, SCHEDULERS)
            raise SpecError(
                f'--scheduler: wanted {known} or {SCHEDULERS[-1]}, got "{self.scheduler}". {near}'.rstrip()
            )
        for trial in self.trials:
            if self.metric.startswith("validation_") and not trial.spec.data.validation_fraction:
                raise SpecError(
                    f"--metric {self.metric}: wanted validation rows, {trial} holds none back; set "
                    "data.validation_fraction, such as --set data.validation_fraction=0.2"
                )

    @property
    def higher(self) -> bool:
        """Is more of the metric better?"""
        return is_higher_better(self.metric, self.trials[0].spec)

    @property
    def budget(self) -> int:
        """Updates of a whole trial, where the search has a scheduler."""
        return self.trials[0].spec.budget.updates or 0

    def started(self) -> Iterator[Trial]:
        """Yield the trials that are not skipped."""
        return (trial for trial in self.trials if not trial.skipped)

    @property
    def complete(self) -> bool:
        """Are all trials here, or are some still to be chosen?"""
        return self.drawing is None or len(self.trials) >= self.drawing.samples

    @property
    def size(self) -> int:
        """Trials in all that are started, those that are still to be chosen among them."""
        still = self.drawing.samples - len(self.trials) if self.drawing else 0
        return len(list(self.started())) + still

    def grown(self, outcomes: Sequence[Outcome]) -> SearchPlan:
        """Return the plan with the next trials, chosen by what those here came to.

        outcomes: of each trial here, in order. It is the same plan where there are no more.
        """
        assert self.drawing is not None
        drawing, known = self.drawing, {trial.settings for trial in self.trials}
        points = suggested(
            drawing.space,
            outcomes,
            min(drawing.batch, drawing.samples - len(self.trials)),
            drawing.seed,
            higher=self.higher,
            accepts=lambda point: point not in known and drawing.accepts(point),
        )
        found = [
            self._judged(number, point) for number, point in enumerate(points, len(self.trials))
        ]
        return replace(self, trials=(*self.trials, *found))

    def _judged(self, number: int, point: tuple[str, ...]) -> Trial:
        assert self.drawing is not None
        return judged(Trial(number, point, self.drawing.make(in_order(point))), self.epsilon)

    def rows_note(self) -> str:
        """Return in a sentence that test rows choose the best, "" where validation rows do."""
        if self.metric.startswith("validation_"):
            return ""
        return f"the best is chosen by {self.metric} on the test rows"

    def same_as(self, other: SearchPlan) -> bool:
        """Return whether two searches are one, wherever their data lie and their trials run."""
        one, another = (
            replace(plan, actors=False, log_scaled=())._tree(located=False)
            for plan in (self, other)
        )
        if self.drawing and other.drawing:  # of which one may have come further
            both = min(len(self.trials), len(other.trials))
            one["trials"], another["trials"] = one["trials"][:both], another["trials"][:both]
        return one == another

    @property
    def code_words(self) -> list[str]:
        """The words of its scenarios that name a user's objects."""
        specs = [trial.spec for trial in self.trials]
        specs += [self.drawing.base] if self.drawing else []
        return [word for spec in specs for word in code_words(as_tree(spec))]

    def as_toml(self) -> str:
        """Return the plan as TOML text."""
        return tomli_w.dumps(self._tree(located=True))

    def _tree(self, *, located: bool) -> dict[str, Any]:
        def trial(one: Trial) -> dict[str, Any]:
            tree = as_tree(one.spec)
            found = {
                "settings": list(one.settings),
                "scenario": tree if located else unlocated(tree),
            }
            return found | {
                key: value
                for key, value in (("skipped", one.skipped), ("note", one.spec.note))
                if value
            }

        head: dict[str, Any] = {
            "name": self.name,
            "metric": self.metric,
            "scheduler": self.scheduler,
            "grace": self.grace,
        }
        head |= {} if self.epsilon is None else {"epsilon": self.epsilon}
        head |= {"actors": True} if self.actors else {}
        head |= {"promotes": True} if self.promotes else {}
        head |= {"log_scaled": list(self.log_scaled)} if self.log_scaled else {}
        if self.drawing:
            base = as_tree(self.drawing.base)
            head["drawing"] = {
                "samples": self.drawing.samples,
                "batch": self.drawing.batch,
                "seed": self.drawing.seed,
                "scenario": base if located else unlocated(base),
                "space": _space_tree(self.drawing.space),
            }
        if self.population:
            head["population"] = vars(self.population) | {
                "space": _space_tree(self.population.space)
            }
        return head | {"trials": [trial(one) for one in self.trials]}


def _space_tree(space: Sequence[Dimension]) -> list[dict[str, Any]]:
    return [{"setting": d.setting, "kind": d.kind, "values": list(d.values)} for d in space]


def trials_of(
    make: Callable[[Sequence[str]], AnyScenario],
    points: Sequence[tuple[str, ...]],
    epsilon: float | None,
) -> tuple[Trial, ...]:
    """Return the trials of a search; make: a scenario with settings. Raises SpecError, which names
    the combination.

    epsilon: trials whose proved ε exceeds it, or of which none is proved, are not to be started;
    raises SpecError where that is all of them.
    """
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise SpecError(f"--epsilon: wanted a finite number above 0, got {epsilon:g}")
    found, least = [], list[tuple[float, Trial]]()
    for number, settings in enumerate(points):
        try:
            trial = Trial(number, settings, make(in_order(settings)))
            claim = planned_claim(trial.spec)
        except SpecError as error:
            raise SpecError(
                f"trial {number} of the space ({', '.join(settings)}): {error}"
            ) from None
        if epsilon is not None:
            proved = claim.epsilon if claim and claim.holds else math.inf
            least.append((proved, trial))
        found.append(judged(trial, epsilon))
    if epsilon is not None and all(trial.skipped for trial in found):
        smallest, trial = min(least, key=lambda one: one[0])
        said = f"the least of {len(found)} trials is ε={smallest:.4g}, of {trial}"
        said = (
            said
            if smallest < float("inf")
            else f"none of {len(found)} trials has a proved ε: {found[0].skipped}"
        )
        raise SpecError(
            f"--epsilon {epsilon:g}: {said}; raise it, or put more noise or fewer updates into the "
            "space"
        )
    return tuple(found)


def judged(trial: Trial, epsilon: float | None) -> Trial:
    """Return the trial with why it is not started, if its proved ε exceeds a constraint or none is
    proved.
    """
    return (
        trial
        if epsilon is None
        else replace(trial, skipped=_refusal(planned_claim(trial.spec), epsilon))
    )


def check_pause(option: str, given: int | None, found: int, every: int, budget: int) -> int:
    """Return after how many updates trials pause, if all are evaluated there. Raises SpecError.

    given: by the option; found: these, or the default. every: updates between evaluations; budget:
    of a whole trial.
    """
    if found % every == 0 and every <= found < budget:
        return found
    _check_evaluated(every, budget, default=given is None)
    raise SpecError(
        f"{option}: wanted a multiple of evaluate.every ({every}) below budget.updates ({budget}), "
        f"got {found}: trials are held against one another at evaluations; set another, or lower "
        "evaluate.every"
    )


def _check_evaluated(every: int, budget: int, *, default: bool) -> None:
    """Raise SpecError if no evaluation comes before the trials' end, where no option asked for
    another moment.
    """
    if default:
        raise SpecError(
            f"evaluate.every: wanted fewer updates than budget.updates ({budget}), got {every}: "
            "trials are compared at evaluations; lower it, or take --scheduler none"
        )


def grace_of(trials: Sequence[Trial], grace: int | None) -> int:
    """Return after how many updates Ray's ASHA first decides: those given, or a ninth of the
    budget, at an evaluation.

    Raises SpecError where trials are not of one length in updates, or no evaluation comes before
    their end.
    """
    budgets = {trial.spec.budget.updates for trial in trials}
    budget = max((b for b in budgets if b is not None), default=0)
    if len(budgets) > 1 or not budget:
        raise SpecError(
            "--scheduler asha: wanted one budget.updates for all trials, by which they are held "
            "against one another; set it, and leave it out of the space"
        )
    every = max(trial.spec.evaluate.every for trial in trials)
    found = max(every, budget // REDUCTION**2) if grace is None else grace
    if not every <= found < budget:
        _check_evaluated(every, budget, default=grace is None)
        raise SpecError(
            f"--grace: wanted updates between evaluate.every ({every}) and budget.updates "
            f"({budget}), got {found}: ASHA decides at evaluations; lower evaluate.every, or take "
            "--scheduler none"
        )
    return found


def planned_claims(spec: AnyScenario) -> tuple[Claim, ...]:
    """Return what a whole run of a scenario will claim, as planned; () where no noise is added."""
    setting = planned_privacy(spec)
    return setting.claims() if setting else ()


def planned_claim(spec: AnyScenario) -> Claim | None:
    """Return the claim against whom a scenario's noise is meant, None where none is added."""
    setting = planned_privacy(spec)
    return setting.primary_claim() if setting else None


def _refusal(claim: Claim | None, epsilon: float) -> str:
    if claim is None:
        return "no noise is added, so that no ε is proved"
    if not claim.holds:
        return f"no ε is proved against {claim.adversary}: {claim.note}"
    if claim.epsilon > epsilon * _TOLERANCE:
        return f"its proved ε={claim.epsilon:.4g} against {claim.adversary} exceeds {epsilon:g}"
    return ""


class _TrialFile(Section):
    settings: tuple[str, ...]
    scenario: dict[str, Any]
    skipped: str = ""
    note: str = ""


class _DrawingFile(Section):
    samples: int
    batch: Annotated[int, Field(ge=1)]
    seed: int
    scenario: dict[str, Any]
    space: Space


class _SearchFile(Section):
    name: str
    metric: str
    scheduler: Literal["none", "asha", "pbt"]
    grace: Annotated[int, Field(ge=0)]
    epsilon: Positive | None = None
    actors: bool = False
    promotes: bool = False
    log_scaled: tuple[str, ...] = ()
    drawing: _DrawingFile | None = None
    population: Population | None = None
    trials: Annotated[tuple[_TrialFile, ...], Field(min_length=1)]


def _code_words(plan: _SearchFile) -> Iterator[str]:
    """Yield the words by which a plan names a user's objects, also those that it may yet draw."""
    for part in (*plan.trials, plan.drawing):
        if part:
            yield from code_words(part.scenario)
    for drawn in (plan.drawing, plan.population):
        for dimension in drawn.space if drawn else ():
            yield from (str(value) for value in dimension.values if is_foreign(value))


def read_search(path: Path, moved: Sequence[str] = ()) -> SearchPlan:
    """Read a plan that `as_toml` wrote; moved: where its data are now, see `RunFolder.open`.

    Raises DataError if it is damaged, SpecError if `moved` has another setting, InputError as
    `raydpzv.trust.require_trust` does.
    """
    moved = check_moved(moved)
    try:
        found = _SearchFile.model_validate_json(
            json.dumps(read_tree(path, "the plan of a search"), default=str)
        )
        require_trust(path.parent, path.name, _code_words(found))
        trials = tuple(
            Trial(
                n,
                t.settings,
                parse(overridden(t.scenario, moved), f"trial {n}").noted(t.note),
                t.skipped,
            )
            for n, t in enumerate(found.trials)
        )
        terms = (found.name, found.metric, found.scheduler, found.grace, found.epsilon)
        if (found.scheduler == "pbt") != (found.population is not None):
            raise SpecError("scheduler: wanted pbt with [population], or neither")
        if (found.scheduler == "asha") != (found.grace > 0):
            raise SpecError("grace: wanted updates above 0 with asha, and 0 without")
        if found.promotes and found.scheduler != "asha":
            raise SpecError("promotes: is of asha alone")
        spaces = [part.space for part in (found.drawing, found.population) if part]
        if any(d.kind == "grid" or d.kind not in KINDS for space in spaces for d in space):
            raise SpecError("space: wanted settings that are drawn")
        more = (_drawing(found.drawing, moved), found.population, found.promotes, found.log_scaled)
        return SearchPlan(*terms, trials, found.actors, *more)
    except (SpecError, ValidationError) as error:
        fault = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: no readable plan of a search ({fault}); start a new one"
        ) from None


def _drawing(found: _DrawingFile | None, moved: Sequence[str]) -> Drawing | None:
    if found is None:
        return None
    base = parse(overridden(found.scenario, moved), "the scenario of the search")
    return Drawing(found.space, found.samples, found.batch, found.seed, base)
