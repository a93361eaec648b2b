"""Models rebuilt from a seed file, to the bit."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from raydpzv.errors import DataError, InputError, ReplayMismatch
from raydpzv.files import read_small, sha256
from raydpzv.lazy_import import torch
from raydpzv.ledger.entries import SHARED, Slice
from raydpzv.limits import cores
from raydpzv.methods.model_averaging import ModelAverage
from raydpzv.methods.replica import Replica
from raydpzv.seed_file.first_weights import Floats, initial_vector
from raydpzv.seed_file.seed_format import (
    SeededModel,
    SeedFile,
    SeedRoot,
    StepPhase,
    decode_seed_file,
    places,
    seeds_of_root,
    widths_of,
)
from raydpzv.seed_file.tensor_file import RawTensor, frozen_sha256, read_tensors, write_tensors
from raydpzv.zo.spans import Group
from raydpzv.zo.update import Rule

MOST_BYTES = 1 << 28
"""Of a seed file: 32 million updates of 8 bytes."""


def read_seed_file(path: Path) -> SeedFile:
    """Read and check a seed file. Raises DataError."""
    try:
        data = read_small(path, MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    return decode_seed_file(data, path)


def rebuilt(
    file: SeedFile,
    model: SeededModel,
    base: Mapping[str, RawTensor] | None = None,
    where: object = "weights",
) -> Floats:
    """Return a model's parameters after its last update, float32 [d]; base, where: as of
    `initial_vector`.
    """
    x = initial_vector(model, base, where)
    if file.law == "torch_normal":
        return _by_torch(file, model, x)
    replica = Replica(x, rule_of(file, model), step_seeds=file.step_seeds, threads=cores())
    tail = ModelAverage(model.average)
    replica.follow(updates_of(file, model), None if model.average is None else tail)
    mean = tail.mean()
    return replica.state()[0] if mean is None else mean


def _by_torch(file: SeedFile, model: SeededModel, x: Floats) -> Floats:
    """Return x after MeZO's steps: x <- x - lr · (scalar · z), each product rounded to float32."""
    if (
        file.step_seeds
        or file.options
        or file.optimizer != "sgd"
        or not isinstance(model.seeds, np.ndarray)
    ):
        raise InputError(
            "torch_normal: wanted plain steps with a stored seed each; ask the file's writer"
        )
    if any(phase.perturbations != 1 for phase in model.phases):
        raise InputError("torch_normal: wanted one direction a step; ask the file's writer")
    shapes = [tensor.shape for tensor in model.tensors]
    lrs = np.repeat(
        np.array([phase.lr for phase in model.phases], np.float32),
        [phase.updates * phase.steps for phase in model.phases],
    )
    for seed, scalar, lr in zip(model.seeds.tolist(), model.scalars, lrs, strict=True):
        x = x - lr * (scalar * normals_of_torch(seed, shapes))
    return x


def normals_of_torch(seed: int, shapes: Sequence[tuple[int, ...]]) -> Floats:
    """Return the normals that torch draws on the CPU for each tensor in turn after manual_seed,
    float32 [d].

    MeZO (Malladi et al. 2023), zo_perturb_parameters. The stream is torch's own: a version of
    torch, or a GPU, may give other numbers. Then the rebuilt model is not the one that the seed
    file names.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.normal(0.0, 1.0, size=shape, generator=generator) for shape in shapes]
    return np.concatenate([z.numpy().ravel() for z in drawn])


def rule_of(file: SeedFile, model: SeededModel) -> Rule:
    """Return the rule by which a file's pairs move one of its models."""
    numbers, tensors = dict(file.options), model.tensors
    groups = [
        (glob.escape(t.name), Group(t.lr, t.smoothing))
        for t in tensors
        if (t.lr, t.smoothing) != (1, 1)
    ]
    rule = Rule(
        cast(Any, file.law),
        numbers.get("momentum", 0.0),
        bool(numbers.get("damped", 0.0)),
        optimizer=cast(Any, file.optimizer),
        beta2=numbers.get("beta2", 0.0),
        v0=numbers.get("v0", 0.0),
        epoch=int(numbers.get("epoch", 0)),
        groups=tuple(groups),
    )
    return rule.on(tuple((tensor.name, tensor.shape) for tensor in tensors))


def updates_of(file: SeedFile, model: SeededModel) -> Slice:
    """Return a model's updates as a ledger has them."""
    phases = model.phases
    counts = _repeated(phases, [phase.steps * phase.perturbations for phase in phases], np.int64)
    rounds = np.repeat(np.arange(1, len(counts) + 1), counts)
    widths = widths_of(phases)
    steps = np.repeat(np.arange(len(widths)), widths)
    seeds = model.seeds
    if isinstance(seeds, SeedRoot):
        seeds = seeds_of_root(seeds, phases, file.step_seeds)
    if file.step_seeds:
        seeds = np.repeat(seeds, widths)
    lrs = np.repeat(_repeated(phases, [phase.lr for phase in phases], np.float64), counts)
    return Slice(
        0,
        len(counts),
        rounds,
        np.full(len(rounds), SHARED),
        rounds - 1,
        steps,
        places(widths).astype(np.int32),
        seeds,
        model.scalars,
        lrs,
    )


def _repeated(phases: Sequence[StepPhase], values: Sequence[Any], dtype: Any) -> np.ndarray:
    return np.repeat(np.array(values, dtype), [phase.updates for phase in phases])


def replay_seed_file(
    path: Path, weights: str | Path | None = None, names: Sequence[str] | None = None
) -> dict[str, tuple[SeededModel, Floats]]:
    """Return the models of a seed file by name, rebuilt and compared with its digests. names: of
    these alone.

    Raises DataError, InputError for other weights or names, ReplayMismatch if a rebuilt model has
    other bits.
    """
    file = read_seed_file(path)
    base = None if weights is None else read_tensors(weights)
    known = {model.name: model for model in file.models}
    if unknown := [name for name in names or () if name not in known]:
        raise InputError(f"{path}: holds no model of {unknown[0]}; it has {', '.join(known)}")
    if (
        base
        and file.frozen
        and (digest := frozen_sha256(base, trained_names(file.models))) != file.frozen
    ):
        raise InputError(
            f"{weights}: other weights beside the trained ones: sha256 "
            f"{digest.hex() or 'of none'}, the seed file wants {file.frozen.hex()}; give the "
            "weights that the training started from"
        )
    found = {}
    for name in names or known:
        with np.errstate(all="ignore"):  # steps beyond float32 end with other bits, see below
            x = rebuilt(file, known[name], base, weights or path)
        if sha256(x) != known[name].result.hex():
            raise ReplayMismatch(
                f"{path}: {name} has the sha256 {sha256(x)} after its updates, the file says "
                f"{known[name].result.hex()}; use the version that wrote it"
            )
        found[name] = known[name], x
    return found


def trained_names(models: Iterable[SeededModel]) -> set[str]:
    """Return the names of trained tensors, their own and those in a file of first weights."""
    return {
        name for model in models for tensor in model.tensors for name in (tensor.name, tensor.given)
    }


def write_rebuilt(
    out: Path, models: Mapping[str, tuple[SeededModel, Floats]], weights: str | Path | None = None
) -> list[str]:
    """Write rebuilt models as named tensors, with the other tensors of `weights`; return the
    tensors' names.

    Of several models each name begins with its model's, as in "client_0.1.weight".
    """
    tensors = {} if weights is None else read_tensors(weights)
    for name, (model, x) in models.items():
        begin = "" if len(models) == 1 else f"{name.replace(' ', '_')}."
        place = 0
        for tensor in model.tensors:
            values = x[place : place + tensor.size].reshape(tensor.shape)
            tensors.pop(tensor.given, None)
            tensors[begin + tensor.name] = RawTensor.of(values)
            place += tensor.size
    write_tensors(out, tensors)
    return list(tensors)
