"""Write the models of a finished run to a seed file: what its ledger released, and nothing else of
the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.errors import InputError, ReplayMismatch
from raydpzv.experiment.initial_model import MODEL, FirstModel
from raydpzv.experiment.rebuild import recorded_plan
from raydpzv.files import sha256, write_atomically
from raydpzv.foreign import is_foreign
from raydpzv.keys import SERVER_PARTY, Key, pool_seeds, step_words
from raydpzv.ledger.entries import SHARED, Slice, bounds
from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.replica import SeedSums
from raydpzv.records.publish import finished, models_on_record, publication_of
from raydpzv.records.run_folder import RunFolder
from raydpzv.seed_file.first_weights import first_tensors
from raydpzv.seed_file.seed_format import (
    MAGIC,
    ScalarForm,
    SeededModel,
    SeedFile,
    SeedRoot,
    Seeds,
    SeedTensor,
    StepPhase,
    as_float16,
    decode_seed_file,
    encode_seed_file,
    places,
    seeds_of_root,
    smallest_form,
    widths_of,
)
from raydpzv.seed_file.seed_header import OPTIONS
from raydpzv.seed_file.seed_replay import rebuilt, trained_names
from raydpzv.seed_file.tensor_file import RawTensor, frozen_sha256, read_tensors
from raydpzv.zo.spans import factors
from raydpzv.zo.update import Rule

_NOTHING = bytes(32)


@dataclass(frozen=True)
class SeedFileFacts:
    """What was written: bytes in all, of them first weights; scalars, their forms; whether each bit
    is kept.

    weights: bytes of the trained weights that it rebuilds. verdict: on the run's privacy. models:
    digests of their results by name.
    """

    size: int
    stored: int
    weights: int
    scalars: int
    forms: Sequence[ScalarForm]
    exact: bool
    verdict: str
    models: Mapping[str, str]


@dataclass(frozen=True)
class _Planned:
    """A model of a run: its name in the ledger's header, its party there (None: all updates are its
    own).
    """

    name: str
    party: int | None
    first: FirstModel
    key: Key
    weights: str | None


def publish_seed_file(
    path: Path,
    out: Path,
    *,
    client: int | None = None,
    form: ScalarForm | None = None,
    weights: str | Path | None = None,
) -> SeedFileFacts:
    """Write the seed file of a finished run to `out`, after a rebuild from its bytes; return what
    it has.

    client: of a vertical run, its model alone. form: of the scalars; None: the smallest that keeps
    every bit. weights: what readers have, a file or "module:attribute"; None: the scenario's file.
    Raises InputError if nothing may leave or the run has no seeds, DataError if its folder is
    damaged, ReplayMismatch if the rebuilt models are not those on record.
    """
    folder = RunFolder.open(path)
    verdict = _require_leaving(folder)
    if out.is_dir() or (out.exists() and not out.read_bytes().startswith(MAGIC)):
        raise InputError(
            f"{out}: holds something else than a seed file; choose another --out, or delete it"
        )
    file, base = _file_of(folder, client, weights)
    whole, on_record = _with_results(file, base), models_on_record(folder)
    if any(model.result.hex() != sha256(on_record[model.name]) for model in whole.models):
        raise ReplayMismatch(
            f"{path}: the models rebuilt from its ledger are not those on record; another machine "
            "or other library versions (compare environment.json)"
        )
    given = [_in_form(model, form or smallest_form(model.scalars)) for model in whole.models]
    file = _with_results(replace(whole, models=tuple(given)), base)
    models = file.models
    exact = [model.result for model in models] == [model.result for model in whole.models]
    data = encode_seed_file(file)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, data)
    stored = sum(t.values.nbytes for m in models for t in m.tensors if t.values is not None)
    trained = sum(on_record[model.name].nbytes for model in models)
    scalars = sum(len(model.scalars) for model in models)
    return SeedFileFacts(
        len(data),
        stored,
        trained,
        scalars,
        sorted({model.form for model in models}),
        exact,
        verdict,
        {model.name: model.result.hex() for model in models},
    )


def _with_results(file: SeedFile, base: Mapping[str, RawTensor] | None) -> SeedFile:
    """Return what a reader of the file's bytes gets, with the digests of what it rebuilds."""
    read = decode_seed_file(encode_seed_file(file))
    found = [sha256(rebuilt(read, model, base)) for model in read.models]
    models = [
        replace(m, result=bytes.fromhex(digest))
        for m, digest in zip(read.models, found, strict=True)
    ]
    return replace(read, models=tuple(models))


def _require_leaving(folder: RunFolder) -> str:
    """Return the verdict on a run that may leave. Raises InputError for one that may not.

    A run that asked for no privacy has no ε to break: its owner decides. All others leave as
    `publish` lets them.
    """
    if folder.published:
        return str(folder.summary()["privacy_verdict"])
    privacy = folder.spec().privacy
    if privacy is None or privacy.mode == "none":
        return str(finished(folder)["privacy_verdict"])
    return str(publication_of(folder).summary["privacy_verdict"])


def _file_of(
    folder: RunFolder, client: int | None, weights: str | Path | None
) -> tuple[SeedFile, dict[str, RawTensor] | None]:
    """Return a run's seed file, scalars float32 and no digests of results yet, and the weights that
    readers have.
    """
    spec = folder.spec()
    if spec.descriptor.rule is None or not folder.ledger.exists():
        raise InputError(
            f"{folder.path}: {spec.method.name} keeps no ledger of seeds and scalars; its models "
            "are in models.npz"
        )
    plan, planned = _planned(folder, client)
    weights = weights or next(filter(None, (_readable(one.weights) for one in planned)), None)
    base = None if weights is None else read_tensors(weights)
    models = []
    with Ledger.open(folder.ledger, expect=plan.header()) as ledger:
        header = ledger.header
        if header.shifted:
            raise InputError(
                f"{folder.path}: its clients shift seeds by a secret (method.private_seed_shift), "
                "which a seed file would give away; nothing was written"
            )
        for one in planned:
            tensors = _tensors(one, plan.updates.rule, base or {})
            mine = ledger.since(0) if one.party is None else ledger.since(0).of(one.party)
            if header.pool:
                mine = _summed(mine, pool_seeds(Key(spec.seed), header.pool))
            begin = plan.tail() if one.party is not None else None
            average = (
                None if begin is None else int((mine.round[bounds(mine.round)[:-1]] <= begin).sum())
            )
            models.append(_model(one, tensors, mine, Key(spec.seed), header.step_seeds, average))
    return _file(header, models, frozen_sha256(base, trained_names(models)) if base else b""), base


def _summed(updates: Slice, pool: np.ndarray) -> Slice:
    """Return updates along a pool's seeds as one update with the sum of each, which makes the same
    bits.
    """
    sums = SeedSums(pool)
    sums.add(updates)
    step, lrs = sums.step, np.full(np.count_nonzero(sums.values), sums.step.lr)
    zeros = np.zeros(len(lrs), np.int64)
    numbers = np.arange(len(lrs), dtype=np.int32)
    return Slice(
        0,
        1,
        zeros + 1,
        numbers * 0 + SHARED,
        zeros,
        zeros,
        numbers,
        np.asarray(step.seeds),
        np.asarray(step.scalars),
        lrs,
    )


def _file(header: Header, models: Sequence[SeededModel], frozen: bytes) -> SeedFile:
    options = {name: float(getattr(header, name)) for name in OPTIONS if getattr(header, name)}
    return SeedFile(header.law, tuple(models), header.step_seeds, header.optimizer, options, frozen)


def _planned(folder: RunFolder, client: int | None) -> tuple[Any, list[_Planned]]:
    """Return how a run's models are made, and those that are asked for."""
    spec: Any = folder.spec()
    plan: Any = recorded_plan(folder)
    if spec.one_model:
        if client is not None:
            raise InputError("--client: all clients train one model; leave it out")
        key = Key(spec.seed) / "model"
        return plan, [_Planned(MODEL, None, plan.first_model(), key, spec.model.weights)]
    clients = range(spec.split.clients)
    if client is not None and client not in clients:
        raise InputError(f"--client: wanted 0..{len(clients) - 1}, got {client}")
    return plan, [
        _Planned(
            f"client {m}",
            m,
            plan.first_model(m),
            Key(spec.seed) / "client" / m,
            spec.model.weights_of(m, spec.party_names),
        )
        for m in (clients if client is None else [client])
    ]


def _readable(weights: str | None) -> Path | None:
    """Return the file of a scenario's weights if it is here."""
    if weights is None or is_foreign(weights) or not Path(weights).is_file():
        return None
    return Path(weights)


def _tensors(one: _Planned, rule: Rule, base: Mapping[str, RawTensor]) -> tuple[SeedTensor, ...]:
    """Return a model's tensors before the first update, with the factors that groups give them."""
    shapes = one.first.shapes
    found = first_tensors(shapes, one.first.flat, one.key, base)
    groups = factors(rule.groups, shapes)
    return tuple(
        replace(tensor, lr=group.lr, smoothing=group.smoothing)
        for tensor, group in zip(found, groups, strict=True)
    )


def _model(
    one: _Planned, tensors: Any, mine: Slice, key: Key, step_seeds: bool, average: int | None
) -> SeededModel:
    phases = tuple(_phases(mine))
    if not np.array_equal(places(widths_of(phases)), mine.perturbation):
        raise InputError(
            "the ledger's directions are not numbered from 0 in each step, which a seed file "
            "cannot hold"
        )
    seeds = mine.seed[mine.perturbation == 0] if step_seeds else np.array(mine.seed)
    party = SERVER_PARTY if one.party is None else one.party
    root = SeedRoot(step_words(key) if step_seeds else key.direction_words, party)
    same = np.array_equal(seeds_of_root(root, phases, step_seeds), seeds)
    given: SeedRoot | Seeds = root if same else seeds
    initial = bytes.fromhex(sha256(one.first.flat))
    return SeededModel(
        one.name, tensors, initial, _NOTHING, phases, given, np.array(mine.scalar), average=average
    )


def _phases(mine: Slice) -> Iterator[StepPhase]:
    """Yield runs of updates that are alike. Raises InputError for steps of different numbers of
    directions.
    """
    alike = []
    for update in mine.each():
        steps = int((update.perturbation == 0).sum())
        width, rest = divmod(len(update), max(steps, 1))
        if rest or not np.array_equal(
            np.diff(update.step) != 0, np.arange(1, len(update)) % width == 0
        ):
            raise InputError(
                f"update {update.last}: its steps have different numbers of directions, which a "
                "seed file cannot hold"
            )
        alike.append((steps, width, float(update.lr[0])))
    yield from (StepPhase(sum(1 for _ in group), *terms) for terms, group in groupby(alike))


def _in_form(model: SeededModel, form: ScalarForm) -> SeededModel:
    if form == "float16":
        return replace(model, form=form, scalars=as_float16(model.scalars))
    if form == "sign" and smallest_form(model.scalars) != "sign":
        raise InputError(
            f"{model.name}: one bit a scalar wants scalars of one size, and these differ; write "
            "them as float32"
        )
    return replace(model, form=form)
