"""A user's own objects: of other modules, by "module:attribute", and objects of this process, by a
handle.

A scenario names both as text. The registries resolve the text, and nothing else knows where an
object came from. Objects travel to other processes by value, with the scenario that names them.

Whose folder may name objects that are imported here is for `raydpzv.trust` to say.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import hashlib
import hmac
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from raydpzv.errors import InputError, SpecError, missing, suggest
from raydpzv.files import file_sha256
from raydpzv.project_code import check_module, check_object, is_installed, place_of

HERE = "here"
"""The module part of a handle: `here:Reviewer-1f3a9c02` is an object that this process was
handed.
"""
_OBJECTS: dict[str, Any] = {}
_HANDED = set[str]()
"""Import paths of objects that this process was handed: their code is here already."""
_imports_allowed = True
"""Whether objects that this process was not handed may be imported (`importing`)."""
_NUMBERS: dict[str, int] = {}
_DIGESTS: dict[str, str] = {}
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.-]*")
_TYPES = (bool, int, float, str)
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def is_foreign(name: object) -> bool:
    """Return whether a word of a scenario names an object that the program does not come with."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def is_handle(name: str) -> bool:
    """Return whether a word names an object that this process was handed; it ends with the digest
    of that.
    """
    return name.startswith(f"{HERE}:")


def shown_name(name: str) -> str:
    """Return a name as the user knows it: of a handle the object's own name."""
    return name.removeprefix(f"{HERE}:").rpartition("-")[0] if is_handle(name) else name


def is_handed(name: str) -> bool:
    """Return whether a name is of an object that this process was handed."""
    return name in _OBJECTS or name in _HANDED


@contextmanager
def importing(allowed: bool) -> Iterator[None]:
    """Inside, `resolve` imports what this process was not handed, or refuses it.

    It holds for all threads: a process that reads folders of other users imports nothing, but for a
    word that its own user typed.
    """
    global _imports_allowed
    before, _imports_allowed = _imports_allowed, allowed
    try:
        yield
    finally:
        _imports_allowed = before


def allow_imports() -> None:
    """Let `resolve` import again: the names are those of a folder that is trusted."""
    global _imports_allowed
    _imports_allowed = True


def resolve(name: str, setting: str) -> Any:
    """Return the object that "module:attribute" or a handle names. Raises SpecError, which says
    what is missing.

    What this process was not handed has to be defined in the user's project
    (`raydpzv.project_code`).
    """
    if name in _OBJECTS:
        return _OBJECTS[name]
    module, _, path = name.partition(":")
    if module == HERE:
        if other := next(
            (h for h in _OBJECTS if h.rpartition("-")[0] == name.rpartition("-")[0]), None
        ):
            raise SpecError(
                f"{setting}: {path.rpartition('-')[0]} is another than on record ({path}, here "
                f"{other.partition(':')[2]}): its source or a value that it refers to changed; "
                "hand over the one of before, or start a new run"
            )
        raise SpecError(
            f"{setting}: wanted the object {path.partition('-')[0]}, which another process has; "
            "run the program that hands it over, and continue from there"
        )
    if name in _HANDED:
        return _looked_up(name, setting)
    if not _imports_allowed:
        raise SpecError(
            f'{setting}: "{name}" is code, and this command only reads a record; nothing of it is '
            "imported"
        )
    _look_in_working_folder()
    check_module(module, setting, name)
    found = _looked_up(name, setting)
    check_object(found, setting, name)
    return found


def _looked_up(name: str, setting: str) -> Any:
    module, _, path = name.partition(":")
    found = _imported(module, setting, name)
    for step in path.split("."):
        if isinstance(found, ModuleType) and found.__name__ != module:
            raise SpecError(
                f'{setting}: "{name}" leads through the module {found.__name__}; wanted '
                "module:attribute with the object's own module"
            )
        if not hasattr(found, step):
            known = [word for word in vars(found) if not word.startswith("_")]
            raise SpecError(
                f"{setting}: {module} has no {path}. {suggest(step, known)}Wanted "
                f"module:attribute, got {name}"
            )
        found = getattr(found, step)
    return found


def _look_in_working_folder() -> None:
    """Find modules in the working folder too, where a console script does not look; others come
    first.
    """
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _imported(module: str, setting: str, name: str) -> Any:
    _look_in_working_folder()
    try:
        return importlib.import_module(module)
    except (
        Exception,
        SystemExit,
    ) as error:  # whatever the user's module raises is said in one line
        kind = type(error).__name__
        raise SpecError(
            f'{setting}: "{name}" cannot be imported ({kind}: {" ".join(str(error).split())}); run '
            "from the folder "
            f"that {module} is in, or install it"
        ) from error


def handle(found: Any, name: str = "", digest: str = "") -> str:
    """Return the text by which a scenario names an object: its import path, else a handle of this
    process.

    A handle ends with a digest: the given one, or that of the object's source and of the values
    that it refers to. Equal objects have the same handle. Raises SpecError if another object has
    it.
    """
    module, path = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if module not in (None, "__main__", "builtins") and path and "<" not in path:
        text = f"{module}:{path}"
        if is_foreign(text) and _reaches(text, found):
            _HANDED.add(text)
            return text
    word = re.sub(r"\W+", "", name or path or type(found).__name__) or "object"
    whole = digest or source_digest(found)
    text = f"{HERE}:{word}-{whole[:8]}"
    if _DIGESTS.setdefault(text, whole) != whole:
        raise SpecError(
            f"{word}: another object of this process has the handle {text}; rename either"
        )
    _OBJECTS[text] = found
    return text


def numbered(found: Any, name: str) -> str:
    """Return a handle that reveals nothing of an object's content: with a digest of private rows,
    guesses can be tried.

    It ends with a number, 1 for the first content that this process was handed: a script counts
    alike each time.
    """
    text = f"{HERE}:{name}-{_NUMBERS.setdefault(source_digest(found), len(_NUMBERS) + 1)}"
    _OBJECTS[text] = found
    return text


def without_digest(value: Any) -> Any:
    """Return a setting without the digests of handles: what an object refers to may be private."""
    if isinstance(value, list | tuple):
        return [without_digest(item) for item in value]
    if isinstance(value, Mapping):
        return {name: without_digest(item) for name, item in value.items()}
    return value.rpartition("-")[0] if is_foreign(value) and value.startswith(f"{HERE}:") else value


def _reaches(text: str, found: Any) -> bool:
    try:
        return _looked_up(text, "") is found
    except SpecError:
        return False


def source_digest(found: Any) -> str:
    """Return the digest of an object's source and of the values it refers to, the same in every
    process.

    A module counts by its name, one of the user's also by the files of `own_files`. Raises
    SpecError for a value that cannot travel, or that is nested too deeply.
    """
    try:
        return _digest([_identity(found, {})])
    except RecursionError:
        name = getattr(found, "__qualname__", type(found).__name__)
        raise SpecError(
            f"{name}: the values that it refers to are nested too deeply; use fewer levels"
        ) from None


def own_digests(names: Iterable[str], key: bytes) -> dict[str, str]:
    """Return keyed digests: by module those of the files of `own_files`, then of the objects of
    these names.

    An object that cannot travel has that of its module's files.
    """
    files: dict[str, str] = {}
    objects: dict[str, str] = {}
    for name in names:
        value, module = resolve(name, name), name.partition(":")[0]
        files |= {each: str(file_sha256(file)) for each, file in own_files(module).items()}
        try:
            objects[name] = source_digest(value)
        except SpecError:
            objects[name] = str(_identity(sys.modules.get(module), {}))
    found = dict(sorted(files.items())) | objects
    return {
        name: hmac.new(key, digest.encode(), "sha256").hexdigest() for name, digest in found.items()
    }


def own_files(module: str) -> dict[str, Path]:
    """Return the files of a user's module and of all of the user's that it imports, read off their
    source, by name.

    No module is imported for it: what the user's code never imports may fail, or do anything.
    """
    found: dict[str, Path] = {}
    places: dict[str, tuple[Path | None, list[str]]] = {}
    left = [module]
    while left:
        parts, inside = left.pop().split("."), list[str]()
        for end in range(1, len(parts) + 1):  # a package's own file runs before its modules'
            name = ".".join(parts[:end])
            if name not in places:
                place, _ = places[name] = place_of(name, inside)
                if place is not None and place.is_file():
                    found[name] = place
                    left += _imports(place, name)
            place, inside = places[name]
            if place is None:
                break
    return found


def _imports(file: Path, name: str) -> Iterator[str]:
    """Yield the modules that a module's source imports anywhere, and the names that may be modules
    of theirs.
    """
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # compiled: it counts by its bytes alone
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # beyond the first package
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _digest(parts: Iterable[Any]) -> str:
    total = hashlib.sha256()
    for part in parts:  # one at a time: a long list needs no second copy
        total.update(repr(part).encode() + b"\n")
    return total.hexdigest()


def _identity(found: Any, seen: dict[int, Any]) -> Any:
    """Return what tells an object from others in every process: source, and the values that the
    source refers to.

    seen: the number of each object met before, by its id, with the object, so that no other takes
    the id.
    """
    kind, parts = type(found), found
    if found is None or kind in (*_TYPES, complex):
        return kind.__name__, found
    if kind is bytes:
        return kind.__name__, hashlib.sha256(found).hexdigest()
    if isinstance(found, ModuleType):
        files = {} if _installed(found) else own_files(found.__name__)
        return (
            kind.__name__,
            found.__name__,
            sorted((name, file_sha256(file)) for name, file in files.items()),
        )
    if isinstance(
        found, set | frozenset
    ):  # each value counts from here: their order differs by process
        return kind.__name__, _digest(sorted(repr(_identity(value, dict(seen))) for value in found))
    if id(found) in seen:
        return "again", seen[id(found)][0]
    if kind is not tuple:  # equal constants may be one tuple or several
        seen[id(found)] = len(seen), found
    if isinstance(found, type | FunctionType):
        if (
            not _is_own(found) and "<" not in found.__qualname__
        ):  # else a function made it, from values
            return found.__module__, found.__qualname__
        parts = chain([_source(found)], _referred(found))
    elif isinstance(found, MethodType):
        parts = found.__func__, found.__self__
    elif kind is dict:
        parts = chain.from_iterable(found.items())
    elif kind not in (list, tuple):
        parts = _tensor(found) if _is_tensor(found) else _reduced(found)
    return kind.__name__, _digest(_identity(part, seen) for part in parts)


def _reduced(found: Any) -> Iterable[Any]:
    """Return what pickle makes an object from: its class, arguments, state and items."""
    try:
        reduce = copyreg.dispatch_table.get(type(found))
        made = reduce(found) if reduce else found.__reduce_ex__(4)
    except Exception:  # it has no such parts; cloudpickle knows more kinds, or says why not
        return type(found), by_value(found, type(found).__name__, stable=True)
    if isinstance(made, str):  # a name in a module
        return getattr(found, "__module__", ""), made, getattr(found, "__wrapped__", None)
    return [list(part) if isinstance(part, Iterator) else part for part in made]


def _is_tensor(value: Any) -> bool:
    return (
        not isinstance(value, type) and hasattr(value, "detach") and hasattr(value, "requires_grad")
    )


def _tensor(value: Any) -> tuple[Any, ...]:
    kept = value.detach().cpu().resolve_conj().contiguous()
    content = kept.flatten().view(_uint8()).numpy().tobytes()
    return str(value.dtype), tuple(value.shape), value.requires_grad, content


def _source(found: Any) -> Any:
    """Return the source of a class or function; of a lambda its code, as several may share a
    line.
    """
    try:
        if found.__name__ != "<lambda>":
            return inspect.getsource(found)
    except (OSError, TypeError):
        pass
    return _code(found.__code__) if isinstance(found, FunctionType) else found.__qualname__


def _code(code: CodeType) -> Any:
    constants = [_code(c) if isinstance(c, CodeType) else c for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def _referred(found: Any) -> Iterator[Any]:
    """Yield the values that a class or function refers to: bases, attributes, defaults, closures
    and globals.
    """
    if isinstance(found, type):
        yield from found.__bases__
        for name, value in sorted(vars(found).items()):
            value = _unwrapped(value)
            if name != "_abc_impl" and (not name.startswith("__") or callable(value)):
                yield name, value  # neither caches of classes and pickle, nor the docstring
        return
    yield from (found.__defaults__, found.__kwdefaults__, vars(found))
    for cell in found.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents
    for name in sorted(_names(found.__code__) & found.__globals__.keys()):
        yield name, found.__globals__[name]


def _unwrapped(value: Any) -> Any:
    """Return the functions of a method or property, which pickle does not look into."""
    if isinstance(value, classmethod | staticmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget, value.fset
    return value.func if isinstance(value, cached_property) else value


def _names(code: CodeType) -> set[str]:
    """Return the names of globals that code and its inner functions and classes read: no names of
    attributes.
    """
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    own = {step.argval for step in dis.get_instructions(code) if step.opname in _READS}
    return own.union(*map(_names, inner))


def _stable(found: Any) -> bytes:
    """Pickle an object without addresses of tensors and without the random names that cloudpickle
    gives classes.
    """
    from cloudpickle import cloudpickle  # type: ignore[import-untyped]

    class Stable(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def reducer_override(self, value: Any) -> Any:
            if _is_tensor(value) or (isinstance(value, type | FunctionType) and _is_own(value)):
                return _stand_in, (repr(_identity(value, {})),)
            return super().reducer_override(value)

    buffer = io.BytesIO()
    Stable(buffer).dump(found)
    return buffer.getvalue()


def _stand_in(*facts: Any) -> Any:
    """Stand for a value in stable bytes."""
    return facts


def _uint8() -> Any:
    import torch

    return torch.uint8


def by_value(found: Any, name: str, *, stable: bool = False) -> bytes:
    """Pickle an object with its class or source, which another process need not have. Raises
    SpecError.

    stable: equal objects have equal bytes in every process, which nothing can load.
    """
    try:
        import cloudpickle
    except ImportError:
        raise missing(
            "cloudpickle", "dev", ", or move the object into a module of its own"
        ) from None
    module: Any = sys.modules.get(getattr(found, "__module__", None) or "")
    own_module = _is_own(found) and module.__name__ != "__main__"
    try:
        if own_module:
            cloudpickle.register_pickle_by_value(module)
        content: bytes = _stable(found) if stable else cloudpickle.dumps(found)
        return content
    except Exception as error:  # pickling runs the object's own code
        raise SpecError(
            f"{name}: cannot be sent to another process ({type(error).__name__}: {error}); define "
            "it without open files, locks or generators"
        ) from error
    finally:
        if own_module:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(found: Any) -> bool:
    module = sys.modules.get(getattr(found, "__module__", None) or "")
    return module is not None and not _installed(module)


def _installed(module: Any) -> bool:
    return is_installed(module.__name__, getattr(module, "__file__", None) or "")


def packed(names: Iterable[str]) -> dict[str, bytes]:
    """Return the objects of these names for another process."""
    return {name: by_value(resolve(name, name), name) for name in names if is_foreign(name)}


def unpack(objects: Mapping[str, bytes]) -> None:
    """Take over objects from another process."""
    for name, content in objects.items():
        if name not in _OBJECTS:
            import pickle

            try:
                _OBJECTS[name] = pickle.loads(content)
            except (ImportError, AttributeError) as error:
                raise SpecError(
                    f"{name}: needs a module that this process cannot import ({error}); install "
                    "that module on every machine, or move what the object needs into the object's "
                    "own file"
                ) from error


def call(
    make: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any], setting: str
) -> Any:
    """Call `make` with these options, and with those of the offered values that it has parameters
    for.

    Raises SpecError for an option that is unknown, missing or of another type than its annotation
    or default.
    """
    parameters = _parameters(make)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option, value in options.items():
        if option not in parameters and not open_ended:
            raise SpecError(
                f"{setting}.{option}: {_called(make)} has no such parameter. "
                f"{suggest(option, parameters)}It has {', '.join(parameters) or 'none'}"
            )
        if (
            option in parameters
            and (wanted := _type(parameters[option]))
            and not _is(value, wanted)
        ):
            raise SpecError(
                f"{setting}.{option}: {_called(make)} wants {wanted.__name__}, got {value!r:.60}"
            )
    values = {name: offered[name] for name in parameters if name in offered} | dict(options)
    for name, p in parameters.items():
        if (
            p.default is p.empty
            and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            and name not in values
        ):
            raise SpecError(f"{setting}.{name}: {_called(make)} needs it; give it in [{setting}]")
    try:
        return make(**values)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises is said in one line
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise SpecError(f"{setting}: {_called(make)} fails when called ({text})") from error


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
    return type(value) in (int, float) if wanted is float else type(value) is wanted
