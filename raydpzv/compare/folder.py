"""A comparison's folder: its plan, its runs, one writer at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from raydpzv.compare.plan import Comparison, Planned, read_comparison
from raydpzv.compare.run_comparison import PLAN, RUNS_FOLDER, finished
from raydpzv.errors import InputError
from raydpzv.files import LOCK, write_atomically
from raydpzv.records.secrets_file import OPERATOR, OperatorSecrets, new_key, read_key


def is_comparison(folder: Path) -> bool:
    """Return whether a folder is a comparison's."""
    return (folder / PLAN).is_file()


@contextmanager
def opened(folder: Path, comparison: Comparison) -> Iterator[None]:
    """Lock a comparison's folder while the block runs; make it, or resume the same comparison in it.

    The same comparison has the same lines, wherever their data are, and at least the seeds that it had; its targets may
    differ. Raises InputError for a folder with other contents, or one that another process writes.
    """
    make_folder(folder, "comparison", PLAN)
    with locked(folder, "comparison"):
        if is_comparison(folder):
            _check_same(folder, comparison)
        keep_key(folder)
        write_atomically(folder / PLAN, comparison.as_toml().encode())
        yield


def make_folder(folder: Path, kind: str, plan: str) -> None:
    """Make the folder of a comparison or search (`kind`), or see that it is one: its file `plan` is in it.

    Raises InputError where anything else is in it, or it cannot be written.
    """
    try:
        taken = folder.is_dir() and not (folder / plan).is_file()
        if taken and any(path.name != LOCK for path in folder.iterdir()):
            raise InputError(f"{folder}: holds something else already; choose another --out, or delete it")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise InputError(
            f"{folder}: cannot write the {kind} ({error.strerror or error}); choose another --out"
        ) from None


def unfinished(folder: Path, comparison: Comparison) -> list[Planned]:
    """Return the runs to make or to resume."""
    return [p for p in comparison.runs() if not finished(p, folder / RUNS_FOLDER / p.folder)]


def keep_key(folder: Path) -> None:
    """Write the operator's file of a comparison or search; its key shows whether the runs are on the same data.

    A lost key is copied from a run. Raises DataError if the runs lost it too.
    """
    if (folder / OPERATOR).is_file():
        return
    runs = sorted(path.parent for path in (folder / RUNS_FOLDER).glob("*/environment.json"))
    OperatorSecrets(read_key(runs[0]) if runs else new_key()).write(folder)


def _check_same(folder: Path, comparison: Comparison) -> None:
    former = read_comparison(folder / PLAN)
    if [line.unlocated() for line in former.lines] != [line.unlocated() for line in comparison.lines]:
        raise InputError(
            f"{folder}: holds another comparison ({former.name}: other methods or settings); choose another --out, or "
            f"continue that one: raydpzv resume {folder}"
        )
    if missing := sorted(set(former.seeds) - set(comparison.seeds)):
        raise InputError(
            f"{folder}: was started with seed {missing[0]} too; name all its seeds, or continue with: "
            f"raydpzv resume {folder}"
        )


@contextmanager
def locked(folder: Path, kind: str) -> Iterator[None]:
    """Lock a folder while the block runs; InputError if another process has it. kind: its contents, as "comparison"."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"{folder}: another process is writing this {kind}; wait for it, or stop it"
        ) from None
    try:
        yield
    finally:
        lock.release(force=True)
