"""Write a run's folder: one process at a time, and complete at each moment a kill may come."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout

from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml
from raydpzv.errors import InputError, RunError
from raydpzv.files import LOCK, as_json, write_atomically
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    Found,
    before,
    read_before,
    settle,
    write_checkpoint,
)
from raydpzv.records.run_folder import ENVIRONMENT, INITIAL, MODELS, SCENARIO, SUMMARY, RunFolder
from raydpzv.records.secrets_file import OPERATOR, OperatorSecrets
from raydpzv.records.store import Extent, Rows, check_extents, cut_parts, read_all
from raydpzv.records.write_ahead_log import TAIL, FolderRows, WriteAheadLog

NEXT, OLD = "rows.next", "rows.old"
"""A run that is computed again writes its rows to the first until it has ended. The second holds the rows that they
then replace."""
_LEFT_OVER = re.compile(r"\.part-\d+\.parquet|\..+\.\d+")
_OLDER_SUMMARY = "summary.before.json"
"""The summary of a run that was stopped and is resumed now."""
_CONTENTS = (SCENARIO, OPERATOR, "rows", NEXT, OLD, TAIL, "ledger", CHECKPOINT, INITIAL, MODELS, SUMMARY)


class RunWriter(RunFolder):
    """A run's folder that this process writes. It is locked; use it as a context manager to release the lock."""

    def __init__(self, path: Path, moved: Sequence[str] = ()) -> None:
        super().__init__(path, moved)
        self._rows = FolderRows(path, "rows")
        self._went_back = False
        self.updates_before = 0
        """Updates that the run had when the segment began that this object writes."""
        self.resumed_from = ""
        """Digest of the checkpoint at which this segment began; "" for one from the start."""
        self.read_ledger: Ledger | None = None
        """The ledger as it was read for resuming: a writer in this process need not read it again."""
        self._lock = FileLock(path / LOCK)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *details: object) -> None:
        self._lock.release(force=True)

    @classmethod
    def create(
        cls, path: Path, spec: AnyScenario, environment: Mapping[str, Any], operator: OperatorSecrets
    ) -> RunWriter:
        """Make the folder, which must not hold a run yet, and write what is known before the start.

        The scenario is written last. A folder without it is of a run that was killed before it started, and is reused.
        """
        try:
            if content := _content(path):
                raise InputError(
                    f"{path}: holds a run already ({content}); choose another --out, or continue it: "
                    f"raydpzv resume {path}"
                )
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            folder = cls(path)
            _acquire(folder._lock, path)
            (path / "rows").mkdir(exist_ok=True)
            _delete_scratch_files(path.glob(".*"))
            operator.write(path)
            write_atomically(path / ENVIRONMENT, as_json(environment).encode())
            write_atomically(path / SCENARIO, as_toml(spec).encode())
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the run folder ({error.strerror or error}); choose another --out"
            ) from None
        return folder

    @classmethod
    def locked(cls, path: Path, moved: Sequence[str] = ()) -> RunWriter:
        """Open an existing run's folder to resume it: locked, and unchanged until `go_back` or `go_beside`."""
        folder = cls.open(path, moved)
        folder.require_own_record()
        _acquire(folder._lock, path)
        return folder

    def go_beside(self) -> None:
        """Write beside the record, which stays until the run has ended."""
        self._rows.where = NEXT
        _complete_commit(self.path)
        if (self.path / NEXT).is_dir():
            self._commit()
            self._rows.where = NEXT

    def go_back(self) -> None:
        """Resume from the checkpoint: drop rows beyond it, once all that stays has been read.

        If the run is computed again beside its record, it has no checkpoints, and all that was computed is dropped.
        Raises DataError if a part is missing or damaged, or if the parts are not those that the checkpoint names.
        """
        self.resumed_from = "" if self.is_recomputed else self.checkpoint_sha256()
        if self.is_recomputed:
            shutil.rmtree(self.path / self._rows.where, ignore_errors=True)
            self._rows = FolderRows(self.path, self._rows.where)
            return
        found = self.found_checkpoint()
        if found:
            log = WriteAheadLog(self.path, found.log, found.packed)
            self._rows = FolderRows(self.path, self._rows.where, found.extents, log, found.tail)
        else:
            self._rows = FolderRows(self.path, self._rows.where)
        check_extents(self.path, self._rows.extents)
        with _reported(self.path):
            if found:
                settle(self.path / CHECKPOINT, found)
            cut_parts(self.path, self._rows.extents)
        self._went_back = True

    def older_checkpoint(self) -> Found | None:
        """Return the checkpoint before the one at which this segment began, if it is still there."""
        # this segment's own checkpoints are no better than the one that it resumed from
        if self.checkpoint_sha256() != self.resumed_from:
            return None
        return read_before(self.path / CHECKPOINT, self.identity)

    def fall_back(self) -> None:
        """Replace the checkpoint at which this segment began, and those since, by the one before it."""
        last, older = self.path / CHECKPOINT, self.older_checkpoint()
        with _reported(self.path):
            if older:
                older.place.replace(last)
            else:
                before(last).unlink(missing_ok=True)
                last.unlink(missing_ok=True)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows of each type this object has written, or resumed from."""
        return self._rows.counts

    @property
    def is_recomputed(self) -> bool:
        """Whether the run is computed again, beside its record."""
        return self._rows.where != "rows"

    def write_checkpoint(self, checkpoint: Checkpoint) -> int:
        """Write a checkpoint of all rows so far; return its bytes. Raises RunError."""
        with _reported(self.path):
            self._stat = self._found = None  # free its memory: it is replaced
            log = self._rows.log.write()
            size = write_checkpoint(
                self.path / CHECKPOINT, checkpoint, self._rows.extents, log, self.identity
            )
            self._rows.log.checkpointed()
            return size

    def hold(self, rows: Rows) -> None:
        """Add rows that a checkpoint follows, see `FolderRows.hold`. Raises RunError if they cannot be written."""
        with _reported(self.path):
            self._rows.hold(rows)

    def append(self, rows: Rows, *, keep: bool = False) -> None:
        """Add rows, see `FolderRows.append`. Raises RunError if they cannot be written."""
        with _reported(self.path):
            self._rows.append(rows, keep=keep)

    def so_far(self, name: str) -> pa.Table:
        """Return the rows of one type that were written through this object, also those in no part yet."""
        return self._rows.so_far(name)

    def written(self) -> Rows:
        """Return the rows written through this object: of a run computed again, only the new ones."""
        return self._rows.written()

    def begin_leg(self) -> None:
        """Put the summary aside, if there is one: it does not count what is released from now on."""
        older, found = self.path / _OLDER_SUMMARY, None if self.is_recomputed else self.checkpoint()
        self.updates_before = found.round if found else 0
        with _reported(self.path):
            if self.has_summary():
                (self.path / SUMMARY).replace(older)
            else:
                older.unlink(missing_ok=True)  # of a segment before one that was killed

    def commit_continuation(self, released: int = 0) -> bool:
        """Replace the record that was continued, unless the continuation is shorter; return whether it did.

        Both are beginnings of the same run, so the longer one holds every release of the shorter one. A continuation
        from a checkpoint has to hold at least the releases that came after it. released: how many there are in all, if
        that is known; a kill keeps rows from telling. If it is shorter, the old record and summary stay.
        """
        made = self._commit(released)
        older = self.path / _OLDER_SUMMARY
        if not made and older.is_file():
            older.replace(self.path / SUMMARY)
        return made

    def _commit(self, released: int = 0) -> bool:
        if self._rows.where == "rows":
            return not self._went_back or self._rows.extents.get("release", Extent()).rows >= released
        if _length(self.path, NEXT) < max(_length(self.path, "rows"), (released, 0)):
            shutil.rmtree(self.path / NEXT, ignore_errors=True)
            return False
        (self.path / "rows").rename(self.path / OLD)
        _complete_commit(self.path)
        self._rows.where = "rows"
        return True

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json. Raises RunError if it cannot be written."""
        with _reported(self.path):
            write_atomically(self.path / SUMMARY, as_json(summary).encode())
            (self.path / _OLDER_SUMMARY).unlink(missing_ok=True)


def _acquire(lock: FileLock, run: Path) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{run}: another process is writing this run; wait for it, or stop it") from None
    except OSError as error:
        raise InputError(f"{run}: cannot be written ({error.strerror or error})") from None


def delete_scratch_files(run: Path) -> None:
    """Delete the files of interrupted writes, which are no part of the record."""
    _delete_scratch_files(run.rglob(".*"))


def _delete_scratch_files(hidden: Iterable[Path]) -> None:
    for path in hidden:
        if _LEFT_OVER.fullmatch(path.name):
            path.unlink()


def _content(path: Path) -> str:
    """Return a file of a run that has started in a folder; "" if there is none."""
    found = [name for name in _CONTENTS if (path / name).exists()]
    if set(found) <= {OPERATOR, "rows"} and (path / "rows").is_dir() and not any((path / "rows").iterdir()):
        return ""
    return found[0] if found else ""


def _complete_commit(run: Path) -> None:
    """Finish what `commit_continuation` began, also after a kill."""
    rows, old = run / "rows", run / OLD
    if old.is_dir() and not rows.is_dir():
        source = run / NEXT
        (source if source.is_dir() else old).rename(rows)
    if old.is_dir():
        shutil.rmtree(old)


def _length(path: Path, where: str) -> tuple[int, int]:
    rows = read_all(path, where)
    return rows["release"].num_rows, rows["service"].num_rows


@contextmanager
def _reported(run: Path) -> Iterator[None]:
    """Raise an OSError of the block as RunError that names the folder: the disk is full, or not writable now."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{run}: cannot write the run's record ({error.strerror or error}); what is there stays: see to "
            f"the disk, then continue with: raydpzv resume {run}"
        ) from error
