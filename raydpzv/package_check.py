"""The packages `actors` and `scenarios`, found beside this one whatever else bears their names.

Their names are common: a user's own `actors.py` or folder `scenarios` beside her script comes first
on `sys.path`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from raydpzv.errors import InputError

NEIGHBOURS = ("actors", "scenarios")
HOME = Path(__file__).resolve().parent.parent
"""The folder in which this package and its two neighbours lie."""


def load_own(name: str) -> ModuleType:
    """Return the neighbour with that name, and let every later import of the name find it.

    Raises InputError if another module with the name was imported before: two cannot bear it in one
    process.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        if _is_own(loaded.__spec__):
            return loaded
        raise InputError(
            f"wanted raydpzv's own package `{name}`, got {_file(loaded.__spec__) or loaded}, "
            "imported before; rename that file or folder"
        )
    spec = PathFinder.find_spec(name, [str(HOME)])
    if spec is None or spec.loader is None:
        raise InputError(f"wanted the package `{name}` in {HOME}, got none; install raydpzv again")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_module(name: str) -> ModuleType:
    """Import a module by its full name; one of a neighbour is ours, as `load_own` says."""
    first = name.partition(".")[0]
    if first in NEIGHBOURS:
        load_own(first)
    return importlib.import_module(name)


def shadowing(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the file that an import of `name` finds in these folders, if it is not this package's
    neighbour.

    A folder without an __init__.py does not count: a package later on the path comes before it.
    """
    spec = PathFinder.find_spec(name, [str(folder) for folder in folders])
    return None if spec is None or spec.origin is None or _is_own(spec) else Path(spec.origin)


def claim_in_worker() -> None:
    """Make a process of Ray find our `actors` before it unpickles one; Ray calls it by its name."""
    load_own("actors")


def _is_own(spec: ModuleSpec | None) -> bool:
    file = _file(spec)
    return file is not None and HOME in file.resolve().parents


def _file(spec: ModuleSpec | None) -> Path | None:
    if spec is None:
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places else None
