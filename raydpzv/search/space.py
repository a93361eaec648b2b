"""Space files: which settings a search varies, and the values it tries.

    method.lr.loguniform = [1e-3, 1e-1]     # any number between, its logarithm evenly
    method.momentum.uniform = [0.0, 0.95]   # any number between
    method.perturbations.randint = [1, 16]  # a whole number, both ends included
    method.server.choice = ["sgd", "zo"]    # one of them, drawn
    seed.grid = [0, 1, 2]                   # each of them

Every draw is tried at every point of the grid, so that points differ in nothing but what the grid
varies. For a comparison, these are the values of every method that has the setting, and a method
may have values of its own:

    [[methods]]
    label = "DPZV"
    space.method.lr.grid = [1e-2, 3e-2]     # in place of the values above
    private.privacy.clip.grid = [1.0, 2.0]  # more of them where noise is added
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from raydpzv.config.scenario import SCENARIOS, AnyScenario, method_fields
from raydpzv.config.tree import read_tree
from raydpzv.door import setting_path
from raydpzv.errors import SpecError, suggest
from raydpzv.keys import Key
from raydpzv.registry import METHODS
from raydpzv.settings.fields import settings_of
from raydpzv.settings.values import plain_value

KINDS = ("choice", "grid", "uniform", "loguniform", "randint")
MOST_TRIALS = 2_000
_RANGES = ("uniform", "loguniform", "randint")
_DIGITS = 6
"""Significant digits of a drawn number: more say nothing, and fill every table."""
_NO_SETTINGS = ("name", "title")


@dataclass(frozen=True)
class Dimension:
    """One setting and the values it may have: a list of them, or the two ends of a range."""

    setting: str
    kind: str
    values: tuple[Any, ...]

    def draw(self, key: Key) -> Any:
        """Return the value at this address of randomness."""
        share = float(key.generator().random())
        if self.kind == "choice":
            return self.values[int(share * len(self.values))]
        low, high = self.values
        if self.kind == "randint":
            return low + int(share * (high - low + 1))
        if self.kind == "uniform":
            found = low + share * (high - low)
        else:
            found = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        return rounded(found, low, high)


@dataclass(frozen=True)
class MethodSpace:
    """The values of one method of a comparison."""

    label: str
    """Of the method in the comparison."""
    epsilons: tuple[float | str, ...] | None = None
    """The values of ε, or "none", at which it has them; None: all."""
    space: tuple[Dimension, ...] = ()
    """They take the place of those for all methods."""
    private: tuple[Dimension, ...] = ()
    """They take the place of both where noise is added."""


@dataclass(frozen=True)
class SpaceFile:
    """A space as its author wrote it."""

    where: str
    """How complaints name it."""
    common: tuple[Dimension, ...]
    """Settings of a scenario, or of all methods of a comparison that have them."""
    methods: tuple[MethodSpace, ...] = ()
    """Values of single methods of a comparison."""
    heads: str | None = None
    """Why the methods' heads learn differently once they are tuned."""
    held_out: tuple[str, ...] = ()
    """Settings of [data] and [split], as "key=value", that the trials alone have."""
    soonest: float | None = None
    """Choose what reaches this value of the metric in the fewest simulated seconds."""

    def of_scenario(self, spec: AnyScenario, fixed: Sequence[str] = ()) -> tuple[Dimension, ...]:
        """Return what varies of a scenario; fixed: settings given as key=value. Raises SpecError."""
        if self.methods:
            raise SpecError(
                f"methods: are those of a comparison, and {self.where} is for a scenario; leave "
                "them out, or tune a comparison"
            )
        if not self.common:
            raise SpecError(
                f"{self.where}: wanted at least one setting to vary, such as method.lr.loguniform "
                "= [1e-3, 1e-1], got none"
            )
        _check_known(self.common, spec, self.where, fixed)
        return self.common

    def of_method(
        self, label: str, epsilon: float | None, spec: AnyScenario
    ) -> tuple[Dimension, ...]:
        """Return what varies of one method of a comparison at one ε (None: no noise is added).

        A control varies only if the file names it. Raises SpecError.
        """
        at, noisy = "none" if epsilon is None else epsilon, epsilon is not None
        own = [
            method
            for method in self.methods
            if method.label == label and (method.epsilons is None or at in method.epsilons)
        ]

        # what is for all reaches a method as far as it has the setting
        has = {f"method.{name}" for name in method_fields(type(spec.method))}
        common = () if METHODS[spec.method.name].control and not own else self.common
        found = {
            d.setting: d
            for d in common
            if d.setting in has
            or d.setting == "seed"
            or (noisy and d.setting.startswith("privacy."))
        }

        # a method's own values take their place, and those with noise that of both
        for method in own:
            found |= {d.setting: d for d in (*method.space, *(method.private if noisy else ()))}

        for name in found:
            if name != "seed" and not name.startswith(("method.", "privacy.")):
                raise SpecError(
                    f"{name}: methods of a comparison differ in [method] and [privacy] alone; take "
                    f"it out of {self.where}, and set it for all of them"
                )
        _check_known(tuple(found.values()), spec, self.where)
        return tuple(found.values())


def read_space_file(space: Path | Mapping[str, Any], spec: AnyScenario) -> SpaceFile:
    """Read a space, a file or its content; of a table, settings may have the short names of own.md.

    spec: the scenario, or that of the comparison. Raises SpecError.
    """
    if isinstance(space, Path):
        where, tree = space.name, read_tree(space, "the space file")
    else:
        where, tree = "the space", dict(plain_value(space))
    methods, held_out = tree.pop("methods", []), tree.pop("held_out", [])
    soonest, heads = tree.pop("soonest", None), tree.pop("heads", None)
    check_held_out(held_out, f"held_out in {where}")
    if soonest is not None and not isinstance(soonest, int | float):
        raise SpecError(f"soonest: wanted a number in {where}, got {soonest!r:.60}")
    if heads is not None and not isinstance(heads, str):
        raise SpecError(f"heads: wanted a sentence in {where}, got {heads!r:.60}")

    def dimensions(values: Any) -> tuple[Dimension, ...]:
        nested = values if isinstance(space, Path) else _nested(values, spec)
        return tuple(_dimensions(nested, where))

    return SpaceFile(
        where,
        dimensions(tree),
        tuple(_method_spaces(methods, where, dimensions)),
        heads,
        tuple(held_out),
        soonest,
    )


def check_held_out(items: Any, where: str) -> None:
    """Raise SpecError unless these are settings of [data] and [split], "key=value" each."""
    if not isinstance(items, list | tuple) or not all(
        isinstance(item, str) and item.startswith(("data.", "split.")) for item in items
    ):
        raise SpecError(
            f"{where}: wanted settings of [data] and [split], such as "
            f"data.validation_fraction=0.2, got {items!r:.60}"
        )


def _method_spaces(
    methods: Any, where: str, dimensions: Callable[[Any], tuple[Dimension, ...]]
) -> Iterator[MethodSpace]:
    parts = ("space", "private")
    for entry in methods if isinstance(methods, list) else [methods]:
        label = entry.get("label") if isinstance(entry, Mapping) else None
        if not isinstance(label, str) or set(entry) - {"label", "epsilons", *parts}:
            raise SpecError(
                "methods: wanted [[methods]] with a label, space or private, and epsilons if not "
                f"all, in {where}, got {entry!r:.80}"
            )
        epsilons = entry.get("epsilons")
        own = (dimensions(entry.get(part, {})) for part in parts)
        yield MethodSpace(label, None if epsilons is None else tuple(epsilons), *own)


def _check_known(
    space: Sequence[Dimension], spec: AnyScenario, where: str, fixed: Sequence[str] = ()
) -> None:
    """Raise SpecError for a setting that no trial has, or that is fixed."""
    given, known = {item.partition("=")[0].strip() for item in fixed}, _known(spec, space)
    for dimension in space:
        name = dimension.setting
        if name not in known:
            raise SpecError(
                f"{name}: unknown setting in {where}. {suggest(name, known)}See `raydpzv list "
                "--settings`; give table.key, as for --set"
            )
        if name in given:
            raise SpecError(f"{name}: is fixed by --set and varied by {where}; drop one of the two")


def _nested(space: Mapping[str, Any], spec: AnyScenario) -> dict[str, Any]:
    """Return a table of settings as a file has it: dotted keys as tables, short names as
    settings.
    """
    tree: dict[str, Any] = {}
    for key, value in space.items():
        name, _, kind = str(key).partition(".")
        path = (
            f"{setting_path(name, method_fields(type(spec.method)))}.{kind}"
            if kind in ("", *KINDS)
            else key
        )
        *tables, last = path.rstrip(".").split(".")
        table = tree
        for step in tables:
            table = table.setdefault(step, {})
        ways = dict(value) if isinstance(value, Mapping) else value
        table[last] = {**table.get(last, {}), **ways} if isinstance(ways, dict) else ways
    return tree


def drawn(space: Sequence[Dimension], samples: int, seed: int) -> list[tuple[str, ...]]:
    """Return the settings of all trials, "key=value" each: draws of what is random, at every point
    of the grid.

    seed: of the draws. Raises SpecError for more draws than there can be different ones, or too
    many trials.
    """
    grid = [d for d in space if d.kind == "grid"]
    if len(grid) == len(space) and samples > 1:
        raise SpecError(
            f"--samples: the space is a grid alone, of which {samples} draws are all alike; leave "
            "it out"
        )
    count = samples * math.prod(len(d.values) for d in grid)
    if count > MOST_TRIALS:
        raise SpecError(
            f"space: wanted at most {MOST_TRIALS:,} trials, got {count:,}; give fewer values"
        )

    # each draw has an address of its own, so that more settings or draws leave it as it is
    key, found = Key(seed) / "search", []
    for sample in range(samples):
        random = {d.setting: d.draw(key / d.setting / sample) for d in space if d.kind != "grid"}
        for point in itertools.product(*(d.values for d in grid)):
            values = random | dict(zip((d.setting for d in grid), point, strict=True))
            found.append(tuple(f"{d.setting}={literal(values[d.setting])}" for d in space))
    return list(dict.fromkeys(found))


def rounded(value: float, low: float, high: float) -> float:
    """Return a drawn number with the digits that say something, inside its range."""
    return min(max(float(f"{value:.{_DIGITS}g}"), low), high)


def in_order(settings: Iterable[str]) -> list[str]:
    """Return settings in the order to apply them: the method first, which says what of its settings
    is kept.
    """
    return sorted(settings, key=lambda item: not item.startswith("method.name="))


def literal(value: Any) -> str:
    """Return a value as `--set` takes it."""
    return json.dumps(plain_value(value), ensure_ascii=False)


def _dimensions(
    tree: Mapping[str, Any], where: str, path: tuple[str, ...] = ()
) -> Iterator[Dimension]:
    for key, value in tree.items():
        name = ".".join((*path, key))
        if not isinstance(value, Mapping):
            raise SpecError(
                f"{name}: wanted one of {', '.join(KINDS)} with its values in {where}, such as "
                f"{name}.choice = [1, 2], got {value!r:.60}. {suggest(key, KINDS)}".rstrip()
            )

        # a table with a kind in it is a setting's, any other one holds settings
        kinds = [kind for kind in KINDS if kind in value]
        if kinds and len(value) > 1:
            raise SpecError(f"{name}: wanted one way to vary it in {where}, got {', '.join(value)}")
        if kinds:
            yield _dimension(name, kinds[0], value[kinds[0]], where)
        else:
            yield from _dimensions(value, where, (*path, key))


def _dimension(setting: str, kind: str, values: Any, where: str) -> Dimension:
    name = f"{setting}.{kind}"
    if not isinstance(values, list) or not values:
        raise SpecError(f"{name}: wanted a list of values in [ ] in {where}, got {values!r:.60}")
    if any(isinstance(v, Mapping) for v in values):
        raise SpecError(f"{name}: wanted numbers, texts or lists in {where}, got {values!r:.60}")
    if any(isinstance(v, float) and not math.isfinite(v) for v in values):
        raise SpecError(f"{name}: wanted finite numbers in {where}, got {values!r:.60}")

    # a list of values
    if kind not in _RANGES:
        _check_different(name, values, where)
        return Dimension(setting, kind, tuple(values))

    # the two ends of a range
    wanted, kinds = ("whole numbers", int) if kind == "randint" else ("numbers", int | float)
    if len(values) != 2 or any(isinstance(v, bool) or not isinstance(v, kinds) for v in values):
        raise SpecError(
            f"{name}: wanted two {wanted}, the ends of a range, in {where}, got {values!r:.60}"
        )
    low, high = values
    if not low < high:
        raise SpecError(f"{name}: wanted the smaller end first in {where}, got {values!r:.60}")
    if kind == "loguniform" and low <= 0:
        raise SpecError(
            f"{name}: wanted ends above 0 in {where}, since 0 has no logarithm, got "
            f"{values!r:.60}; begin with the smallest value worth trying, or use uniform"
        )
    return Dimension(setting, kind, (low, high) if kind == "randint" else (float(low), float(high)))


def _check_different(name: str, values: Sequence[Any], where: str) -> None:
    """Raise SpecError for a repeated value, such as 1 and 1.0; true is not 1, though Python has
    them equal.
    """
    known = [(isinstance(value, bool), value) for value in values]
    for place, value in enumerate(known):
        if value in known[:place]:
            twin = values[known.index(value)]
            raise SpecError(
                f"{name}: wanted different values in {where}, got {literal(twin)} and "
                f"{literal(value[1])}; drop one of the two (to repeat trials, vary seed)"
            )


def _known(spec: AnyScenario, space: Sequence[Dimension]) -> list[str]:
    """Return the dotted names of all settings that some trial may have."""
    named = [v for d in space if d.setting == "method.name" for v in d.values if v in METHODS]
    found = ["method.name"]
    for method in dict.fromkeys([spec.method.name, *named]):
        found += [f"method.{name}" for name in method_fields(METHODS[method].config)]
        for name, described in SCENARIOS[METHODS[method].kind].model_fields.items():
            section = described.annotation
            if isinstance(section, type) and issubclass(section, BaseModel):
                found += [setting for setting, _ in settings_of(section, name)]
            elif name not in (*_NO_SETTINGS, "method"):
                found.append(name)
    return list(dict.fromkeys(found))
