"""Weights before the first update, as a seed file names them: by a recipe where one gives the bits,
else as numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.seed_file.seed_format import SeededModel, SeedTensor
from raydpzv.seed_file.tensor_file import RawTensor

Floats = npt.NDArray[np.float32]
_NEAR = 2
"""Steps between the bound that a draw suggests, which division rounded, and the true one, at
most.
"""
_PIECE = 1 << 20
"""Numbers of a recipe that are made at once, before their digest is known to be right."""


def first_tensors(
    shapes: Sequence[tuple[str, tuple[int, ...]]],
    flat: Floats,
    key: Key | None,
    base: Mapping[str, RawTensor],
) -> tuple[SeedTensor, ...]:
    """Return the tensors of a vector [d] before the first update, each with the shortest source of
    its bits.

    key: of the model, whose uniform draws `raydpzv.models.flat.FlatModel` takes; base: tensors that
    readers have.
    """
    found, place = [], 0
    for name, shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        found.append(_first(name, shape, flat[place : place + size], key, base))
        place += size
    return tuple(found)


def _first(
    name: str,
    shape: tuple[int, ...],
    values: Floats,
    key: Key | None,
    base: Mapping[str, RawTensor],
) -> SeedTensor:
    for given in _names(name):
        there = base[given].values if given in base else None
        if there is not None and there.shape == shape and _same(there.ravel(), values):
            return SeedTensor(name, shape, "weights", given=given)
    if not len(values):
        return SeedTensor(name, shape, "stored", values=values)
    if _same(np.full_like(values, values[0]), values):
        return SeedTensor(name, shape, "constant", float(values[0]))
    if key is not None:
        path, _, leaf = name.rpartition(".")
        words = (key / "initial" / path / leaf).digest(16)
        if (bound := _bound(words, values)) is not None:
            return SeedTensor(name, shape, "uniform", bound, words)
    return SeedTensor(name, shape, "stored", values=values)


def _names(name: str) -> Iterator[str]:
    """Yield a tensor's name, and the same without the modules around it: adapters' names have some
    before.
    """
    yield name
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _bound(key: bytes, values: Floats) -> float | None:
    """Return the bound at which the key's uniform draws are these values; None if there is none."""
    draws = _draws(_generator(key), len(values))
    largest = int(np.argmax(np.abs(draws)))
    bound = values[largest] / draws[largest]
    near = [bound]
    for towards in (np.float32(-np.inf), np.float32(np.inf)):
        at = bound
        for _ in range(_NEAR):
            at = np.nextafter(at, towards)
            near.append(at)
    return next((float(b) for b in near if _same(draws * b, values)), None)


def _generator(key: bytes) -> np.random.Generator:
    """Return the generator of a 128-bit key at the start of its stream."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _draws(generator: np.random.Generator, count: int) -> Floats:
    """Return the next uniform draws on ±1, float32."""
    return generator.random(count, dtype=np.float32) * np.float32(2) - np.float32(1)


def _same(a: Floats, b: Floats) -> bool:
    return a.tobytes() == b.tobytes()


def initial_vector(
    model: SeededModel, base: Mapping[str, RawTensor] | None, where: object = "weights"
) -> Floats:
    """Return a model's parameters before the first update, float32 [d].

    base: tensors by name; where: their file. Raises InputError where a tensor is missing, or where
    they are not those of the seed file.
    """
    lacking = [
        t.given for t in model.tensors if t.start == "weights" and t.given not in (base or {})
    ]
    if lacking:
        what = f"the weights in {where} lack" if base is not None else "give --weights with"
        raise InputError(
            f"{model.name}: {what} {', '.join(lacking[:5])}; its first weights have the sha256 "
            f"{model.initial.hex()}"
        )
    digest = hashlib.sha256()
    for piece in _pieces(model, base or {}, where):
        digest.update(piece.tobytes())
    if digest.digest() != model.initial:
        raise InputError(
            f"{model.name}: other first weights: sha256 {digest.hexdigest()} from {where}, the seed "
            f"file wants {model.initial.hex()}; give the weights that the training started from"
        )
    # only now: a header of a few bytes can ask for gigabytes
    flat, place = np.empty(model.size, np.float32), 0
    for piece in _pieces(model, base or {}, where):
        flat[place : place + len(piece)] = piece
        place += len(piece)
    return flat


def _pieces(model: SeededModel, base: Mapping[str, RawTensor], where: object) -> Iterator[Floats]:
    """Yield the parameters in order; none of a recipe's pieces is larger than `_PIECE`."""
    for tensor in model.tensors:
        sizes = (min(_PIECE, tensor.size - at) for at in range(0, tensor.size, _PIECE))
        if tensor.start == "constant":
            yield from (np.full(size, tensor.number, np.float32) for size in sizes)
        elif tensor.start == "uniform":
            generator = _generator(tensor.key)
            yield from (_draws(generator, size) * np.float32(tensor.number) for size in sizes)
        else:
            given = tensor.values if tensor.start == "stored" else _given(tensor, base, where)
            assert given is not None
            yield given.ravel()


def _given(tensor: SeedTensor, base: Mapping[str, RawTensor], where: object) -> Floats:
    """Return a tensor of the reader's weights. Raises InputError for one of another shape."""
    given = base[tensor.given]
    values = given.values
    if values is None or given.shape != tensor.shape:
        raise InputError(
            f"{tensor.name}: wanted F32, F16 or BF16 of the shape {list(tensor.shape)}, got "
            f"{given.dtype} {list(given.shape)} in {where}; give the weights that the training "
            "started from"
        )
    return values
