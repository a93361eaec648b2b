"""What a user brings: objects of other modules, by "module:attribute", and objects of this process, by a handle.

A scenario names both as text. The registries resolve the text, and nothing else knows where an object came from.
Objects travel to other processes by value, with the scenario that names them.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raydpzv.errors import SpecError, missing, suggest

HERE = "here"
"""The module part of a handle: `here:Reviewer-1f3a9c02` is an object that this process was handed."""
_OBJECTS: dict[str, Any] = {}
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.-]*")
_TYPES = (bool, int, float, str)


def is_foreign(name: object) -> bool:
    """Tell whether a word of a scenario names an object that the program does not come with."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def resolve(name: str, setting: str) -> Any:
    """Return the object that "module:attribute" or a handle names. Raises SpecError, which says what is missing."""
    if name in _OBJECTS:
        return _OBJECTS[name]
    module, _, path = name.partition(":")
    if module == HERE:
        raise SpecError(
            f"{setting}: wanted the object {path.rpartition('-')[0]}, which another process has; run the program "
            "that hands it over, and continue from there"
        )
    found = _imported(module, setting, name)
    for step in path.split("."):
        if not hasattr(found, step):
            known = [word for word in vars(found) if not word.startswith("_")]
            raise SpecError(
                f"{setting}: {module} has no {path}. {suggest(step, known)}Wanted module:attribute, got {name}"
            )
        found = getattr(found, step)
    return found


def _imported(module: str, setting: str, name: str) -> Any:
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)  # a console script does not look in the folder that it is called in
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever the user's module raises is said in one line
        kind = type(error).__name__
        raise SpecError(
            f'{setting}: "{name}" cannot be imported ({kind}: {" ".join(str(error).split())}); run from the folder '
            f"that {module} is in, or install it"
        ) from error


def handle(found: Any, name: str = "") -> str:
    """Return the text by which a scenario names an object: its import path, else a handle of this process.

    A handle ends with a digest of the object's source, or of its pickled bytes: the same object has the same handle.
    """
    module, path = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if module not in (None, "__main__", "builtins") and path and "<" not in path:
        text = f"{module}:{path}"
        if is_foreign(text) and _reaches(text, found):
            return text
    word = re.sub(r"\W+", "", name or path or type(found).__name__) or "object"
    text = f"{HERE}:{word}-{_digest(found)[:8]}"
    _OBJECTS[text] = found
    return text


def _reaches(text: str, found: Any) -> bool:
    try:
        return resolve(text, "") is found
    except SpecError:
        return False


def _digest(found: Any) -> str:
    try:
        content = inspect.getsource(found).encode()
        if closed_over := [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]:
            content += by_value(closed_over, str(found.__qualname__))
    except (OSError, TypeError):
        content = by_value(found, type(found).__name__)
    return hashlib.sha256(content).hexdigest()


def by_value(found: Any, name: str) -> bytes:
    """Pickle an object with its class or source, which another process need not have. Raises SpecError."""
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        raise missing("cloudpickle", "dev", ", or move the object into a module of its own") from None
    module = sys.modules.get(getattr(found, "__module__", None) or "")
    own_module = module is not None and module.__name__ != "__main__" and not _installed(module)
    try:
        if own_module:
            cloudpickle.register_pickle_by_value(module)
        content: bytes = cloudpickle.dumps(found)
        return content
    except Exception as error:  # pickling runs the object's own code
        raise SpecError(
            f"{name}: cannot be sent to another process ({type(error).__name__}: {error}); define it without open "
            "files, locks or generators"
        ) from error
    finally:
        if own_module:
            cloudpickle.unregister_pickle_by_value(module)


def _installed(module: Any) -> bool:
    if module.__name__.partition(".")[0] == __package__:
        return True
    file = getattr(module, "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def packed(names: Iterable[str]) -> dict[str, bytes]:
    """Return the objects of these names for another process."""
    return {name: by_value(resolve(name, name), name) for name in names if is_foreign(name)}


def unpack(objects: Mapping[str, bytes]) -> None:
    """Take over objects from another process."""
    for name, content in objects.items():
        if name not in _OBJECTS:
            import pickle

            _OBJECTS[name] = pickle.loads(content)


def call(
    make: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any], setting: str
) -> Any:
    """Call `make` with these options, and with those of the offered values that it has parameters for.

    Raises SpecError for an option that is unknown, missing or of another type than its annotation or default.
    """
    parameters = _parameters(make)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option, value in options.items():
        if option not in parameters and not open_ended:
            raise SpecError(
                f"{setting}.{option}: {_called(make)} has no such parameter. {suggest(option, parameters)}"
                f"It has {', '.join(parameters) or 'none'}"
            )
        if option in parameters and (wanted := _type(parameters[option])) and not _is(value, wanted):
            raise SpecError(f"{setting}.{option}: {_called(make)} wants {wanted.__name__}, got {value!r:.60}")
    values = {name: offered[name] for name in parameters if name in offered} | dict(options)
    for name, p in parameters.items():
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and name not in values:
            raise SpecError(f"{setting}.{name}: {_called(make)} needs it; give it in [{setting}]")
    return make(**values)


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        return {}


def _called(make: Any) -> str:
    return str(getattr(make, "__qualname__", None) or type(make).__name__)


def _type(p: inspect.Parameter) -> type | None:
    by_name = {kind.__name__: kind for kind in _TYPES}
    wanted = p.annotation if p.annotation in _TYPES else by_name.get(str(p.annotation))
    if wanted is None and p.annotation is p.empty and type(p.default) in _TYPES:
        wanted = type(p.default)
    return wanted


def _is(value: Any, wanted: type) -> bool:
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted
