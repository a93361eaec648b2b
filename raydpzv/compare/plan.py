"""A comparison, resolved: which scenarios run, each with which seeds, on the same data and the same
budget.

It is written into the comparison's folder before the first run. So a resumed comparison is the one
that was started, even if the files it came from have changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field, ValidationError

from raydpzv.config.catalog import label_of
from raydpzv.config.paths import check_moved, unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree, overridden, parse
from raydpzv.config.tree import read_tree
from raydpzv.errors import DataError, SpecError
from raydpzv.foreign import is_foreign
from raydpzv.methods.recorded_method import method_on_record, own_method
from raydpzv.report.comparison_table import target_name
from raydpzv.settings.bounds import Positive
from raydpzv.settings.fields import Section
from raydpzv.trust import code_words, require_trust

MOST_SEEDS = 10_000
OWN = frozenset({"name", "title", "seed", "method", "privacy", "resources"})
"""What the lines of a comparison may differ in; the rest is the same for all."""


@dataclass(frozen=True)
class PlannedLine:
    """One line of the table: a method with its settings, and the ε its noise is calibrated to
    (None: no noise).
    """

    label: str
    epsilon: float | None
    control: bool
    spec: AnyScenario

    def unlocated(self) -> tuple[str, float | None, bool, dict[str, Any]]:
        """Return what the line is, wherever its data lie."""
        return self.label, self.epsilon, self.control, unlocated(as_tree(self.spec))

    def __str__(self) -> str:
        return self.label if self.epsilon is None else f"{self.label} at ε={self.epsilon:g}"


@dataclass(frozen=True)
class Planned:
    """One run: its line, its seed (in the scenario), and its folder's name."""

    line: PlannedLine
    spec: AnyScenario
    folder: str


@dataclass(frozen=True)
class Comparison:
    """Lines in the order of the table, seeds, and the test accuracies whose cost is asked for."""

    name: str
    title: str
    seeds: tuple[int, ...]
    targets: tuple[float, ...]
    lines: tuple[PlannedLine, ...]
    heads: str = ""
    """Why the methods' heads learn differently; "": they do not."""

    def __post_init__(self) -> None:
        self._check_lines()
        self._check_numbers()

    def runs(self) -> Iterator[Planned]:
        """Yield the runs, the first seed of every line before the second of any."""
        for seed in self.seeds:
            for place, line in enumerate(self.lines):
                spec = line.spec.model_copy(update={"seed": seed})
                yield Planned(line, spec, f"{place:02d}-{_slug(line)}-seed{seed}")

    @property
    def code_words(self) -> list[str]:
        """The words of its scenarios that name a user's objects."""
        return [word for line in self.lines for word in code_words(as_tree(line.spec))]

    def as_toml(self) -> str:
        """Return the plan as TOML text."""
        lines = [
            {"label": x.label, "control": x.control, "scenario": as_tree(x.spec)}
            | ({} if x.epsilon is None else {"epsilon": x.epsilon})
            | ({"note": x.spec.note} if x.spec.note else {})
            | own_method(x.spec)
            for x in self.lines
        ]
        tree = {"name": self.name, "title": self.title, "seeds": list(self.seeds)}
        tree |= {"heads": self.heads} if self.heads else {}
        return tomli_w.dumps(tree | {"targets": list(self.targets), "lines": lines})

    def _check_lines(self) -> None:
        if not self.lines:
            raise SpecError("a comparison needs at least one method; none is left")
        seen: set[tuple[str, float | None]] = set()
        first = as_tree(self.lines[0].spec)
        for line in self.lines:
            if (line.label, line.epsilon) in seen:
                raise SpecError(f"methods: {line} is there twice; give each a label of its own")
            seen.add((line.label, line.epsilon))
            if not line.label.isprintable():
                raise SpecError(
                    f"methods: a label is a line of text; {line.label!r} has other characters"
                )
            if line.spec.clock.kind == "wall":
                raise SpecError(
                    "clock.kind: a comparison runs under the virtual clock (runs side by side "
                    "would share real time, "
                    'and measure the machine); set clock.kind = "virtual"'
                )
            if different := _different(line.spec, first):
                raise SpecError(
                    f"methods: {line} has another [{different}] than {self.lines[0]}; methods "
                    "differ in [method] and [privacy] alone, so that they can be compared: set it "
                    "for all of them"
                )

    def _check_numbers(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SpecError(f"seeds: wanted different seeds, at least one, got {list(self.seeds)}")
        if wrong_seeds := [s for s in self.seeds if not 0 <= s < 2**63]:
            raise SpecError(f"seeds: wanted numbers from 0 to 2^63 - 1, got {wrong_seeds[0]}")
        if wrong := [t for t in self.targets if not 0 < t < 1]:
            raise SpecError(
                f"targets: wanted test accuracies between 0 and 1, such as 0.9, got {wrong[0]:g}"
            )
        if len({target_name(t) for t in self.targets}) < len(self.targets):
            raise SpecError(f"targets: wanted different ones, got {list(self.targets)}")


class _PlanLine(Section):
    label: str
    control: bool
    scenario: dict[str, Any]
    epsilon: Positive | None = None
    note: str = ""
    own_method: dict[str, Any] | None = None


class _PlanFile(Section):
    name: str
    title: str
    seeds: Annotated[tuple[int, ...], Field(strict=False)]
    targets: Annotated[tuple[float, ...], Field(strict=False)]
    lines: Annotated[tuple[_PlanLine, ...], Field(strict=False)]
    heads: str = ""


def read_comparison(path: Path, moved: Sequence[str] = (), *, code: bool = False) -> Comparison:
    """Read a plan that `as_toml` wrote; moved: where its data are now, see `RunFolder.open`.

    code: its runs are made, with what the plan names; else nothing of that is imported. Raises
    DataError if it is damaged, SpecError if `moved` has another setting, InputError as
    `raydpzv.trust.require_trust` does.
    """
    moved = check_moved(moved)
    try:
        found = _PlanFile.model_validate(read_tree(path, "the plan of a comparison"))
        if code or any(_names_method(line) and not line.own_method for line in found.lines):
            words = [word for line in found.lines for word in code_words(line.scenario)]
            require_trust(path.parent, path.name, words)
        lines = tuple(_planned(line, moved, code=code) for line in found.lines)
        return Comparison(found.name, found.title, found.seeds, found.targets, lines, found.heads)
    except (SpecError, ValidationError) as error:
        fault = str(error) if isinstance(error, SpecError) else _fault(error)
        raise DataError(
            f"{path}: no readable plan of a comparison ({fault}); start a new one"
        ) from None


def _names_method(line: _PlanLine) -> bool:
    method = line.scenario.get("method")
    return isinstance(method, Mapping) and is_foreign(method.get("name"))


def _planned(line: _PlanLine, moved: Sequence[str], *, code: bool) -> PlannedLine:
    tree, recorded = overridden(line.scenario, moved), None
    if _names_method(line) and line.own_method and not code:
        recorded = method_on_record(tree["method"], line.own_method)
    spec = parse(tree, line.label, recorded).noted(line.note)
    return PlannedLine(line.label, line.epsilon, line.control, spec)


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _different(spec: AnyScenario, first: Mapping[str, Any]) -> str:
    """Return what differs from the first line's scenario and may not; "" for nothing."""
    return next((k for k, v in as_tree(spec).items() if k not in OWN and v != first.get(k)), "")


def check_alike(specs: Sequence[AnyScenario]) -> None:
    """Raise SpecError for scenarios that differ in more than method and privacy; the rest is the
    first one's.
    """
    for spec in specs[1:]:
        if different := _different(spec, as_tree(specs[0])):
            raise SpecError(
                f"{label_of(spec)}: has another [{different}] than {label_of(specs[0])}; scenarios "
                "that are compared differ in method and privacy alone: make the rest the same"
            )


def _slug(line: PlannedLine) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", line.label.lower()).strip("-")[:40] or "method"
    return words if line.epsilon is None else f"{words}-eps{line.epsilon:g}"


def by_seed(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds: the first so many from 0, or those given. Raises SpecError for more than
    any table has.
    """
    if not isinstance(seeds, int):
        return tuple(seeds)
    if not 0 < seeds <= MOST_SEEDS:
        raise SpecError(
            f"seeds: wanted 1 to {MOST_SEEDS:,}, got {seeds}; or name them, as [0, 7, 9]"
        )
    return tuple(range(seeds))
