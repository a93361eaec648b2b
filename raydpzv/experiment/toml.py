"""Scenario files: TOML in, a checked `Spec` out, and back."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.check import check
from raydpzv.experiment.spec import METHODS, Spec


def load(path: Path, overrides: Sequence[str] = ()) -> Spec:
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
    return parse({"name": path.stem, **_override(tree, overrides)}, where)


def override(spec: Spec, overrides: Sequence[str]) -> Spec:
    """Return a spec with `key=value` overrides applied."""
    return parse(_override(as_tree(spec), overrides), spec.title or "the scenario")


def parse(tree: Mapping[str, Any], where: str) -> Spec:
    """Validate a scenario; SpecError names the first wrong setting, what was wanted and what came."""
    tree = dict(tree)
    method = tree.get("method")
    if isinstance(method, dict) and "name" not in method:
        tree["method"] = {"name": "dpzv", **method}
    try:
        spec = Spec.model_validate(tree)
    except ValidationError as error:
        raise SpecError(_one_line(error, where)) from None
    check(spec, where)
    return spec


def as_tree(spec: Spec) -> dict[str, Any]:
    """Return every setting with its value, defaults included, as plain data that TOML can hold."""
    return _plain(spec.model_dump(mode="json", exclude_none=True))


def as_toml(spec: Spec) -> str:
    """Return the resolved scenario as TOML text."""
    return tomli_w.dumps(as_tree(spec))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _override(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
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
    known = METHODS[name].model_fields if name in METHODS else method
    return {k: v for k, v in method.items() if k in known}


def _literal(text: str) -> Any:
    """Read a TOML value; anything that is none is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()


def _one_line(error: ValidationError, where: str) -> str:
    first = error.errors()[0]
    path = [
        str(p) for p in first["loc"] if (p not in METHODS and str(p).isidentifier()) or isinstance(p, int)
    ]
    name, kind = ".".join(path), first["type"]
    settings = _settings_at(first["loc"][:-1])
    if kind == "extra_forbidden":
        return f"{name}: unknown setting in {where}. {suggest(path[-1], settings)}Settings here: {', '.join(settings)}"
    if kind.startswith("union_tag"):
        given = first.get("ctx", {}).get("tag", first["input"])
        hint = suggest(str(given), METHODS)
        return f"method.name: wanted one of {', '.join(METHODS)}, got {given!r} in {where}. {hint}".rstrip()
    wanted = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    wanted = wanted if wanted.startswith("wanted") else f"wanted {wanted}"
    return f"{name}: {wanted}, got {textwrap.shorten(repr(first['input']), 80)} in {where}"


def _settings_at(path: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] = Spec
    for part in path:
        if part in METHODS:
            model = METHODS[str(part)]
        elif part in model.model_fields and isinstance(
            annotation := model.model_fields[str(part)].annotation, type
        ):
            model = annotation
    return sorted(model.model_fields)
