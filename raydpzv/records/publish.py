"""Write what may leave of a private run to a folder of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import tomli_w

from raydpzv.config.toml import as_tree
from raydpzv.errors import DataError, InputError
from raydpzv.files import as_json, sha256, write_atomically
from raydpzv.ledger.ledger import Ledger
from raydpzv.privacy.claim_words import withheld
from raydpzv.records.publication import Publication, publication
from raydpzv.records.run_folder import ENVIRONMENT, PUBLISHED, SCENARIO, RunFolder, write_models
from raydpzv.records.status_labels import shown
from raydpzv.records.store import append_rows

Progress = Callable[[str, int, int], None]
"""Called with what is being written, how much of it is done, and how much there is."""
_STEP = 1000
"""Updates between two calls of it."""


def publish(path: Path, out: Path, check: Callable[[RunFolder], None], progress: Progress) -> RunFolder:
    """Write what may leave of a finished private run to `out`; return that folder.

    It is there whole or not at all; where it is already, it is written anew. check: looks at it before it is there, as
    `raydpzv.experiment.rebuild.check_rebuilt` does. Raises what that raises; InputError if nothing may leave, or `out`
    holds anything else; DataError if the run's folder is damaged.
    """
    folder = RunFolder.open(path)
    what = _publication(folder)
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


def _publication(folder: RunFolder) -> Publication:
    """Return what may leave. Raises InputError where nothing may."""
    if folder.published:
        raise InputError(f"{folder.path}: is what was published of a run already; copy it as it is")
    summary, environment = folder.summary(), folder.environment()
    if summary.get("status") != "done":
        raise InputError(
            f"{folder.path}: the run has not come to its end ({shown(str(summary.get('stopped_by')))}), and only a "
            "finished one is published; continue it, or run it again"
        )
    if not withheld(summary):
        reason = str(summary.get("private_reason") or "the summary gives no reason").removeprefix(
            "NOT PRIVATE: "
        )
        raise InputError(f"{folder.path}: is not private, so nothing of it may leave: {reason}")
    found = publication(summary, as_tree(folder.spec()), environment)
    if not found.adversary:
        raise InputError(
            f"{folder.path}: no finite ε is proved against whoever sees its ledger, so nothing of it may leave"
        )
    return found


def _check_out(out: Path, what: Publication) -> bool:
    """Tell whether there is nothing at `out` yet; InputError if there is anything but this publication."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    there = RunFolder(out)
    if not (there.published and _identity(there.summary()) == _identity(what.summary)):
        raise InputError(
            f"{out}: holds something else than what is published of this run; choose another --out, or delete it"
        )
    return False


def _identity(summary: dict[str, object]) -> tuple[object, ...]:
    return tuple(summary.get(name) for name in ("scenario", "method", "seed", "model_digest", "ledger"))


def _write(folder: RunFolder, what: Publication, made: Path, progress: Progress) -> RunFolder:
    models, rows = folder.models(), {"model": folder.rows()["model"]}
    recorded = {row["party"]: row["sha256"] for row in rows["model"].to_pylist()}
    if {party: sha256(x) for party, x in models.items()} != recorded:
        raise DataError(
            f"{folder.path}: models.npz does not hold the models on record; bring it back from a copy"
        )
    append_rows(made, rows)
    write_models(made, models)
    write_atomically(made / SCENARIO, tomli_w.dumps(what.settings).encode())
    write_atomically(made / ENVIRONMENT, as_json(what.environment).encode())
    write_atomically(made / PUBLISHED, as_json(what.summary).encode())
    published = RunFolder(made)
    if "ledger" in what.summary:
        with Ledger.open(folder.ledger) as ledger:
            _copy(ledger, published.ledger, progress)
    return published


def _copy(ledger: Ledger, to: Path, progress: Progress) -> None:
    """Enter every update into a new ledger: what is copied is what is read, and nothing that lies beside it."""
    with Ledger.create(to, ledger.header) as copy:
        for update in ledger.since(0).updates():
            copy.enter(update)
            if update.round % _STEP == 0 or update.round == ledger.version:
                progress("update of the ledger", update.round, ledger.version)
        if copy.digest != ledger.digest:
            raise DataError(f"{to}: the copied ledger is another one; try again")


def _replace(made: Path, out: Path) -> None:
    """Put every part in the place of the one that is there; what does not come from here is left alone."""
    for part in made.iterdir():
        there = out / part.name
        if there.is_dir():
            shutil.rmtree(there)
        os.replace(part, there)
