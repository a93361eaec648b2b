"""Scenario files: TOML in, a checked `VerticalScenario` out, and back."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import re
import textwrap
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import tomli_w
from pydantic import BaseModel, TypeAdapter, ValidationError

from raydpzv.config.paths import located, unlocated
from raydpzv.config.proved import ALONE
from raydpzv.config.scenario import SCENARIOS, AnyScenario, method_fields, shared_fields
from raydpzv.config.tree import DEEPEST, checked, read_toml, read_tree
from raydpzv.config.validation import check
from raydpzv.errors import SpecError, suggest
from raydpzv.files import RECORDS
from raydpzv.foreign import is_foreign
from raydpzv.methods.descriptor import Method, MethodConfig
from raydpzv.registry import DATA_SOURCES, METHODS
from raydpzv.settings.fields import section_of, settings_of
from raydpzv.settings.sections import CommonSections
from raydpzv.settings.values import plain_value
from raydpzv.trust import code_words, require_trust

_WANTED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "missing": "a value",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_long": "at most {max_length} values",
    "too_short": "at least {min_length} value",
}
"""What is said where pydantic has words of its own for it, by the type of the error."""
_UNSET = "none"
"""What unsets a setting on the command line."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key of TOML that needs no quotation marks."""
_SHORT_NUMBER = re.compile(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?")
"""A number that people type and that is none in TOML: .1 or 1."""
_HELD_BACK = re.compile(r"^# (\w+) = .*# PUBLIC\?$", re.MULTILINE)
"""A line of a file that `raydpzv new` wrote, whose setting waits to be confirmed."""
_SIMILAR = 0.6
"""How like a known setting's name a wrong one is, at least, to be answered by it."""


@dataclass(frozen=True)
class Origin:
    """Where settings are from, as complaints name it: a file, and the dotted keys that --set
    gives.
    """

    file: str
    set: frozenset[str] = frozenset()

    def of(self, setting: str = "") -> str:
        """Return "(from ...)" of one setting; of "", what several settings are from."""
        if not self.set:
            return f"(from {self.file})"
        typed = any(
            f"{setting}.".startswith(f"{key}.") or key.startswith(f"{setting}.") for key in self.set
        )
        return (
            f"(from {'--set' if typed else self.file})"
            if setting
            else f"(from {self.file} and --set)"
        )


def load(path: Path, overrides: Sequence[str] = (), base: Path | None = None) -> AnyScenario:
    """Read a scenario file and apply `key=value` overrides (dotted keys). Raises SpecError.

    base: the folder that paths of data in the file count from (default: the file's); those of
    overrides count from the working folder. A file in the folder of a run or a search may name code
    as `raydpzv.trust` says.
    """
    tree = written(path, base)
    try:
        return changed(tree, overrides, Origin(path.name, _keys(overrides)))
    except SpecError as error:
        setting = str(error).partition(":")[0].rpartition(".")[2]
        if setting not in _HELD_BACK.findall(path.read_text(encoding="utf-8")):
            raise
        raise SpecError(
            f"{error}; {path.name} has such lines, marked PUBLIC?: delete the # before each whose "
            "values are public"
        ) from None


def written(path: Path, base: Path | None = None) -> dict[str, Any]:
    """Return what a scenario file sets, with a name; base: see `load`. Raises SpecError, and
    InputError as `raydpzv.trust.require_trust` does.
    """
    tree = read_tree(path, "the scenario file")
    if base is None and any((path.parent / name).exists() for name in RECORDS):
        require_trust(path.parent, path.name, code_words(tree))
    return {"name": path.stem, **located(tree, path.parent if base is None else base)}


def override(spec: AnyScenario, overrides: Sequence[str]) -> AnyScenario:
    """Return a spec with `key=value` overrides applied."""
    return changed(as_tree(spec), overrides, spec.title or "the scenario")


def changed(tree: dict[str, Any], overrides: Sequence[str], where: str | Origin) -> AnyScenario:
    """Validate a tree with `key=value` overrides, and note what another method takes over. Raises
    SpecError.
    """
    whole = overridden(tree, overrides)
    found = parse(whole, where)
    method = tree.get("method", {})
    notes = [_taken_over(method, found.method, overrides)] if isinstance(method, Mapping) else []
    return found.noted(" ".join(filter(None, notes)))


def parse(
    tree: Mapping[str, Any], where: str | Origin, recorded: Method | None = None
) -> AnyScenario:
    """Validate a scenario; SpecError names the first wrong setting, what was wanted, what came and
    from where.

    Paths of data that are still relative count from the working folder. recorded: the user's own
    method as a record describes it, whose settings were checked when the run began.
    """
    tree = located(plain_value(tree))
    where = Origin(where) if isinstance(where, str) else where
    given = tree.get("method", {})
    if not isinstance(given, Mapping):
        raise SpecError(
            f"method: wanted a table [method], got {_shown(given)} {where.of('method')}"
        )
    given = {"name": "dpzv", **given}
    method = recorded or _method(given["name"], where)
    kind = SCENARIOS[method.kind]
    if "users" in tree and "users" not in kind.model_fields:
        known = ", ".join(name for name in METHODS if METHODS[name].one_model)
        raise SpecError(
            f'users: a table for horizontal methods ({known}), got it with "{given["name"]}" '
            f"{where.of()}; leave it "
            "out or choose one of them"
        )
    config = method.config(**given) if recorded else method_config(method.config, given, where)
    try:
        spec = kind.model_validate({**tree, "method": config})
    except ValidationError as error:
        raise SpecError(_one_line(error, where, kind, method.config)) from None
    if not recorded:
        check(spec, where.of())
    return spec


def _method(name: Any, where: Origin) -> Method:
    if not isinstance(name, str) or name not in METHODS:
        hint = suggest(str(name), METHODS)
        known = ", ".join(METHODS)
        raise SpecError(
            f"method.name: wanted one of {known}, got {_shown(name)} {where.of('method.name')}."
            f" {hint}".rstrip()
        )
    found: Method = METHODS[name]
    return found


def method_config(
    config: type[MethodConfig], given: Mapping[str, Any], where: Origin
) -> MethodConfig:
    """Validate a method's table. Raises SpecError.

    As JSON, since pydantic takes lists for tuples there and yet converts nothing else.
    """
    own = (
        {"name": given["name"]} if is_foreign(given.get("name")) else {}
    )  # it has another name at home
    try:
        text = json.dumps(
            {key: value for key, value in given.items() if key not in own}, default=_no_json
        )
        found = _adapter(config).validate_json(text)  # type: ignore[arg-type]  # mypy takes its objects' hash
        return dataclasses.replace(found, **own) if own else found  # type: ignore[type-var]
    except ValidationError as error:
        raise SpecError(_one_line(error, where, config, config, ("method",))) from None
    except ValueError as error:
        raise SpecError(f"method: {error} {where.of('method')}") from None


@functools.cache
def _adapter(config: type[MethodConfig]) -> TypeAdapter[MethodConfig]:
    """Making one takes longer than all else that a scenario's reading does."""
    return TypeAdapter(config)


def _no_json(value: Any) -> NoReturn:
    raise ValueError(f"wanted numbers, texts, lists and true or false, got {_shown(value)}")


def as_tree(spec: CommonSections) -> dict[str, Any]:
    """Return every setting with its value, defaults included, as plain data that TOML can hold."""
    tree, method = _tables(spec)
    # the order of the sections is that of a file: the method comes before what it is run with
    first = {
        name: tree.pop(name)
        for name in [*CommonSections.model_fields, "split", "model"]
        if name in tree
    }
    found: dict[str, Any] = plain_value({**first, "method": method, **tree})
    return found


def _tables(spec: CommonSections) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a scenario but its method's, and those of its method, as they are."""
    tree = spec.model_dump(exclude_none=True, exclude={"method"}, warnings=False)
    method = dataclasses.asdict(getattr(spec, "method"))  # noqa: B009
    return tree, {k: v for k, v in method.items() if v is not None}


def in_own_values(spec: AnyScenario) -> AnyScenario:
    """Return a scenario with Python's own values, validated anew if a program has put others into
    it, with `model_copy` or `dataclasses.replace`. Raises SpecError.
    """
    try:
        json.dumps(_tables(spec))
    except (TypeError, ValueError):
        return parse(as_tree(spec), spec.title or "the scenario").noted(spec.note)
    return spec


def as_toml(spec: CommonSections) -> str:
    """Return the resolved scenario as TOML text."""
    return tomli_w.dumps(as_tree(spec))


def scenario_sha256(spec: CommonSections) -> str:
    """Return the digest of a resolved scenario, wherever its data lie."""
    return tree_sha256(as_tree(spec))


def tree_sha256(tree: Mapping[str, Any]) -> str:
    """Return the digest of a resolved scenario's tree, also of one that is not validated yet."""
    tree = unlocated(tree)
    privacy = tree.get("privacy")
    if isinstance(privacy, Mapping) and privacy.get("mode") == "proved":
        # digests have the word that they began with
        tree = {**tree, "privacy": {**privacy, "mode": "sound"}}
    return hashlib.sha256(tomli_w.dumps(tree).encode()).hexdigest()


def overridden(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a scenario's tree with `key=value` overrides in it, not yet validated. Raises
    SpecError.

    The bare word none unsets a setting that may be left out.
    """
    tree, unset = plain_value(tree), dict[tuple[str, ...], None]()
    for item in overrides:
        key, equals, text = item.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(_BARE.fullmatch(part) for part in parts):
            raise SpecError(
                f"--set {item}: wanted key=value with a dotted key, such as method.lr=0.002"
            )
        if len(parts) > DEEPEST:
            raise SpecError(
                f"--set {item}: wanted a key of at most {DEEPEST} parts, got {len(parts)}; shorten "
                "it"
            )
        table = tree
        for part in parts[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SpecError(f"--set {item}: {part} is a value, not a table")
        if parts == ["method", "name"] and tree.get("method", {}).get("name", "dpzv") != text.strip(
            '"'
        ):
            tree["method"] = _kept_for(text.strip('"'), tree["method"])
        if parts == ["data", "source"] and table.get("source", "digits") != text.strip('"'):
            table = tree["data"] = _kept_of(text.strip('"'), table, overrides)
        table = tree.setdefault(parts[0], {}) if len(parts) == 2 else table
        table[parts[-1]] = _literal(text)
        if text.strip() == _UNSET:
            unset[tuple(parts)] = None
        else:
            unset.pop(tuple(parts), None)
        if parts == ["privacy", "mode"] and table["mode"] == "none":
            tree["privacy"] = {
                k: v for k, v in table.items() if k not in ("epsilon", "delta", "sigma", *ALONE)
            }
    for path in unset:
        _without(tree, path)
    return tree


def _without(tree: dict[str, Any], path: Sequence[str]) -> None:
    """Take out a setting that is the word none, if it may be left out and has no value of that
    name.
    """
    tables = [tree]
    for part in path[:-1]:
        below = tables[-1].get(part)
        if not isinstance(below, dict):
            return
        tables.append(below)
    if tables[-1].get(path[-1]) == _UNSET and _optional(tree, path):
        del tables[-1][path[-1]]


def _optional(tree: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Return whether a setting may be left out, and none is not one of its values."""
    given = tree.get("method", {})
    name = given.get("name", "dpzv") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or name not in METHODS:
        return False
    if path[0] == "method":
        annotation: Any = typing.get_type_hints(METHODS[name].config).get(".".join(path[1:]))
        return _takes_none(annotation)
    kind: type[BaseModel] | None = SCENARIOS[METHODS[name].kind]
    for part in path:
        if kind is None or part not in kind.model_fields:
            return False
        annotation = kind.model_fields[part].annotation
        kind = section_of(annotation)
    return _takes_none(annotation)


def _takes_none(annotation: Any) -> bool:
    kinds = typing.get_args(annotation)
    return type(None) in kinds and _UNSET not in [v for k in kinds for v in typing.get_args(k)]


def _kept_for(name: str, method: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one method that another has too: what `--set method.name=...` keeps."""
    known = method_fields(METHODS[name].config) if name in METHODS else method
    return {k: v for k, v in method.items() if k in known}


def _kept_of(source: str, data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Settings of one data set's files that another has too, or that are given: what `--set
    data.source=...` keeps.
    """
    given = _keys(overrides)
    refuses = (
        DATA_SOURCES[source].refuses if source in DATA_SOURCES else lambda setting, value: False
    )
    return {k: v for k, v in data.items() if f"data.{k}" in given or not refuses(k, v)}


def _taken_over(before: Mapping[str, Any], after: MethodConfig, overrides: Sequence[str]) -> str:
    """Return a sentence on settings that another method has of the scenario's own one by name
    alone; "" if none.

    before: [method] as it was; after: with the overrides, `method.name` perhaps among them. A
    setting that both methods have from one class, that the overrides give or that is the other
    method's default is not spoken of.
    """
    old, usual = str(before.get("name", "dpzv")), type(after)()
    if old == after.name or old not in METHODS:
        return ""
    given = _keys(overrides)
    common = shared_fields(METHODS[old].config, type(after))
    kept = {
        name: (getattr(after, name), getattr(usual, name))
        for name in method_fields(type(after))
        if name in before
        and name not in {"name", *common}
        and f"method.{name}" not in given
        and getattr(after, name) != getattr(usual, name)
    }
    if not kept:
        return ""
    values = ", ".join(f"{name} = {json.dumps(value)}" for name, (value, _) in kept.items())
    own = ", ".join(json.dumps(default) for _, default in kept.values())
    return (
        f"method.name = {after.name} takes over from the scenario's {old}: {values}; "
        f"{after.name}'s own: {own}. Give {', '.join(f'method.{name}' for name in kept)} with "
        "--set"
    )


def _literal(text: str) -> Any:
    """Read a TOML value; anything that is none is text. Raises SpecError for a value that no
    setting can have.
    """
    if _SHORT_NUMBER.fullmatch(text.strip()):
        return float(text)
    try:
        found = read_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return checked({"value": text.strip()}, "--set")["value"]
    # a line break could begin a second key
    return checked(found, "--set")["value"] if len(found) == 1 else text.strip()


def _keys(overrides: Sequence[str]) -> frozenset[str]:
    return frozenset(item.partition("=")[0].strip() for item in overrides)


def _one_line(
    error: ValidationError,
    where: Origin,
    kind: type[Any],
    config: type[MethodConfig],
    before: tuple[str, ...] = (),
) -> str:
    """Return the first fault; kind: what was validated, `before` its place in a scenario; config:
    of its method.
    """
    first = error.errors()[0]
    path = [*before, *(str(p) for p in first["loc"] if isinstance(p, int) or str(p).isidentifier())]
    wrong, fault = str((*before, *first["loc"])[-1]), first["type"]
    name = ".".join(path) or wrong
    if fault in ("extra_forbidden", "unexpected_keyword_argument"):
        settings = _settings_at(kind, first["loc"][:-1])
        near = _nearest(wrong, ".".join(path[:-1]), config)
        return (
            f"{name}: unknown setting {where.of(name)}. {near}Settings here: {', '.join(settings)}"
        )
    wanted = _WANTED[fault].format(**first.get("ctx", {})) if fault in _WANTED else first["msg"]
    wanted = wanted.removeprefix("Value error, ").removeprefix("Input should be ")
    if wanted.startswith("unknown "):
        return f"{name}: {wanted} {where.of(name)}"
    wanted = wanted if wanted.startswith("wanted") else f"wanted {wanted}"
    unset = (
        f"; {_UNSET} unsets what may be left out, and this setting may not"
        if first["input"] == _UNSET
        else ""
    )
    return f"{name}: {wanted}, got {_shown(first['input'])} {where.of(name)}{unset}"


def _shown(value: Any) -> str:
    return textwrap.shorten(repr(value), 80)


def _nearest(wrong: str, table: str, config: type[MethodConfig]) -> str:
    """Return `Did you mean "method.lr"? ` for settings of this name in other tables, else for the
    most similar name.
    """
    known = _dotted(config)
    names = {setting: setting.rpartition(".")[2] for setting in known}
    same = [setting for setting in known if names[setting] == wrong]
    # of names that are equally similar, one of the same table
    likeness = {
        s: (difflib.SequenceMatcher(None, wrong, names[s]).ratio(), s.startswith(f"{table}."))
        for s in known
    }
    best = max(known, key=lambda setting: likeness[setting])
    near = same or ([best] if likeness[best][0] >= _SIMILAR else [])
    return f"Did you mean {' or '.join(map(json.dumps, near))}? " if near else ""


def _dotted(config: type[MethodConfig]) -> list[str]:
    """Return tables and settings, dotted, of a scenario with a method of that configuration."""
    scenario = SCENARIOS[METHODS[config.name].kind]
    sections = {name: section_of(field.annotation) for name, field in scenario.model_fields.items()}
    settings = [name for table, of in sections.items() if of for name, _ in settings_of(of, table)]
    return [*sections, *settings, *(f"method.{name}" for name in method_fields(config))]


def _settings_at(kind: type[Any], path: Sequence[int | str]) -> list[str]:
    if not issubclass(kind, BaseModel):
        # a table of tables: [method.groups]
        within = typing.get_type_hints(kind)[str(path[0])] if path else None
        tables = [inner for of in typing.get_args(within) for inner in typing.get_args(of)]
        found = next(filter(dataclasses.is_dataclass, tables), kind)
        return sorted(field.name for field in dataclasses.fields(found))
    model: type[BaseModel] = kind
    for part in path:
        annotation = (
            model.model_fields[str(part)].annotation if part in model.model_fields else None
        )
        model = section_of(annotation) or model
    return sorted(model.model_fields)
