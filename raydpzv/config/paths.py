"""Where a scenario's data files are: paths counted from where they were written, and given anew
where data moved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydpzv.errors import SpecError
from raydpzv.foreign import is_foreign

PATHS = (
    ("data", "folder"),
    ("data", "file"),
    ("arrivals", "file"),
    ("model", "weights"),
    ("model", "folder"),
)
"""The settings that say where data are, as (table, key). The data themselves are known by their
digest.
"""


def each_path(value: Any, change: Callable[[str], str]) -> Any:
    """Return a path, or a table or list of them, with each changed; what is none stays."""
    if isinstance(value, Mapping):
        return {name: each_path(path, change) for name, path in value.items()}
    if isinstance(value, list | tuple):
        return [each_path(path, change) for path in value]
    return change(value) if isinstance(value, str) and value and not is_foreign(value) else value


def located(tree: Mapping[str, Any], base: Path | None = None) -> dict[str, Any]:
    """Return a scenario's tree with the paths of its data absolute.

    base: the folder that relative paths count from; None: the working folder. What is no path is
    left for validation.
    """
    # joined to an absolute path it leaves that as it is
    found, root = dict(tree), (base or Path()).absolute()
    for table, key in PATHS:
        given = found.get(table)
        value = given.get(key) if isinstance(given, Mapping) else None
        if value:
            found[table] = {**found[table], key: each_path(value, lambda path: str(root / path))}
    return found


def unlocated(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's tree without the paths of its data: what a run is, wherever its data
    lie.
    """
    return {
        name: {k: v for k, v in table.items() if (name, k) not in PATHS}
        if isinstance(table, Mapping)
        else table
        for name, table in tree.items()
    }


def locations(tree: Mapping[str, Any]) -> list[str]:
    """Return the paths of a scenario's data as overrides, such as "data.file=..."."""
    found = {f"{table}.{key}": (tree.get(table) or {}).get(key) for table, key in PATHS}
    return [f"{name}={_as_toml(path)}" for name, path in found.items() if path]


def _as_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_as_toml(name)} = {_as_toml(path)}" for name, path in value.items())
            + "}"
        )
    return json.dumps(value, ensure_ascii=False)


def check_moved(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return overrides that say where a recorded run's data are now. Raises SpecError for any other
    setting.
    """
    known = [".".join(names) for names in PATHS]
    for item in overrides:
        if item.partition("=")[0].strip() not in known:
            raise SpecError(
                f"--set {item}: a run on record keeps its settings; only {', '.join(known[:-1])} "
                f"and {known[-1]} can be given anew, where its data have moved; for other settings "
                "start a new run"
            )
    return tuple(overrides)
