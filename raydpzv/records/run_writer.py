"""Write a run's folder: one process at a time, and complete at each moment a kill may come."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout

from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml, as_tree
from raydpzv.errors import InputError, RunError, command
from raydpzv.files import (
    LOCK,
    PRIVATE,
    as_json,
    private_folder,
    refuse_links,
    write_atomically,
)
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
from raydpzv.records.store import Extent, Rows, check_extents, cut_parts
from raydpzv.records.write_ahead_log import TAIL, FolderRows, WriteAheadLog
from raydpzv.trust import code_words, mark

_LEFT_OVER = re.compile(r"\.part-\d+\.parquet|\..+\.\d+")
_CONTENTS = (SCENARIO, OPERATOR, "rows", TAIL, "ledger", CHECKPOINT, INITIAL, MODELS, SUMMARY)


class RunWriter(RunFolder):
    """A run's folder that this process writes. It is locked; use it as a context manager to release
    the lock.
    """

    def __init__(self, path: Path, moved: Sequence[str] = ()) -> None:
        super().__init__(path, moved)
        self._rows = FolderRows(path)
        self._went_back = False
        self.updates_before = 0
        """Updates that the run had when the segment began that this object writes."""
        self.resumed_from = ""
        """Digest of the checkpoint at which this segment began; "" for one from the start."""
        self.read_ledger: Ledger | None = None
        """The ledger as it was read for resuming: a writer in this process need not read it
        again.
        """
        self.checkpointed: Callable[[], None] = lambda: None
        """Called when a checkpoint is written, before anything else is."""
        self._lock = FileLock(path / LOCK)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *details: object) -> None:
        self._lock.release(force=True)

    @classmethod
    def create(
        cls,
        path: Path,
        spec: AnyScenario,
        environment: Mapping[str, Any],
        operator: OperatorSecrets,
    ) -> RunWriter:
        """Make the folder, which must not hold a run yet, and write what is known before the start.

        The scenario is written last. A folder without it is of a run that was killed before it
        started, and is reused.
        """
        try:
            if content := _content(path):
                raise InputError(
                    f"{path}: holds a run already ({content}); choose another --out, or continue "
                    f"it: {command('resume', path)}"
                )
            private_folder(path)
            refuse_links(path)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            folder = cls(path)
            _acquire(folder._lock, path)
            (path / "rows").mkdir(exist_ok=True)
            _delete_scratch_files(path.glob(".*"))
            operator.write(path)
            write_atomically(path / ENVIRONMENT, as_json(environment).encode())
            write_atomically(path / SCENARIO, as_toml(spec).encode())
            mark(path, SCENARIO, code_words(as_tree(spec)))
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the run folder ({error.strerror or error}); choose another "
                "--out"
            ) from None
        return folder

    @classmethod
    def locked(cls, path: Path, moved: Sequence[str] = ()) -> RunWriter:
        """Open an existing run's folder to resume it: locked, and unchanged until `go_back`."""
        folder = cls.open(path, moved)
        folder.require_own_record()
        refuse_links(path)
        _acquire(folder._lock, path)
        return folder

    def go_back(self) -> None:
        """Resume from the checkpoint, or without one from the start: drop rows beyond it.

        Raises DataError if a part is missing or damaged, or if the parts are not those that the
        checkpoint names.
        """
        self.resumed_from = self.checkpoint_sha256()
        found = self.found_checkpoint()
        if found:
            log = WriteAheadLog(self.path, found.log, found.packed)
            self._rows = FolderRows(self.path, found.extents, log, found.tail)
        else:
            self._rows = FolderRows(self.path)
        check_extents(self.path, self._rows.extents)
        with _reported(self.path):
            if found:
                settle(self.path / CHECKPOINT, found)
            cut_parts(self.path, self._rows.extents)
        self._went_back = True

    def older_checkpoint(self) -> Found | None:
        """Return the checkpoint before the one at which this segment began, if it is still
        there.
        """
        # this segment's own checkpoints are no better than the one that it resumed from
        if self.checkpoint_sha256() != self.resumed_from:
            return None
        return read_before(self.path / CHECKPOINT, self.identity)

    def fall_back(self) -> None:
        """Replace the checkpoint at which this segment began, and those since, by the one before
        it.
        """
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

    def write_checkpoint(self, checkpoint: Checkpoint) -> int:
        """Write a checkpoint of all rows so far; return its bytes. Raises RunError."""
        with _reported(self.path):
            self._stat = self._found = None  # free its memory: it is replaced
            log = self._rows.log.write()
            size = write_checkpoint(
                self.path / CHECKPOINT, checkpoint, self._rows.extents, log, self.identity
            )
            self._rows.log.checkpointed()
        self.checkpointed()
        return size

    def hold(self, rows: Rows) -> None:
        """Add rows that a checkpoint follows, see `FolderRows.hold`. Raises RunError if they cannot
        be written.
        """
        with _reported(self.path):
            self._rows.hold(rows)

    def append(self, rows: Rows, *, keep: bool = False) -> None:
        """Add rows, see `FolderRows.append`. Raises RunError if they cannot be written."""
        with _reported(self.path):
            self._rows.append(rows, keep=keep)

    def so_far(self, name: str) -> pa.Table:
        """Return the rows of one type that were written through this object, also those in no part
        yet.
        """
        return self._rows.so_far(name)

    def written(self) -> Rows:
        """Return the rows written through this object, and those that it resumed with."""
        return self._rows.written()

    def begin_leg(self) -> None:
        """Delete the summary, if there is one: it does not count what is released from now on."""
        found = self.checkpoint()
        self.updates_before = found.round if found else 0
        with _reported(self.path):
            (self.path / SUMMARY).unlink(missing_ok=True)

    def holds(self, released: int) -> bool:
        """Return whether the rows hold all releases. released: how many there are, by the ledger;
        0: it has none.

        A run that resumed makes those of its ledger again first. Before that, its rows tell of too
        few.
        """
        return not self._went_back or self._rows.extents.get("release", Extent()).rows >= released

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json. Raises RunError if it cannot be written."""
        with _reported(self.path):
            write_atomically(self.path / SUMMARY, as_json(summary).encode(), mode=PRIVATE)


def _acquire(lock: FileLock, run: Path) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"{run}: another process is writing this run; wait for it, or stop it"
        ) from None
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
    if (
        set(found) <= {OPERATOR, "rows"}
        and (path / "rows").is_dir()
        and not any((path / "rows").iterdir())
    ):
        return ""
    return found[0] if found else ""


@contextmanager
def _reported(run: Path) -> Iterator[None]:
    """Raise an OSError of the block as RunError that names the folder: the disk is full, or not
    writable now.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{run}: cannot write the run's record ({error.strerror or error}); what is there "
            f"stays: see to the disk, then continue with: {command('resume', run)}"
        ) from error
