"""A run's settings for a page: those that differ from the defaults, and the command that makes the
run again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from raydpzv.config import catalog
from raydpzv.config.scenario import SCENARIOS
from raydpzv.config.toml import as_tree
from raydpzv.foreign import is_foreign
from raydpzv.records.settings_diff import leaves
from raydpzv.registry import METHODS

_UNSET = "none"
"""What unsets a setting on the command line."""
_NAMES = ("name", "title")

Tree = Mapping[str, Any]
Difference = tuple[str, str, str]


def said(value: Any) -> str:
    """Return a value as a page and a command have it."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def differences(settings: Tree) -> list[Difference] | None:
    """Return (key, value, default) of each setting that is not its method's default; None for a
    method of your own.
    """
    name = (settings.get("method") or {}).get("name", "dpzv")
    if is_foreign(name) or name not in METHODS:
        return None
    usual = SCENARIOS[METHODS[name].kind](method=METHODS[name].config())
    return _different(settings, as_tree(usual))


def command(settings: Tree) -> str:
    """Return the command that makes a run of a scenario that comes with the program; "" for any
    other.
    """
    name = settings.get("name", "")
    if name not in catalog.names():
        return ""
    usual = as_tree(catalog.load(name))
    if usual["method"]["name"] != settings["method"]["name"]:
        return ""  # another method has settings of its own
    words = [f"{key}={value or _UNSET}" for key, value, _ in _different(settings, usual)]
    return shlex.join(
        ["raydpzv", "run", name, *(part for word in words for part in ("--set", word))]
    )


def _different(settings: Tree, usual: Tree) -> list[Difference]:
    has, wanted = dict(leaves(settings)), dict(leaves(usual))
    return [
        (key, said(has[key]) if key in has else "", said(wanted[key]) if key in wanted else "")
        for key in dict.fromkeys([*has, *wanted])
        if key not in _NAMES and has.get(key) != wanted.get(key)
    ]
