"""Write what may leave of a private run to a folder of its own.

The adversary that the proved claims speak of decides what may leave.

| proved claims                 | suppose                       | claims that leave                                |
|-------------------------------|-------------------------------|--------------------------------------------------|
| one client's, all clients'    | the batches may be known      | all                                              |
| an outsider's, ε below theirs | batches, their sizes and      | the outsider's and the server's: the others tell |
|                               | their coins are secret        | how often a record was drawn                     |

In both cases the releases leave, the models, which follow from them, and the settings. What no ε
covers stays, though
an adversary may know it: losses, accuracies (of held-out rows, without noise), batches, sizes,
times, digests.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from raydpzv.config.paths import PATHS, each_path
from raydpzv.config.toml import as_tree
from raydpzv.errors import DataError, InputError
from raydpzv.files import as_json, sha256, write_atomically, write_npz
from raydpzv.foreign import without_digest
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.recorded_method import METHOD
from raydpzv.privacy.claim_words import judge, of_users, stated, withheld
from raydpzv.records.run_folder import (
    ENVIRONMENT,
    INITIAL,
    PUBLISHED,
    SCENARIO,
    RunFolder,
    write_models,
)
from raydpzv.records.store import append_rows
from raydpzv.records.summary_fields import shown

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, its progress, and its total."""
_STEP = 1000
"""Updates between two calls."""


def publish(
    path: Path, out: Path, check: Callable[[RunFolder], None], progress: Progress
) -> RunFolder:
    """Write what may leave of a finished private run to `out`; return that folder.

    The folder appears complete or not at all; an older publication of the run is replaced. check:
    called with the folder before it appears, as `raydpzv.experiment.rebuild.check_rebuilt`. Raises
    its errors, InputError if nothing may leave or `out` holds anything else, DataError if the run's
    folder is damaged.
    """
    folder = RunFolder.open(path)
    what = publication_of(folder)
    fresh = _check_out(out, what)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        made = Path(scratch) / "run"
        made.mkdir()
        check(_write(folder, what, made, progress))
        if fresh:
            os.replace(made, out)
        else:
            _replace(made, out)
    return RunFolder.open(out)


def publication_of(folder: RunFolder) -> Publication:
    """Return what may leave of a run. Raises InputError where nothing may."""
    if folder.published:
        raise InputError(f"{folder.path}: is what was published of a run already; copy it as it is")
    summary, environment = finished(folder), folder.environment()
    if not withheld(summary):
        reason = str(summary.get("private_reason") or "the summary gives no reason").removeprefix(
            "NOT PRIVATE: "
        )
        raise InputError(f"{folder.path}: is not private, so nothing of it may leave: {reason}")
    found = publication(summary, as_tree(folder.spec()), environment)
    if not found.adversary:
        raise InputError(
            f"{folder.path}: no finite ε is proved against anyone who sees its ledger, so nothing "
            "of it may leave"
        )
    return found


def finished(folder: RunFolder) -> dict[str, Any]:
    """Return a finished run's summary. Raises InputError for another run."""
    summary = folder.summary()
    if summary.get("status") != "done":
        raise InputError(
            f"{folder.path}: the run has not finished ({shown(str(summary.get('stopped_by')))}), "
            "and only a finished one is published; continue it, or run it again"
        )
    return summary


def _check_out(out: Path, what: Publication) -> bool:
    """Return whether `out` is empty or missing; InputError if it holds anything but this
    publication.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    there = RunFolder(out)
    if not (there.published and _identity(there.summary()) == _identity(what.summary)):
        raise InputError(
            f"{out}: holds something else than what is published of this run; choose another "
            "--out, or delete it"
        )
    return False


def _identity(summary: dict[str, object]) -> tuple[object, ...]:
    return tuple(
        summary.get(name) for name in ("scenario", "method", "seed", "model_digest", "ledger")
    )


def _write(folder: RunFolder, what: Publication, made: Path, progress: Progress) -> RunFolder:
    models, rows = models_on_record(folder), {"model": folder.rows()["model"]}
    append_rows(made, rows, mode=0o666)  # these may be shared
    write_models(made, models)
    first = folder.first_models()
    if first.keys() != folder.environment().get("layouts", {}).keys():
        raise DataError(
            f"{folder.path}: initial.npz lacks a model on record; restore it from a copy"
        )
    if first:
        write_npz(made / INITIAL, first)
    write_atomically(made / SCENARIO, tomli_w.dumps(what.settings).encode())
    write_atomically(made / ENVIRONMENT, as_json(what.environment).encode())
    write_atomically(made / PUBLISHED, as_json(what.summary).encode())
    published = RunFolder(made)
    if "ledger" in what.summary:
        with Ledger.open(folder.ledger) as ledger:
            _copy(ledger, published.ledger, progress)
    return published


def models_on_record(folder: RunFolder) -> dict[str, np.ndarray]:
    """Return a run's final models. Raises DataError if they are not those that its rows name."""
    models = folder.models()
    recorded = {row["party"]: row["sha256"] for row in folder.rows()["model"].to_pylist()}
    if {party: sha256(x) for party, x in models.items()} != recorded:
        raise DataError(
            f"{folder.path}: models.npz does not hold the models on record; restore it from a copy"
        )
    return models


def _copy(ledger: Ledger, to: Path, progress: Progress) -> None:
    """Enter every update into a new ledger, so that no other file of the old one leaves."""
    with Ledger.create(to, ledger.header) as copy:
        for update in ledger.since(0).updates():
            copy.enter(update)
            if update.round % _STEP == 0 or update.round == ledger.version:
                progress("update of the ledger", update.round, ledger.version)
        if copy.digest != ledger.digest:
            raise DataError(f"{to}: the copied ledger is another one; try again")


def _replace(made: Path, out: Path) -> None:
    """Replace each part of an older publication; leave other files alone."""
    for part in made.iterdir():
        there = out / part.name
        if there.is_dir():
            shutil.rmtree(there)
        os.replace(part, there)


Claim = Mapping[str, Any]

_KNOW_BATCHES = ("all_clients", "client")
WITHHELD_PATH = "withheld"
"""Replaces the path of a file of the operator."""
STAYS = (
    "accuracies and losses, batches and their sizes, bytes, times, staleness, digests of data, "
    "secrets"
)
"""The parts that a publication lacks."""
_FACTS = (
    "format",
    "scenario",
    "title",
    "method",
    METHOD,
    "seed",
    "engine",
    "parties",
    "status",
    "stopped_by",
    "updates",
    "private",
    "private_reason",
    "proved",
    "privacy_verdict",
    "privacy_asides",
    "evaluated_model",
    "model_digest",
    "versions",
)
_LEDGER = ("updates", "pairs", "digest")
_ENVIRONMENT = (
    "raydpzv",
    "python",
    "machine",
    "system",
    "threads",
    "device",
    "runner",
    "versions",
    "engine",
    "scenario",
    "input_shapes",
    "input_shape",
    "classes",
    "layouts",
    "whole_models",
    METHOD,
)


@dataclass(frozen=True)
class Publication:
    """The parts of a private run's record that may leave.

    adversary: of the published claims, such as "client" or "external"; "" if no claim holds against
    a reader of the
    publication. settings: the scenario as a tree.
    """

    adversary: str
    summary: dict[str, Any]
    settings: dict[str, Any]
    environment: dict[str, Any]


def publication(
    summary: Mapping[str, Any], settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> Publication:
    """Return what may leave of a private run, given its summary, its settings as a tree and its
    environment.
    """
    adversary, claims = _leaving(summary.get("epsilon") or ())
    facts = {name: without_digest(summary[name]) for name in _FACTS if name in summary}
    if summary.get("status") != "done":
        facts.pop("stopped_by", None)  # an error's text may say anything
    if adversary == "external":
        facts |= _outsiders(claims, summary)
    facts["epsilon"] = [dict(c) for c in claims]
    if ledger := summary.get("ledger"):
        facts["ledger"] = {name: ledger[name] for name in _LEDGER if name in ledger}
    return Publication(
        adversary,
        facts | {"published": {"adversary": adversary, "withheld": STAYS}},
        _public(settings),
        {name: environment[name] for name in _ENVIRONMENT if name in environment},
    )


def _leaving(claims: Sequence[Claim]) -> tuple[str, list[Claim]]:
    """Return the adversary of claims that hold against a reader of the ledger ("": none), and the
    claims that leave.
    """
    known: dict[str, float] = {}
    for c in (c for c in claims if c["adversary"] in _KNOW_BATCHES):
        known[c["relation"]] = max(_proved(c), known.get(c["relation"], 0.0))
    outsiders = [c for c in claims if c["adversary"] == "external"]
    if any(_proved(c) < known.get(c["relation"], math.inf) for c in outsiders):
        return "external", [c for c in claims if c["adversary"] in ("external", "server")]
    proved = {c["adversary"] for c in claims if _proved(c) < math.inf}
    return next((who for who in (*_KNOW_BATCHES, "server") if who in proved), ""), list(claims)


def _proved(claim: Claim) -> float:
    """Return a claim's ε; infinity if none is proved. summary.json writes infinity as a word and
    NaN as null.
    """
    epsilon = claim["epsilon"]
    return float(epsilon) if claim["holds"] and epsilon is not None else math.inf


def _outsiders(claims: Sequence[Claim], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on the claims against outsiders, as fields of a summary."""
    others = (
        "silos, who know their own part"
        if of_users(claims)
        else "the clients, who know their batches"
    )
    sentence = f"Nothing is said here of {others}."
    found = judge(
        (c for c in claims if c["adversary"] == "external"),
        asides=[sentence],
        caveats=stated(summary).caveats,
    )
    reason = None if found.private else found.lead
    return {
        "private": found.private,
        "private_reason": reason,
        "privacy_verdict": found.text,
        "privacy_asides": [sentence],
    }


def _public(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's tree without paths of the operator and without digests of a user's
    objects.
    """
    return {
        name: (
            {
                k: each_path(without_digest(v), lambda path: WITHHELD_PATH)
                if (name, k) in PATHS
                else without_digest(v)
                for k, v in table.items()
            }
            if isinstance(table, Mapping)
            else table
        )
        for name, table in settings.items()
    }
