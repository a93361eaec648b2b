"""Seed files of every kind, from numbers of a key: small enough to flip each of their bits."""

import hashlib
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from raydpzv.files import sha256
from raydpzv.keys import SERVER_PARTY, Key, step_words
from raydpzv.seed_file.first_weights import initial_vector
from raydpzv.seed_file.seed_format import (
    SeededModel,
    SeedFile,
    SeedRoot,
    SeedTensor,
    StepPhase,
    widths_of,
)
from raydpzv.seed_file.seed_replay import rebuilt
from raydpzv.seed_file.tensor_file import RawTensor, frozen_sha256

KEY = Key(3)
TWO_PHASES = (StepPhase(4, 2, 3, 0.05), StepPhase(3, 1, 2, 0.01))
SIGNS = "sign"


def tensors(size: int = 5) -> tuple[SeedTensor, ...]:
    """One tensor of each start but weights; the first is [size, 4]."""
    words = (KEY / "uniform").digest(16)
    values = (KEY / "stored").generator().standard_normal(3, dtype=np.float32)
    return (
        SeedTensor("0.weight", (size, 4), "uniform", float(np.float32(0.3)), words),
        SeedTensor("0.bias", (size,), "constant", 0.5),
        SeedTensor("scale", (3,), "stored", values=values),
    )


def sample(
    law: str = "gaussian",
    *,
    form: Any = "float32",
    derived: bool = True,
    of_steps: bool = True,
    given: tuple[SeedTensor, ...] | None = None,
    phases: tuple[StepPhase, ...] = TWO_PHASES,
    **rule: Any,
) -> SeedFile:
    """A file with one model, whose digests are those of a rebuild."""
    given, average = given or tensors(), rule.pop("average", None)
    widths = widths_of(phases)
    count = int(widths.sum())
    scalars = (KEY / "scalars").generator().standard_normal(count, dtype=np.float32)
    if form == SIGNS:
        scalars = np.where(scalars < 0, -np.float32(0.25), np.float32(0.25))
    scalars = scalars.astype(np.float16).astype(np.float32) if form == "float16" else scalars
    root = SeedRoot(step_words(KEY), SERVER_PARTY) if of_steps else SeedRoot(KEY.direction_words, 2)
    stored = (
        (KEY / "seeds")
        .generator()
        .integers(0, 2**64, len(widths) if of_steps else count, dtype=np.uint64)
    )
    if average is not None:
        assert all(phase.steps == 1 for phase in phases)
    if of_steps:
        stored &= np.uint64(
            ~1023 & (2**64 - 1)
        )  # a step's seed has room for its directions' numbers
    model = SeededModel(
        "shared",
        given,
        bytes(32),
        bytes(32),
        phases,
        root if derived else stored,
        scalars,
        form,
        average,
    )
    file = SeedFile(law, (model,), of_steps, rule.pop("optimizer", "sgd"), rule)
    uses_base = any(tensor.start == "weights" for tensor in given)
    base = base_tensors() if uses_base else None
    frozen = frozen_sha256(base, {tensor.given for tensor in given}) if base else b""
    return replace(file, models=(with_digests(file, model, base),), frozen=frozen)


def grouped() -> tuple[SeedTensor, ...]:
    """Matrices, vectors and a row, with factors of step size and smoothing radius."""
    words = (KEY / "grouped").digest(16)
    return (
        *tensors(7)[:2],
        SeedTensor("row", (1, 6), "constant", 0.0, lr=3.0),
        SeedTensor("kernel", (4, 2, 3), "uniform", 0.5, words, lr=0.3, smoothing=0.7),
        SeedTensor("last", (2, 600), "constant", 0.0, smoothing=0.1),
    )


BASE = {"scale": np.arange(3, dtype=np.float32) / 7, "frozen": np.ones((2, 2), np.float32)}
"""Weights that readers of the vector "weights" have; the second is not trained."""
ONE_STEP = (StepPhase(5, 1, 2, 0.1), StepPhase(2, 1, 1, 0.3))


def vectors() -> dict[str, SeedFile]:
    """The test vectors: together every law, form, start and source of seeds that the example
    readers know.
    """
    wide = (SeedTensor("wide", (33_000,), "constant", 1.0),)
    given = (*tensors()[:2], SeedTensor("model.scale", (3,), "weights", given="scale"))
    return {
        "gaussian": sample(),
        "momentum": sample(momentum=0.9, form="float16"),
        "sphere": sample("sphere", of_steps=False, momentum=0.9, damped=1.0),
        "signs": sample("rademacher", form="sign", derived=False),
        "wide_sphere": sample("sphere", given=wide, derived=False, of_steps=False, phases=ONE_STEP),
        "wide_signs": sample("rademacher", given=wide, form="sign", phases=ONE_STEP),
        "rank_one": sample("rank_one", given=grouped()),
        "groups": sample("sphere", of_steps=False, given=grouped(), momentum=0.5),
        "mean": sample(of_steps=False, average=3, phases=ONE_STEP),
        "weights": sample(given=given),
    }


def base_tensors() -> dict[str, RawTensor]:
    """`BASE` as a file has it."""
    return {name: RawTensor.of(values) for name, values in BASE.items()}


def with_digests(
    file: SeedFile, model: SeededModel, base: dict[str, RawTensor] | None = None
) -> SeededModel:
    """The model with the digests of what it starts from and of what it becomes."""
    try:
        initial_vector(model, base)
    except Exception as error:
        model = replace(model, initial=bytes.fromhex(str(error).split("sha256 ")[1].split()[0]))
    return replace(model, result=bytes.fromhex(sha256(rebuilt(file, model, base))))


def header(data: bytes) -> dict[str, Any]:
    """What a seed file's header says."""
    length = int.from_bytes(data[6:10], "little")
    found: dict[str, Any] = json.loads(zlib.decompress(data[10 : 10 + length]))
    return found


def with_header(data: bytes, about: dict[str, Any]) -> bytes:
    """The file with another header and the SHA-256 that fits."""
    length = int.from_bytes(data[6:10], "little")
    packed = zlib.compress(json.dumps(about).encode())
    return summed(data[:6] + len(packed).to_bytes(4, "little") + packed + data[10 + length : -32])


def summed(body: bytes) -> bytes:
    """The bytes with their SHA-256 behind them."""
    return body + hashlib.sha256(body).digest()
