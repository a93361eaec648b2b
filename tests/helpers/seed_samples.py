"""Seed files of every kind, from numbers of a key: small enough to flip each of their bits."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from raydpzv.files import sha256
from raydpzv.keys import SERVER_PARTY, Key, step_words
from raydpzv.seed_file.first_weights import initial_vector
from raydpzv.seed_file.seed_format import SeededModel, SeedFile, SeedRoot, SeedTensor, StepPhase, widths_of
from raydpzv.seed_file.seed_replay import rebuilt
from raydpzv.seed_file.tensor_file import RawTensor

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
        (KEY / "seeds").generator().integers(0, 2**64, len(widths) if of_steps else count, dtype=np.uint64)
    )
    if of_steps:
        stored &= np.uint64(~1023 & (2**64 - 1))  # a step's seed has room for its directions' numbers
    model = SeededModel(
        *("shared", given, bytes(32), bytes(32), phases, root if derived else stored, scalars, form, average)
    )
    file = SeedFile(law, (model,), of_steps, rule.pop("optimizer", "sgd"), rule)
    return replace(file, models=(with_digests(file, model),))


def with_digests(file: SeedFile, model: SeededModel, base: dict[str, RawTensor] | None = None) -> SeededModel:
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
