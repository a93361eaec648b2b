"""Seed files from what another program recorded: first weights, and a seed and a scalar for each
step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from raydpzv.errors import InputError
from raydpzv.files import sha256, write_atomically
from raydpzv.seed_file.first_weights import Floats, first_tensors
from raydpzv.seed_file.seed_format import (
    SeededModel,
    SeedFile,
    StepPhase,
    encode_seed_file,
    smallest_form,
)
from raydpzv.seed_file.seed_header import LAWS
from raydpzv.seed_file.seed_replay import rebuilt
from raydpzv.seed_file.tensor_file import RawTensor


def write_pairs(
    out: str | Path,
    weights: Mapping[str, Floats],
    pairs: Sequence[tuple[int, float]],
    lr: float | Sequence[float],
    law: str = "torch_normal",
    shared: bool = True,
) -> Floats:
    """Write a seed file of steps x <- x - lr · scalar · direction(seed), and return x after them,
    float32 [d].

    weights: trained tensors by name, float32, in the order in which the program draws directions
    for them. pairs: a seed in 0..2^64-1 and a scalar for each step; lr: one step size, or one for
    each step. law: torch_normal is MeZO's, see `raydpzv.seed_file.seed_replay.normals_of_torch`;
    the others are raydpzv's. shared: readers have the weights; else they become a part of the file.
    Raises InputError.
    """
    if law not in LAWS:
        raise InputError(f'law: wanted {", ".join(LAWS)}, got "{law}"')
    if not weights or any(values.dtype != np.float32 for values in weights.values()):
        raise InputError("weights: wanted tensors by name, each float32")
    lrs = [float(lr)] * len(pairs) if isinstance(lr, int | float) else [float(each) for each in lr]
    if not pairs or len(lrs) != len(pairs):
        raise InputError(
            f"lr: wanted one step size, or one for each of {len(pairs)} steps; got {len(lrs)}"
        )
    if any(not 0 <= seed < 2**64 for seed, _ in pairs):
        raise InputError("pairs: wanted seeds in 0..2^64-1")
    scalars = np.array([scalar for _, scalar in pairs], np.float32)
    if not (np.isfinite(scalars).all() and all(map(math.isfinite, lrs))):
        raise InputError("pairs, lr: wanted finite numbers")
    x = np.concatenate([values.ravel() for values in weights.values()])
    base = {name: RawTensor.of(values) for name, values in weights.items()} if shared else {}
    shapes = [(name, values.shape) for name, values in weights.items()]
    phases = tuple(StepPhase(sum(1 for _ in same), 1, 1, size) for size, same in groupby(lrs))
    model = SeededModel(
        "shared",
        first_tensors(shapes, x, None, base),
        bytes.fromhex(sha256(x)),
        bytes(32),
        phases,
        np.array([seed for seed, _ in pairs], np.uint64),
        scalars,
        smallest_form(scalars),
    )
    file = SeedFile(law, (model,))
    last = rebuilt(file, model, base)
    done = replace(model, result=bytes.fromhex(sha256(last)))
    try:
        write_atomically(Path(out), encode_seed_file(replace(file, models=(done,))))
    except OSError as error:
        raise InputError(f"{out}: cannot write the seed file ({error.strerror or error})") from None
    return last
