"""Weights that a user brings for a model's start: a file of tensors, or a mapping of names to
tensors.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raydpzv.errors import DataError, InputError, SpecError, missing, suggest
from raydpzv.files import check_same
from raydpzv.foreign import call, is_foreign, is_handle, resolve, shown_name
from raydpzv.grouping import grouped
from raydpzv.lazy_import import torch

_SHAPES_ALONE: ContextVar[bool] = ContextVar("shapes_alone", default=False)
_TORCH = (".pt", ".pth", ".bin")
_NAMED = 5
NOWHERE_ELSE: Mapping[str, str | None] = MappingProxyType({})
"""Digests of no files: no other machine has sent the scenario."""
_IN_FLOAT32 = "torch.float64, wanted torch.float32"
_CLASS = re.compile(r"GLOBAL ([\w.]+)")
"""The class that a file of weights may not hold, in torch's error."""


@contextmanager
def without_weights() -> Iterator[None]:
    """Inside, models are built for their shapes alone, and no weights are read."""
    before = _SHAPES_ALONE.set(True)
    try:
        yield
    finally:
        _SHAPES_ALONE.reset(before)


def shapes_alone() -> bool:
    """Return whether this is inside `without_weights`."""
    return _SHAPES_ALONE.get()


def read_weights(word: str) -> dict[str, torch.Tensor]:
    """Return the tensors, by name, of a file or of the mapping that "module:attribute" or a handle
    names.

    Raises DataError for a file that cannot be read, SpecError for an object that is no mapping of
    tensors.
    """
    with torch.device("cpu"):  # a caller may build on the "meta" device
        found = _given(word) if is_foreign(word) else _of_file(Path(word))
    if not isinstance(found, Mapping) or not found:
        raise SpecError(
            "model.weights: wanted names and tensors, such as model.state_dict(), got "
            f"{_kind(found)} from {shown_name(word)}"
        )
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise SpecError(
                f'model.weights: "{name}" of {shown_name(word)} is {_kind(value)}: wanted a '
                "tensor; save "
                "model.state_dict() alone"
            )
        if value.layout is torch.strided and value.nbytes > value.untyped_storage().nbytes():
            raise DataError(
                f'model.weights: "{name}" of {shown_name(word)} repeats numbers that it holds once '
                "(expand): save it after .contiguous()"
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise DataError(
                f'model.weights: "{name}" of {shown_name(word)} has values that are not finite'
            )
    return dict(found)


def with_weights(
    module: torch.nn.Module,
    word: str | None,
    partial: bool | None,
    title: str,
    files: Mapping[str, str | None] = NOWHERE_ELSE,
) -> torch.nn.Module:
    """Give a module these weights and return it; word: as of `read_weights`, None for none.

    A tied parameter needs one of its names. partial: parameters and buffers that `word` lacks stay
    as they are. files: digests that files have on the machine which sent the scenario. Raises
    DataError, which names what is missing, unexpected or of another shape.
    """
    if word is None or shapes_alone():
        return module
    check_same(Path(word), files.get(word))
    found = read_weights(word)
    wanted = {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
    tied = grouped((id(tensor), name) for name, tensor in wanted.items())
    absent = [names[0] for names in tied.values() if not found.keys() & set(names)]
    unknown = [
        f"{name} {suggest(name, absent or wanted)}".strip() for name in found if name not in wanted
    ]
    faults = [_fault(name, found[name], wanted[name]) for name in wanted if name in found]
    complaints = {
        "missing": [] if partial else absent,
        "unexpected": unknown,
        "wrong": list(filter(None, faults)),
    }
    origin = "your weights" if is_handle(word) else f"the weights of {word}"
    if said := "; ".join(
        f"{kind}: {_listed(names)}" for kind, names in complaints.items() if names
    ):
        cure = (
            "; partial_weights = true draws what is missing from the seed"
            if complaints["missing"]
            else ""
        )
        cure += "; delete or rename what is unexpected" if complaints["unexpected"] else ""
        if any(" is [" in fault for fault in complaints["wrong"]):
            cure += "; give the model the sizes of the weights"
        if any(fault.endswith(_IN_FLOAT32) for fault in complaints["wrong"]):
            cure += "; convert them: {name: value.float() for name, value in weights.items()}"
        raise DataError(f"{title}: {origin} do not fit ({said}){cure}")
    for names in tied.values():
        values = [found[name] for name in names if name in found]
        if not all(torch.equal(values[0], other) for other in values[1:]):
            raise DataError(
                f"{title}: {' and '.join(names)} are tied, but differ in {origin}; keep one of them"
            )
        if values:
            _install(module, names, wanted[names[0]], values[0])
    return module


def _install(
    module: torch.nn.Module, names: Iterable[str], there: torch.Tensor, value: torch.Tensor
) -> None:
    """Put a value in the place of a parameter or buffer, under each of its names."""
    value = value.detach().to(there.dtype)
    if isinstance(there, torch.nn.Parameter):
        value = torch.nn.Parameter(value, requires_grad=there.requires_grad)
    for name in names:
        path, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(path), leaf, value)


def weights_sha256(words: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what environment.json says of each model's weights: the digest of every tensor by its
    name.
    """
    found = {
        f"{model}: {name}": _sha256(value)
        for model, word in words.items()
        if word is not None
        for name, value in read_weights(word).items()
    }
    return {"weights": found} if found else {}


def other_weights(there: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first tensor in which two results of `weights_sha256` differ, None if they are
    equal.
    """
    before, after = there.get("weights", {}), now.get("weights", {})
    return next(
        (name for name in sorted({*before, *after}) if before.get(name) != after.get(name)), None
    )


def _sha256(value: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode())
    digest.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _given(word: str) -> Any:
    found = resolve(word, "model.weights")
    return call(found, {}, {}, "model.weights") if callable(found) else found


def _of_file(path: Path) -> Any:
    if path.suffix not in (".safetensors", *_TORCH):
        raise DataError(
            f"model.weights: wanted a file of tensors (.safetensors, {', '.join(_TORCH)}), got "
            f'"{path}"; pickles run '
            "code and are refused"
        )
    if not path.is_file():
        raise DataError(f'model.weights: there is no file "{path}"')
    try:
        return _reader(path)(path)
    except InputError:
        raise
    except Exception as error:  # each library and version raises others
        if isinstance(error, pickle.UnpicklingError) and (named := _CLASS.search(str(error))):
            raise DataError(
                f'model.weights: "{path}" holds an object of {named[1]} beside tensors, which is '
                "not loaded; save "
                "model.state_dict() alone"
            ) from None
        text = " ".join(str(error).split()).partition(". ")[0]
        raise DataError(
            f'model.weights: "{path}" cannot be read as tensors alone ({type(error).__name__}: '
            f"{text}); if it is cut "
            "off, restore it from a copy; if it holds other objects, save model.state_dict() alone"
        ) from None


def _reader(path: Path) -> Callable[[Path], Any]:
    if path.suffix in _TORCH:
        return lambda path: torch.load(path, map_location="cpu", weights_only=True)
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise missing("safetensors", "weights", ", or save the weights with torch.save") from None
    return load_file


def _fault(name: str, value: torch.Tensor, there: torch.Tensor) -> str:
    """Return what is wrong with a tensor for its place, "" if nothing is."""
    if value.shape != there.shape:
        return f"{name} is {list(value.shape)}, wanted {list(there.shape)}"
    exact = (torch.float16, torch.bfloat16)  # float32 holds each of their numbers
    if value.dtype == there.dtype or (there.dtype == torch.float32 and value.dtype in exact):
        return ""
    return f"{name} is {value.dtype}, wanted {there.dtype}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _kind(value: Any) -> str:
    return "an empty table" if isinstance(value, Mapping) and not value else type(value).__name__
