"""A comparison's folder: its plan, its runs, one writer at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from raydpzv.compare.plan import Comparison, Planned, read_comparison
from raydpzv.compare.run_comparison import RUNS_FOLDER, finished
from raydpzv.errors import InputError
from raydpzv.files import LOCK, PLAN, write_atomically
from raydpzv.records.secrets_file import OPERATOR, OperatorSecrets, new_key, read_key


def opened(folder: Path, comparison: Comparison) -> AbstractContextManager[None]:
    """Lock a comparison's folder while the block runs; make it, or resume the same comparison in it.

    The same comparison has the same lines, wherever their data are, and at least the seeds that it had; its targets may
    differ. Raises as `plan_written` does.
    """
    return plan_written(
        folder, "comparison", PLAN, comparison.as_toml(), lambda: _check_same(folder, comparison)
    )


@contextmanager
def plan_written(folder: Path, kind: str, name: str, plan: str, check: Callable[[], None]) -> Iterator[None]:
    """Lock the folder of a comparison or search (`kind`) while the block runs; make it, or resume in it.

    name, plan: of the plan's file and its text; check: raises InputError if the file has another plan. It is also
    raised for a folder with other contents, or one that another process writes.
    """
    try:
        taken = folder.is_dir() and not (folder / name).is_file()
        if taken and any(path.name != LOCK for path in folder.iterdir()):
            raise InputError(f"{folder}: holds something else already; choose another --out, or delete it")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise InputError(
            f"{folder}: cannot write the {kind} ({error.strerror or error}); choose another --out"
        ) from None
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"{folder}: another process is writing this {kind}; wait for it, or stop it"
        ) from None
    try:
        if (folder / name).is_file():
            check()
        _keep_key(folder)
        write_atomically(folder / name, plan.encode())
        yield
    finally:
        lock.release(force=True)


def unfinished(folder: Path, comparison: Comparison) -> list[Planned]:
    """Return the runs to make or to resume."""
    return [p for p in comparison.runs() if not finished(p, folder / RUNS_FOLDER / p.folder)]


def _keep_key(folder: Path) -> None:
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
