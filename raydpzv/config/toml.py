"""Scenario files: TOML in, a checked `VerticalScenario` out, and back."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from raydpzv.config import validation, validation_horizontal
from raydpzv.config.scenario import METHODS, Scenario, VerticalScenario
from raydpzv.config.scenario_horizontal import HORIZONTAL_METHODS, HorizontalScenario
from raydpzv.errors import SpecError, suggest

ALL_METHODS = METHODS | HORIZONTAL_METHODS
AnyScenario = VerticalScenario | HorizontalScenario
"""A scenario of either kind; `method.name` says which."""


def load(path: Path, overrides: Sequence[str] = ()) -> AnyScenario:
    """Read a scenario file and apply `key=value` overrides (dotted keys). Raises SpecError."""
    try:
        text = path.read_text()
    except OSError as error:
        raise SpecError(f"{path}: cannot read the scenario file ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: a scenario file is text in UTF-8; this one is not") from None
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path.name}: not a TOML file: {error}") from None
    where = f"{path.name} with --set" if overrides else path.name
    return parse({"name": path.stem, **overridden(tree, overrides)}, where)


def override(spec: AnyScenario, overrides: Sequence[str]) -> AnyScenario:
    """Return a spec with `key=value` overrides applied."""
    return parse(overridden(as_tree(spec), overrides), spec.title or "the scenario")


def parse(tree: Mapping[str, Any], where: str) -> AnyScenario:
    """Validate a scenario; SpecError names the first wrong setting, what was wanted and what came."""
    tree = dict(tree)
    method = tree.get("method")
    if isinstance(method, dict) and "name" not in method:
        tree["method"] = {"name": "dpzv", **method}
    name = tree["method"].get("name") if isinstance(tree.get("method"), dict) else None
    if isinstance(name, str) and name not in ALL_METHODS:
        known = ", ".join(ALL_METHODS)
        hint = suggest(name, ALL_METHODS)
        raise SpecError(f"method.name: wanted one of {known}, got {name!r} in {where}. {hint}".rstrip())
    horizontal = isinstance(name, str) and name in HORIZONTAL_METHODS
    kind = HorizontalScenario if horizontal else VerticalScenario
    try:
        spec = kind.model_validate(tree)
    except ValidationError as error:
        raise SpecError(_one_line(error, where, kind)) from None
    if isinstance(spec, HorizontalScenario):
        validation_horizontal.check(spec, where)
        return spec
    validation.check(spec, where)
    return spec


def as_tree(spec: Scenario) -> dict[str, Any]:
    """Return every setting with its value, defaults included, as plain data that TOML can hold."""
    return _plain(spec.model_dump(mode="json", exclude_none=True))


def as_toml(spec: Scenario) -> str:
    """Return the resolved scenario as TOML text."""
    return tomli_w.dumps(as_tree(spec))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def overridden(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a scenario's tree with `key=value` overrides in it, not yet validated. Raises SpecError."""
    tree = _plain(tree)
    for item in overrides:
        key, equals, text = item.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise SpecError(f"--set {item}: wanted key=value with a dotted key, such as method.lr=0.002")
        table = tree
        for part in parts[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SpecError(f"--set {item}: {part} is a value, not a table")
        if parts == ["method", "name"] and tree.get("method", {}).get("name", "dpzv") != text.strip('"'):
            tree["method"] = _kept_for(text.strip('"'), tree["method"])
        table = tree.setdefault(parts[0], {}) if len(parts) == 2 else table
        table[parts[-1]] = _literal(text)
        if parts == ["privacy", "mode"] and table["mode"] == "none":
            tree["privacy"] = {k: v for k, v in table.items() if k not in ("epsilon", "delta", "sigma")}
    return tree


def _kept_for(name: str, method: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one method that another has too: what `--set method.name=...` keeps."""
    known = ALL_METHODS[name].model_fields if name in ALL_METHODS else method
    return {k: v for k, v in method.items() if k in known}


def _literal(text: str) -> Any:
    """Read a TOML value; anything that is none is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()


def _one_line(error: ValidationError, where: str, kind: type[Scenario]) -> str:
    first = error.errors()[0]
    path = [
        str(p) for p in first["loc"] if (p not in ALL_METHODS and str(p).isidentifier()) or isinstance(p, int)
    ]
    name, fault = ".".join(path), first["type"]
    settings = _settings_at(kind, first["loc"][:-1])
    if fault == "extra_forbidden":
        return f"{name}: unknown setting in {where}. {suggest(path[-1], settings)}Settings here: {', '.join(settings)}"
    if fault.startswith("union_tag"):
        given = first.get("ctx", {}).get("tag", first["input"])
        hint = suggest(str(given), ALL_METHODS)
        return (
            f"method.name: wanted one of {', '.join(ALL_METHODS)}, got {given!r} in {where}. {hint}".rstrip()
        )
    wanted = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    wanted = wanted if wanted.startswith("wanted") else f"wanted {wanted}"
    return f"{name}: {wanted}, got {textwrap.shorten(repr(first['input']), 80)} in {where}"


def _settings_at(kind: type[Scenario], path: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] = kind
    for part in path:
        if part in ALL_METHODS:
            model = ALL_METHODS[str(part)]
        elif part in model.model_fields and isinstance(
            annotation := model.model_fields[str(part)].annotation, type
        ):
            model = annotation
    return sorted(model.model_fields)
