"""The methods of a comparison, tuned alike: what varies of each, and the comparison with the chosen
settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from raydpzv.compare.file import ComparisonFile, check_heads, method_lines, resolved
from raydpzv.compare.plan import PlannedLine, by_seed
from raydpzv.config.toml import as_tree
from raydpzv.errors import SpecError, suggest
from raydpzv.search.composition import sentences
from raydpzv.search.space import Dimension, SpaceFile
from raydpzv.search.tune_plan import SearchPlan, Trial, TunedLine
from raydpzv.search.tune_results import BestPoint, SearchResults, chosen_by

_CONTROLS = {"frozen": "frozen", "sgd": "central"}
"""The keys of a comparison file that set its controls, by method."""
HELD_OUT = ("data.validation_fraction=0.2",)
"""The rows that the choice is made on, where nothing else is asked for."""


def tuned_lines(
    file: ComparisonFile, space: SpaceFile
) -> list[tuple[TunedLine, tuple[Dimension, ...]]]:
    """Return the methods of a comparison that have settings to choose, each at one ε, and what
    varies of it. Raises SpecError.
    """
    if file.multiplier is not None:
        raise SpecError(
            "multiplier: settings are chosen at values of ε; give the comparison epsilons"
        )
    lines = resolved(file).lines
    labels = [line.label for line in lines]
    for method in space.methods:
        if method.label not in labels:
            raise SpecError(
                f'methods: {file.name} has no method "{method.label}", which {space.where} names. '
                f"{suggest(method.label, labels)}It has {', '.join(dict.fromkeys(labels))}"
            )

    # a method whose settings do not vary needs no trial, and stays as it is
    found = list[tuple[TunedLine, tuple[Dimension, ...]]]()
    for line in lines:
        varied = space.of_method(line.label, line.epsilon, line.spec)
        if any(dimension.setting != "seed" for dimension in varied):
            found.append((TunedLine(line.label, as_tree(line.spec), line.epsilon), varied))
    if not found:
        raise SpecError(f"{space.where}: varies no setting that a method of {file.name} has")
    return found


def check_trials(file: ComparisonFile, trials: Sequence[Trial]) -> None:
    """Raise SpecError for trials on seeds that are reported, or whose heads may come out different
    without a reason.
    """
    reported = by_seed(file.seeds)
    if both := sorted({trial.spec.seed for trial in trials} & set(reported)):
        raise SpecError(
            f"seed: {both[0]} is one of the comparison's seeds too, and what is chosen on a seed "
            "cannot be reported on it; give the space others, such as seed.grid = [100, 101]"
        )
    controls = [line for line in resolved(file).lines if line.control]
    tried = [PlannedLine(str(trial), None, False, trial.spec) for trial in trials]
    check_heads(file, [*controls, *tried])


def as_plan(file: ComparisonFile) -> dict[str, Any]:
    """Return a comparison file as plain data that a plan keeps."""
    return {"name": file.name} | file.model_dump(mode="json", exclude_defaults=True)


def best_comparison(plan: SearchPlan, results: SearchResults, command: str) -> str:
    """Return a comparison file with the chosen settings, as TOML text; command: what was asked
    for.
    """
    assert plan.comparison is not None
    file = ComparisonFile.model_validate(plan.comparison)
    pairs = zip(plan.lines, results.choices, strict=True)
    chosen = {(line.label, line.epsilon): choice for line, choice in pairs if choice}
    entries = [
        _entry(entry.model_dump(mode="json", exclude_defaults=True), line, chosen)
        for entry, line in method_lines(file)
    ]

    own = {key: value for key, value in plan.comparison.items() if key != "name"}
    named = {line.label for _, line in method_lines(file)}
    for (label, _), choice in chosen.items():
        if label not in named:  # a control that the file does not name
            own[_CONTROLS[choice.trial.spec.method.name]] = list(choice.trial.point[1])

    head = [
        f"Made by: {command}",
        f"Chosen by {_criterion(plan)}.",
        *(_remark(plan, choice) for choice in chosen.values()),
        *sentences(results.spent),
    ]
    text = "".join(f"# {line}\n" for line in head)
    return text + tomli_w.dumps(own | {"methods": entries})


def _criterion(plan: SearchPlan) -> str:
    """Return what the choice is made by, in words."""
    by = f"{plan.metric} at the end"
    if plan.soonest is not None:
        by = f"the simulated seconds to {plan.metric} {plan.soonest:g}"
    rows = f", with {' '.join(plan.held_out)}" if plan.held_out else ""
    seeds = ", ".join(str(seed) for seed in sorted({t.spec.seed for t in plan.trials}))
    return f"{by}{rows}, median of seeds {seeds}"


def _entry(
    entry: dict[str, Any],
    line: PlannedLine,
    chosen: Mapping[tuple[str, float | None], BestPoint],
) -> dict[str, Any]:
    """Return a method's entry at one ε, with what was chosen for it."""
    own = {"label": line.label} | entry
    own["epsilons"] = ["none" if line.epsilon is None else line.epsilon]
    if (choice := chosen.get((line.label, line.epsilon))) is None:
        return own
    values = choice.trial.point[1]
    names = {value.partition("=")[0] for value in values}
    part = "set" if line.epsilon is None else "private"
    kept = [item for item in own.get(part, ()) if item.partition("=")[0].strip() not in names]
    return own | {part: [*kept, *values]}


def _remark(plan: SearchPlan, choice: BestPoint) -> str:
    line = plan.lines[choice.trial.line]
    edge = f"; at the edge of its values: {', '.join(choice.edges)}" if choice.edges else ""
    return f"{line}: {chosen_by(choice)}, best of {choice.points}{edge}"
