"""Which code "module:attribute" may name: what is defined in a file of the user's project.

The project is the working folder and what is below it, and every other folder of sources on
Python's search path: PYTHONPATH, what a program appends, the sources of an editable installation.
Never the standard library, and never what is installed (site-packages, dist-packages, the
interpreter's own folders). Of this program's own modules, those of models alone.

A file is found by the specs of its module and of the packages around it, before any is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

from raydpzv.errors import SpecError

PROGRAM = ("raydpzv", "actors", "scenarios")
"""The program's packages, wherever they lie."""
_MODELS = "raydpzv.models."
_OF_MODELS = frozenset(
    _MODELS + name for name in ("bottoms", "heads", "pretrained", "resnet", "transformer", "whole")
)
"""The program's modules whose public models a scenario may name."""
_PACKAGES = ("site-packages", "dist-packages")


def place_of(name: str, inside: list[str]) -> tuple[Path | None, list[str]]:
    """Return a user's module's file, or the folder of a package without one, and the folders of a
    package's modules.

    inside: those folders of the package that it is in. None: it is not the user's. Imports nothing.
    """
    places, folders = _places(name, inside)
    own = bool(places) and not any(is_installed(name, place) for place in places)
    return (Path(places[0]) if own else None), folders


def _places(name: str, inside: list[str]) -> tuple[list[str], list[str]]:
    """Return a module's file, or all folders of a package without one, and those of its modules."""
    if (module := sys.modules.get(name)) is not None:
        file, folders = getattr(module, "__file__", None), list(getattr(module, "__path__", ()))
    else:
        try:
            package, _, last = name.rpartition(".")
            spec = PathFinder.find_spec(last, inside) if package else importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        file, folders = (
            (spec.origin, list(spec.submodule_search_locations or ())) if spec else (None, [])
        )
    return ([file] if file else folders), folders


def is_installed(module: str, file: str) -> bool:
    """Return whether a module of this name and file is the program's, Python's or a package's."""
    top = module.partition(".")[0]
    if top in PROGRAM or top in sys.stdlib_module_names:
        return True
    ways = {os.path.abspath(file), os.path.realpath(file)} if file else ()
    return any(_is_of_python(Path(way)) for way in ways)


def _is_of_python(file: Path) -> bool:
    return any(part in _PACKAGES for part in file.parts) or any(
        file.is_relative_to(folder) for folder in _folders_of_python()
    )


@functools.cache
def _folders_of_python() -> frozenset[Path]:
    """Return the folders of the standard library and of installed packages.

    Not all of the interpreter's prefix: /usr and a virtual environment may hold projects too.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    found = {sysconfig.get_path(name) for name in names}
    found |= {sysconfig.get_path(name, vars=base) for name in names}
    found |= {os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()}
    return frozenset(Path(os.path.realpath(folder)) for folder in found)


def check_module(module: str, setting: str, name: str) -> None:
    """Raise SpecError unless a module and the packages around it are files of the user's project.

    Imports nothing. A module that nobody finds passes: its import says so.
    """
    if module in _OF_MODELS and not name.partition(":")[2].startswith("_"):
        return
    parts, inside = module.split("."), list[str]()
    for end in range(1, len(parts) + 1):
        each = ".".join(parts[:end])
        places, inside = _places(each, inside)
        if any(is_installed(each, place) for place in places or [""]):
            raise SpecError(
                f'{setting}: wanted an object of your own project, got "{name}": {each} is '
                f"{_whose(each)}; name a function of yours that calls it, in a file of the working "
                "folder"
            )


def _whose(module: str) -> str:
    top = module.partition(".")[0]
    if top in PROGRAM:
        return "the program's"
    return "Python's own" if top in sys.stdlib_module_names else "an installed package"


def check_object(found: Any, setting: str, name: str) -> None:
    """Raise SpecError for an object that would be called and is not defined in the user's project.

    A module of torch, and what is not called, is a value, wherever its class is from.
    """
    if isinstance(found, ModuleType):
        raise SpecError(
            f'{setting}: wanted an object of a module, got the module "{name}"; name what is in it'
        )
    for each in _called(found):
        module = getattr(each, "__module__", None)
        if not isinstance(module, str) or not is_own(module):
            raise SpecError(
                f'{setting}: wanted what is defined in your own project, got "{name}", which is of '
                f"{module or type(each).__name__}; name a function of yours that calls it, in a "
                "file of the working folder"
            )


def _called(found: Any) -> Iterator[Any]:
    """Yield the functions and classes that run when an object is called; of a value none."""
    if isinstance(found, partial):
        yield from _called(found.func)
    elif isinstance(found, MethodType):
        yield found.__func__
    elif isinstance(found, type) or (callable(found) and hasattr(found, "__qualname__")):
        yield found
    elif callable(found) and not _is_torch_module(found):
        yield type(found)


def _is_torch_module(found: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, torch.nn.Module)


def is_own(module: str) -> bool:
    """Return whether what a loaded module defines is the user's, or a model of the program."""
    if module == "__main__":  # a script or a notebook, or `python -m raydpzv`
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return spec is None or spec.name.partition(".")[0] not in PROGRAM
    return module in _OF_MODELS or (module in sys.modules and place_of(module, [])[0] is not None)
