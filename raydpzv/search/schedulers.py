"""Ray Tune's schedulers by name: their settings in updates, and the trials that each can take.

`actors.tune_rules` makes the schedulers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.prepare import unrecorded
from raydpzv.methods.schedule import changes_of, scheduled, without_effect
from raydpzv.registry import METHODS
from raydpzv.search.search_terms import SearchTerms
from raydpzv.search.space import Dimension

SCHEDULERS = ("none", "asha", "hyperband", "pbt")
REDUCTION = 3
"""Of the trials that are compared, `asha` and `hyperband` keep the best third."""
PAUSES = ("hyperband", "pbt")
"""Schedulers that pause trials, and resume them from copies of their folders."""
_INTERVALS = 10
"""Parts of the budget between comparisons of `pbt`, where no interval is given."""
_QUANTILE = 0.25
"""Share of the trials that copy others, where none is given."""


@dataclass(frozen=True)
class Scheduling:
    """A scheduler of Ray Tune and its settings."""

    name: str = "none"
    grace: int = 0
    """With asha: updates before the first comparison."""
    interval: int = 0
    """With pbt: updates between comparisons."""
    quantile: float = _QUANTILE
    """With pbt: share of the trials that copy as many of the best."""
    every: int = 0
    """Updates between evaluations of all trials."""
    budget: int = 0
    """Updates of a whole trial."""

    @property
    def cuts(self) -> bool:
        """Do results decide when trials end?"""
        return self.name in ("asha", "hyperband")


def scheduling(
    specs: Sequence[AnyScenario], space: Sequence[Dimension], terms: SearchTerms
) -> Scheduling:
    """Return the scheduler that a search asks for. Raises SpecError for trials it cannot take."""
    name = terms.scheduler
    if name not in SCHEDULERS:
        known, near = ", ".join(SCHEDULERS[:-1]), suggest(name, SCHEDULERS)
        raise SpecError(
            f'--scheduler: wanted {known} or {SCHEDULERS[-1]}, got "{name}". {near}'.rstrip()
        )

    # an option without its scheduler would do nothing
    for option, value, owner in (
        ("grace", terms.grace, "asha"),
        ("interval", terms.interval, "pbt"),
        ("quantile", terms.quantile, "pbt"),
    ):
        if value is not None and name != owner:
            raise SpecError(f"--{option}: goes with --scheduler {owner}; leave it out")
    if name == "none":
        return Scheduling()

    # trials that pause resume from copies of their folders
    if name in PAUSES:
        _check_pauses(specs[0], name)
        if terms.actors:
            raise SpecError(
                f"--actors: --scheduler {name} pauses trials, and actors of a trial's own cannot "
                "pause; leave it out"
            )

    # updates at which all trials are evaluated
    budget, every = _budget(specs, name)
    if name == "asha":
        grace = max(every, budget // REDUCTION**2 // every * every)
        grace = _checked("--grace", terms.grace, grace, every, budget)
        return Scheduling(name, grace, every=every, budget=budget)
    if name == "hyperband":
        return Scheduling(name, every=every, budget=budget)

    _check_population(specs, space)
    share = _QUANTILE if terms.quantile is None else terms.quantile
    if not 0 < share <= 0.5:
        raise SpecError(
            f"--quantile: wanted a share of the trials above 0 and at most 0.5, got {share:g}"
        )
    interval = max(every, budget // _INTERVALS // every * every)
    interval = _checked("--interval", terms.interval, interval, every, budget)
    return Scheduling(name, 0, interval, share, every, budget)


def step_sizes(config: Any) -> list[str]:
    """Return the names of a method's step sizes that can change in mid-run."""
    return [name for name in scheduled(config) if isinstance(getattr(config, name), float)]


def without_checkpoint(spec: AnyScenario) -> str:
    """Return why runs of a scenario leave no checkpoint to resume from, or nothing."""
    if spec.clock.kind == "wall":
        return "real time cannot pause"
    if what := unrecorded(spec):
        return f"{what} comes from the operating system and is not kept"
    return ""


def _budget(specs: Sequence[AnyScenario], name: str) -> tuple[int, int]:
    """Return the updates of all trials and those between their evaluations. Raises SpecError."""
    budgets = {spec.budget.updates for spec in specs}
    others = any(s.budget.seconds or s.budget.bytes or s.budget.epsilon for s in specs)
    budget = max((b for b in budgets if b is not None), default=0)
    if len(budgets) > 1 or not budget or others:
        raise SpecError(
            f"--scheduler {name}: wanted one budget.updates for all trials and no other budget, "
            "since trials are compared after the same updates; set it, and leave out the others"
        )

    # where one trial is evaluated and another is not, nothing is compared
    periods = {spec.evaluate.every for spec in specs}
    if len(periods) > 1:
        raise SpecError(
            f"--scheduler {name}: wanted one evaluate.every for all trials, since they are "
            "compared at evaluations; leave it out of the space"
        )
    every = periods.pop()
    if every >= budget:
        raise SpecError(
            f"evaluate.every: wanted fewer updates than budget.updates ({budget}), got {every}: "
            "trials are compared at evaluations; lower it, or take --scheduler none"
        )
    return budget, every


def _checked(option: str, given: int | None, usual: int, every: int, budget: int) -> int:
    """Return the updates given, or the usual ones, if all trials are evaluated there."""
    found = usual if given is None else given
    if found % every or not every <= found < budget:
        raise SpecError(
            f"{option}: wanted a multiple of evaluate.every ({every}) below budget.updates "
            f"({budget}), got {found}; set another, or lower evaluate.every"
        )
    return found


def _check_pauses(spec: AnyScenario, name: str) -> None:
    if why := without_checkpoint(spec):
        raise SpecError(
            f"--scheduler {name}: resumes trials from checkpoints, and these have none: {why}; "
            "use asha"
        )


def _check_population(specs: Sequence[AnyScenario], space: Sequence[Dimension]) -> None:
    """Raise SpecError unless trials may copy one another and change step sizes in mid-run."""
    spec, method = specs[0], specs[0].method
    if len(specs) < 2:
        raise SpecError(
            f"--scheduler pbt: wanted 2 trials or more, got {len(specs)}; raise --samples"
        )

    # a copy releases what the trial that it was taken from released, so their noise must differ
    # and their batches must not
    if spec.privacy and spec.privacy.mode != "none" and spec.privacy.noise == "seeded":
        raise SpecError(
            'privacy.noise: with "seeded", a trial of --scheduler pbt and the one that it copies '
            'would draw the same noise for two sums, whose difference lacks it; use "system"'
        )
    if getattr(method, "coins", "") == "system":
        raise SpecError(
            'method.coins: with "system", every trial of --scheduler pbt has batches of its own, '
            "so that what one releases of a record is not what another does; leave it out"
        )

    names = [f"method.{name}" for name in step_sizes(method)]
    if not names:
        able = ", ".join(name for name, m in METHODS.items() if step_sizes(m.config()))
        raise SpecError(
            f"--scheduler pbt: changes step sizes in mid-run, and {method.name} has none that can "
            f"change; use asha, or one of {able}"
        )

    # a setting that cannot change, or changes nothing, would be searched in vain
    for dimension in space:
        setting = dimension.setting
        if setting not in names:
            raise SpecError(
                f"{setting}: --scheduler pbt varies what can change in mid-run, "
                f"{' and '.join(names)}; fix this one with --set"
            )
        if dimension.kind not in ("uniform", "loguniform", "choice"):
            raise SpecError(
                f"{setting}.{dimension.kind}: --scheduler pbt draws its trials; make it uniform, "
                "loguniform or choice"
            )
        short = setting.removeprefix("method.")
        if short in without_effect(method):
            raise SpecError(
                f'{setting}: with method.server = "{method.server}" the head takes no steps, so '
                "--scheduler pbt has nothing to change there; vary method.lr"
            )
        if changes_of(method, short):
            raise SpecError(
                f"{setting}_at: is what --scheduler pbt writes; leave it out of the scenario"
            )
