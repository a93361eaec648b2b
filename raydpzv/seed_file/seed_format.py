"""The bytes of a seed file, as docs/seed-file.md specifies them: written, read and checked."""

# d parameters, N scalars, U updates

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from raydpzv.errors import DataError, InputError, plain
from raydpzv.keys import PARTY_BITS, PERTURBATION_BITS, STEP_BITS, direction_seeds, step_seeds
from raydpzv.seed_file.seed_header import (
    MOST_DRAWN,
    MOST_PARAMETERS,
    ModelHeader,
    SeedHeader,
    read_header,
)

MAGIC, VERSION = b"SEEDS", 1
_SUM = 32
"""Bytes of a SHA-256."""
ScalarForm = Literal["float32", "float16", "sign"]
FORMS: tuple[ScalarForm, ...] = get_args(ScalarForm)
StartKind = Literal["stored", "constant", "uniform", "weights"]
_LENGTH = struct.Struct("<I")
_HEAD = len(MAGIC) + 1 + _LENGTH.size
"""Bytes before the header: magic, version, the header's length."""
Seeds = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SeedTensor:
    """One trained tensor: its name, its shape, and where its values before the first update come
    from.

    start: stored (`values`), constant (`number`), uniform (of the 128-bit `key`, on ±`number`) or
    weights: of a file of weights that the reader has, under the name `given`. lr, smoothing:
    factors of the step size and the smoothing radius.
    """

    name: str
    shape: tuple[int, ...]
    start: StartKind
    number: float = 0.0
    key: bytes = b""
    given: str = ""
    values: Floats | None = None
    lr: float = 1.0
    smoothing: float = 1.0

    @property
    def size(self) -> int:
        """Number of parameters."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class StepPhase:
    """Updates in a row with as many steps each, as many directions a step, and one step size."""

    updates: int
    steps: int
    perturbations: int
    lr: float


@dataclass(frozen=True)
class SeedRoot:
    """What a model's seeds follow from: two words of a key, and the party's number."""

    words: tuple[int, int]
    party: int


@dataclass(frozen=True, eq=False)
class SeededModel:
    """One model of a seed file: d parameters in tensors, U updates in phases, N scalars float32.

    initial, result: SHA-256 of the d parameters before the first update and after the last.
    average: after how many updates, of one step each, iterates go into the mean that is the result;
    None: the last iterate is. seeds: their root, or uint64, one for each step or each direction
    (`SeedFile.step_seeds`).
    """

    name: str
    tensors: tuple[SeedTensor, ...]
    initial: bytes
    result: bytes
    phases: tuple[StepPhase, ...]
    seeds: SeedRoot | Seeds
    scalars: Floats
    form: ScalarForm = "float32"
    average: int | None = None

    @property
    def size(self) -> int:
        """Number of parameters, d."""
        return sum(tensor.size for tensor in self.tensors)


@dataclass(frozen=True, eq=False)
class SeedFile:
    """A seed file: the law of its directions, the rule of its steps, and its models.

    step_seeds: seeds are those of steps, of which the directions' follow; else directions' own.
    options: of `OPTIONS`.
    frozen: `raydpzv.seed_file.tensor_file.frozen_sha256` of the weights beside which the models
    were trained, or b"".
    """

    law: str
    models: tuple[SeededModel, ...]
    step_seeds: bool = False
    optimizer: str = "sgd"
    options: Mapping[str, float] = field(default_factory=dict)
    frozen: bytes = b""

    @property
    def wants_weights(self) -> bool:
        """Whether its reader must have weights that the training started from."""
        return any(tensor.start == "weights" for model in self.models for tensor in model.tensors)


def as_float16(scalars: Floats) -> Floats:
    """Return what scalars are at half precision, as float32. Raises InputError for one beyond its
    range.
    """
    with np.errstate(over="ignore"):
        rounded = scalars.astype("<f2").astype(np.float32)
    if not np.isfinite(rounded).all():
        raise InputError(
            f"scalars: float16 reaches 65504, but one is {np.abs(scalars).max():g}; write them as "
            "float32"
        )
    return rounded


def smallest_form(scalars: Floats) -> ScalarForm:
    """Return the smallest form that keeps every bit of the scalars."""
    if len(scalars) and scalars[0] != 0 and np.all(np.abs(scalars) == np.abs(scalars[0])):
        return "sign"
    with np.errstate(over="ignore"):
        same = scalars.astype("<f2").astype(np.float32).tobytes() == scalars.tobytes()
    return "float16" if same else "float32"


def encode_seed_file(file: SeedFile) -> bytes:
    """Return the bytes of a seed file. Raises InputError for scalars that a form cannot hold."""
    about: dict[str, Any] = {"law": file.law, "seeds": "steps" if file.step_seeds else "directions"}
    about |= {"rule": {"name": file.optimizer, **file.options}}
    about |= {"frozen": file.frozen.hex()} if file.frozen else {}
    about["models"] = [_about(model) for model in file.models]
    header = zlib.compress(json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode(), 9)
    parts = [MAGIC, bytes([VERSION]), _LENGTH.pack(len(header)), header]
    data = b"".join([*parts, *(part for model in file.models for part in _numbers(model))])
    return data + hashlib.sha256(data).digest()


def _about(model: SeededModel) -> dict[str, Any]:
    """Return what the header says of a model."""
    about: dict[str, Any] = {
        "name": model.name,
        "tensors": [_source(tensor) for tensor in model.tensors],
    }
    factors = [[tensor.lr, tensor.smoothing] for tensor in model.tensors]
    about |= {"factors": factors} if any(pair != [1, 1] for pair in factors) else {}
    about |= {"initial": model.initial.hex(), "result": model.result.hex()}
    about |= {} if model.average is None else {"average": model.average}
    about["phases"] = [[p.updates, p.steps, p.perturbations, p.lr] for p in model.phases]
    if isinstance(model.seeds, SeedRoot):
        about["root"] = [f"{number:x}" for number in (*model.seeds.words, model.seeds.party)]
    about["scalars"] = model.form
    if model.form == "sign":
        about["size"] = _shortest(abs(model.scalars[0]))
    return about


def _source(tensor: SeedTensor) -> list[Any]:
    source: list[Any] = [tensor.name, list(tensor.shape), tensor.start]
    source += [tensor.given] if tensor.start == "weights" else []
    source += (
        [_shortest(np.float32(tensor.number))] if tensor.start in ("constant", "uniform") else []
    )
    return source + (
        [f"{int.from_bytes(tensor.key, 'little'):x}"] if tensor.start == "uniform" else []
    )


def _shortest(number: np.float32) -> float:
    """Return the shortest decimal number that is this float32."""
    return float(str(number))


def _numbers(model: SeededModel) -> Iterator[bytes]:
    """Yield a model's bytes behind the header."""
    stored = (tensor.values for tensor in model.tensors if tensor.values is not None)
    yield from (values.astype("<f4").tobytes() for values in stored)
    if not isinstance(model.seeds, SeedRoot):
        yield model.seeds.astype("<u8").tobytes()
    if model.form == "float32":
        yield model.scalars.astype("<f4").tobytes()
    elif model.form == "float16":
        yield as_float16(model.scalars).astype("<f2").tobytes()
    elif smallest_form(model.scalars) == "sign":
        yield np.packbits(model.scalars < 0, bitorder="little").tobytes()
    else:
        raise InputError(
            f"{model.name}: one bit a scalar wants scalars of one size, and these differ; write "
            "them as float32"
        )


def decode_seed_file(data: bytes, path: object = "seed file") -> SeedFile:
    """Return what the bytes say. Raises DataError for bytes of something else, of another version,
    or damaged.
    """
    if not data.startswith(MAGIC):
        raise DataError(f"{path}: not a seed file, since it does not begin with {MAGIC.decode()}")
    body = data[:-_SUM]
    if len(body) < _HEAD or hashlib.sha256(body).digest() != data[-_SUM:]:
        raise DataError(f"{path}: is cut or damaged: its SHA-256 does not fit; get the file again")
    if body[len(MAGIC)] != VERSION:
        raise DataError(
            f"{path}: is a seed file of version {body[len(MAGIC)]}, wanted {VERSION}; use a newer "
            "raydpzv"
        )
    try:
        (length,) = _LENGTH.unpack_from(body, len(MAGIC) + 1)
        about = read_header(body[_HEAD : _HEAD + length], path)
        _require_moderate(about)
        numbers, of_steps = _Numbers(body, _HEAD + length), about.seeds == "steps"
        with np.errstate(over="ignore"):  # of a number beyond float32, which is refused
            models = tuple(_model(each, of_steps, numbers) for each in about.models)
        numbers.require_end()
        _require_different("models", [model.name for model in models])
    except ValueError as error:
        raise DataError(
            f"{path}: its SHA-256 fits, but its content does not ({plain(str(error))[:200]}); ask "
            "its writer"
        ) from None
    options = about.rule.model_dump(exclude_unset=True, exclude={"name"})
    frozen = bytes.fromhex(about.frozen)
    return SeedFile(about.law, models, of_steps, about.rule.name, options, frozen)


def _require_moderate(about: SeedHeader) -> None:
    """Raise ValueError for first weights that nothing but a few bytes of the header stands for."""
    drawn = sum(
        math.prod(shape)
        for model in about.models
        for _, shape, start, *_ in model.tensors
        if start in ("constant", "uniform")
    )
    if drawn > MOST_DRAWN:
        raise ValueError(
            f"{drawn:,} first weights follow from recipes, at most {MOST_DRAWN:,} may; larger "
            "models start from weights"
        )


def _model(about: ModelHeader, of_steps: bool, numbers: _Numbers) -> SeededModel:
    """Return a model with the numbers behind the header. Raises ValueError."""
    factors = about.factors or [(1.0, 1.0)] * len(about.tensors)
    tensors = tuple(
        _tensor(entry, pair, numbers) for entry, pair in zip(about.tensors, factors, strict=True)
    )
    _require_different("tensors", [tensor.name for tensor in tensors])
    if not 0 < sum(tensor.size for tensor in tensors) <= MOST_PARAMETERS:
        raise ValueError(f"a model wants 1 to {MOST_PARAMETERS:,} parameters")
    phases = tuple(StepPhase(*phase) for phase in about.phases)
    widest = max((phase.perturbations for phase in phases), default=1)
    if (about.root or of_steps) and widest > 1 << PERTURBATION_BITS:
        raise ValueError(f"{widest:,} directions of a step, at most 1,024 follow from a seed")
    steps = sum(phase.updates * phase.steps for phase in phases)
    count = sum(phase.updates * phase.steps * phase.perturbations for phase in phases)
    # each is at least a bit: a header cannot ask for more than there is
    numbers.require(count // 8)
    seeds = _seeds(about, steps if of_steps else count, of_steps, numbers)
    scalars = _scalars(about, count, numbers)
    if about.average is not None and any(phase.steps != 1 for phase in phases):
        raise ValueError("a mean is of iterates after updates of one step")
    return SeededModel(
        about.name,
        tensors,
        bytes.fromhex(about.initial),
        bytes.fromhex(about.result),
        phases,
        seeds,
        scalars,
        about.scalars,
        about.average,
    )


def _require_different(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two {what} of one name")


def _tensor(entry: tuple[Any, ...], factors: tuple[float, float], numbers: _Numbers) -> SeedTensor:
    """Return a tensor of the header, with its numbers if they are stored."""
    name, shape, start, *more = entry
    if start == "stored":
        given: dict[str, Any] = {"values": numbers.array("<f4", math.prod(shape))}
    elif start == "weights":
        given = {"given": more[0]}
    elif start == "constant":
        given = {"number": more[0]}
    else:
        given = {"number": more[0], "key": int(more[1], 16).to_bytes(16, "little")}
    lr, smoothing = factors
    return SeedTensor(name, shape, start, lr=lr, smoothing=smoothing, **given)


def _seeds(about: ModelHeader, count: int, of_steps: bool, numbers: _Numbers) -> SeedRoot | Seeds:
    """Return a model's seeds, or what they follow from, whose numbers have as many bits as fit."""
    if not about.root:
        return numbers.array("<u8", count).astype(np.uint64)
    before, after, party = (int(word, 16) for word in about.root)
    bits = PARTY_BITS + STEP_BITS if of_steps else 64
    if max(before, after) >> bits or party >> PARTY_BITS:
        raise ValueError(f"a root is two words of {bits} bits, and a party of {PARTY_BITS}")
    return SeedRoot((before, after), party)


def _scalars(about: ModelHeader, count: int, numbers: _Numbers) -> Floats:
    """Return a model's scalars, float32 [count]."""
    if (about.scalars == "sign") != (about.size is not None):
        raise ValueError("a size goes with scalars of one bit")
    if about.scalars == "sign":
        size, bits = np.float32(about.size), numbers.array("u1", -(-count // 8))
        scalars = np.where(np.unpackbits(bits, count=count, bitorder="little") > 0, -size, size)
    else:
        kind = "<f4" if about.scalars == "float32" else "<f2"
        scalars = numbers.array(kind, count).astype(np.float32)
    if not np.isfinite(scalars).all():
        raise ValueError("scalars are not finite")
    return scalars


class _Numbers:
    """Takes arrays of a file's bytes one after the other. Raises ValueError where there are too few
    or too many.
    """

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place

    def array(self, kind: str, count: int) -> npt.NDArray[Any]:
        """Return the next `count` numbers."""
        size = count * np.dtype(kind).itemsize
        self.require(size)
        self._place += size
        return np.frombuffer(self._data, kind, count, self._place - size)

    def require(self, size: int) -> None:
        """Require so many bytes."""
        if not 0 <= size <= len(self._data) - self._place:
            raise ValueError(
                f"{size} bytes are wanted where {len(self._data) - self._place} are left"
            )

    def require_end(self) -> None:
        """Require that there is nothing more."""
        if self._place != len(self._data):
            raise ValueError(f"{len(self._data) - self._place} bytes too many")


def seeds_of_root(root: SeedRoot, phases: Sequence[StepPhase], of_steps: bool) -> Seeds:
    """Return the seeds that follow from a root: one for each step, or for each direction,
    uint64.
    """
    widths = widths_of(phases)
    steps = np.arange(len(widths), dtype=np.uint64)
    if of_steps:
        return step_seeds(root.words, root.party, steps)
    return direction_seeds(root.words, root.party, np.repeat(steps, widths), places(widths))


def widths_of(phases: Sequence[StepPhase]) -> npt.NDArray[np.int64]:
    """Return the number of directions of each step, int64."""
    return np.repeat(
        np.array([phase.perturbations for phase in phases], np.int64),
        [phase.updates * phase.steps for phase in phases],
    )


def places(widths: npt.NDArray[np.int64]) -> Seeds:
    """Return each direction's number in its step, uint64 [N], given the steps' numbers of
    directions.
    """
    first = np.cumsum(widths) - widths
    return (np.arange(int(widths.sum())) - np.repeat(first, widths)).astype(np.uint64)
