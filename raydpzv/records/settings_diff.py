"""In which setting a run on record is another one than what is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydpzv.config.paths import unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import InputError
from raydpzv.files import as_json
from raydpzv.records.run_folder import RunFolder


def other_setting(there: AnyScenario, asked: AnyScenario) -> str:
    """Return in words the first setting that differs, wherever the data lie; "" if none does.

    Where "auto" is asked for, it is what the run chose.
    """
    has, wanted = (dict(leaves(unlocated(as_tree(each)))) for each in (there, asked))
    differences = (
        f"{key} is {_said(has.get(key))} there, asked for is {_said(wanted.get(key))}"
        for key in sorted(has.keys() | wanted.keys())
        if wanted.get(key) not in (has.get(key), "auto")
    )
    return next(differences, "")


def require_settings(folder: RunFolder, asked: AnyScenario) -> None:
    """Raise InputError unless the run on record has these settings, wherever its data lie."""
    if other := other_setting(folder.spec(), asked):
        raise InputError(
            f"{folder.path}: holds a run with other settings: {other}; choose another --out, or "
            "ask for the same settings"
        )


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a tree by their dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _said(value: object) -> str:
    return "not set" if value is None else as_json(value).strip()
