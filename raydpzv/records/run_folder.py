"""A run's folder: scenario, environment, rows, models, summary."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w
from filelock import FileLock, Timeout

from raydpzv.config.paths import check_moved
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml, overridden, parse
from raydpzv.config.tree import checked, read_toml
from raydpzv.errors import DataError, InputError, RunError, SpecError
from raydpzv.files import as_json, write_atomically, write_npz
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    Found,
    before,
    read_before,
    read_checkpoint,
    settle,
    write_checkpoint,
)
from raydpzv.records.environment import DATA_DIGEST
from raydpzv.records.folder_lock import LOCK, is_written
from raydpzv.records.folder_rows import FolderRows
from raydpzv.records.publication import Publication
from raydpzv.records.secrets_file import OPERATOR, OperatorSecrets
from raydpzv.records.settings_diff import other_setting
from raydpzv.records.store import (
    Extent,
    Rows,
    append_rows,
    check_extents,
    cut_parts,
    read_all,
    read_rows,
)
from raydpzv.records.summary_fields import check_format, faults
from raydpzv.records.write_ahead_log import TAIL, WriteAheadLog, last_round

NEXT, OLD = "rows.next", "rows.old"
"""A continued run writes its rows to the first until it has ended; the second is what they then replace."""
_LEFT_OVER = re.compile(r"\.part-\d+\.parquet|\..+\.\d+")
_SCENARIO, _ENVIRONMENT = "scenario.toml", "environment.json"
_MODELS, _SUMMARY = "models.npz", "summary.json"
_OLDER_SUMMARY = "summary.before.json"
"""What a run that was stopped and goes on now had as its summary."""
_PUBLISHED = "published.json"
"""In place of the summary in a folder that `publish` wrote."""
_CONTENTS = (_SCENARIO, OPERATOR, "rows", NEXT, OLD, TAIL, "ledger", CHECKPOINT, _MODELS, _SUMMARY)


def _held(path: Path) -> str:
    """Return what of a run that has begun is in a folder, "" if nothing is."""
    held = [name for name in _CONTENTS if (path / name).exists()]
    if set(held) <= {OPERATOR, "rows"} and (path / "rows").is_dir() and not any((path / "rows").iterdir()):
        return ""
    return held[0] if held else ""


class RunFolder:
    """Creates, fills and reads one run's folder; all is written atomically, so a reader never sees a half file.

    Whatever reads a run folder does so through this class, so that a damaged one gives the same DataError everywhere. A
    folder that is written to is locked: one process at a time. Use as a context manager to release the lock.
    """

    def __init__(self, path: Path, where: str = "rows", moved: Sequence[str] = ()) -> None:
        self.path = path
        self._moved = check_moved(moved)
        self._rows = FolderRows(path, where)
        self._went_back = False
        self.updates_before = 0
        """Updates that the run had when the leg began that this object writes."""
        self.resumed_from = ""
        """Digest of the checkpoint at which this leg began; "" for one from the start."""
        self.read_ledger: Ledger | None = None
        """The ledger as who goes on with the run has read it: a writer in this process need not read it all again."""
        self._found_in: tuple[int, int, int, bool] | None = None
        self._found: Found | None = None  # the checkpoint of that file
        self._lock = FileLock(path / LOCK)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *details: object) -> None:
        self._lock.release(force=True)

    @classmethod
    def create(
        cls, path: Path, spec: AnyScenario, environment: Mapping[str, Any], operator: OperatorSecrets
    ) -> RunFolder:
        """Make the folder (it must not hold a run yet) and write what is known before the start.

        The scenario comes last: a folder without it is of a run that was killed before it began, and is used anew.
        """
        try:
            if held := _held(path):
                raise InputError(
                    f"{path}: holds a run already ({held}); choose another --out, or go on with it: "
                    f"raydpzv resume {path}"
                )
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            folder = cls(path)
            folder._take()
            (path / "rows").mkdir(exist_ok=True)
            _delete_left_overs(path.glob(".*"))
            operator.write(path)
            write_atomically(path / _ENVIRONMENT, as_json(environment).encode())
            write_atomically(path / _SCENARIO, as_toml(spec).encode())
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the run folder ({error.strerror or error}); choose another --out"
            ) from None
        return folder

    @classmethod
    def publish(
        cls, path: Path, what: Publication, models: Mapping[str, np.ndarray], rows: Rows
    ) -> RunFolder:
        """Write what may leave of a run, but for its ledger, into an empty folder; rows: those of the models."""
        folder = cls(path)
        append_rows(path, rows)
        folder.write_models(models)
        write_atomically(path / _SCENARIO, tomli_w.dumps(what.settings).encode())
        write_atomically(path / _ENVIRONMENT, as_json(what.environment).encode())
        write_atomically(path / _PUBLISHED, as_json(what.summary).encode())
        return folder

    @classmethod
    def open(cls, path: Path, moved: Sequence[str] = ()) -> RunFolder:
        """Open an existing run's folder for reading.

        moved: where its data are now, as "data.folder=...", "data.file=..." or "arrivals.file=...". Raises DataError if
        there is no run, SpecError if `moved` has another setting.
        """
        if not cls.begun(path):
            raise DataError(f"{path}: not a run folder (no {_SCENARIO} in it); give the folder of a run")
        return cls(path, moved=moved)

    @staticmethod
    def begun(path: Path) -> bool:
        """Tell whether a run has begun in this folder."""
        return (path / _SCENARIO).is_file()

    @classmethod
    def held(cls, path: Path, moved: Sequence[str] = ()) -> RunFolder:
        """Open an existing run's folder to go on with it: locked, and as it is until `go_back` or `go_beside`."""
        folder = cls.open(path, moved)
        folder.require_own_record()
        folder._take()
        return folder

    def go_beside(self) -> None:
        """Go on beside the record, which stays until the run has ended."""
        self._rows.where = NEXT
        self._complete_commit()
        if (self.path / NEXT).is_dir():
            self._commit()
            self._rows.where = NEXT

    def go_back(self) -> None:
        """Go on from the checkpoint: rows beyond it are dropped, once all that stays has been read.

        Of a run that is computed again beside its record, which has no checkpoints, all that was computed is dropped.
        Raises DataError if a part is missing or damaged, or if the parts are not those that the checkpoint stands for.
        """
        self.resumed_from = "" if self.is_recomputed else self.checkpoint_sha256()
        if self.is_recomputed:
            shutil.rmtree(self.path / self._rows.where, ignore_errors=True)
            self._rows = FolderRows(self.path, self._rows.where)
            return
        found = self._written()
        if found:
            log = WriteAheadLog(self.path, found.log, found.packed)
            self._rows = FolderRows(self.path, self._rows.where, found.extents, log, found.tail)
        else:
            self._rows = FolderRows(self.path, self._rows.where)
        check_extents(self.path, self._rows.extents)
        with self._reported():
            if found:
                settle(self.path / CHECKPOINT, found)
            cut_parts(self.path, self._rows.extents)
        self._went_back = True

    def older_checkpoint(self) -> Found | None:
        """Return the checkpoint before the one at which this leg began; None where there is none, or none any more."""
        # this leg's own checkpoints are no better than the one that it resumed from
        if self.checkpoint_sha256() != self.resumed_from:
            return None
        return read_before(self.path / CHECKPOINT, self.identity)

    def fall_back(self) -> None:
        """Give up the checkpoint at which this leg began, and those since: the one before it takes its place."""
        last, older = self.path / CHECKPOINT, self.older_checkpoint()
        with self._reported():
            if older:
                older.place.replace(last)
            else:
                before(last).unlink(missing_ok=True)
                last.unlink(missing_ok=True)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows of each type the run has that this object writes."""
        return self._rows.counts

    @property
    def published(self) -> bool:
        """Whether this is what `publish` wrote of a run, and not the run's own folder."""
        return (self.path / _PUBLISHED).is_file()

    @property
    def ledger(self) -> Path:
        """Where the run's ledger is."""
        return self.path / "ledger"

    def checkpoint(self, *, only_last: bool = False) -> Checkpoint | None:
        """Return the place from which a run can go on, if one was written; see `read_checkpoint`."""
        found = self._written(only_last=only_last)
        return found.checkpoint if found else None

    def checkpoint_sha256(self) -> str:
        """Return the digest by which the checkpoint is told from others that `checkpoint` returns; "" without one."""
        found = self._written()
        return found.sha256 if found else ""

    def _written(self, *, only_last: bool = False) -> Found | None:
        """Return what `read_checkpoint` does; of a file that has not changed since the last call the same."""
        path = self.path / CHECKPOINT
        stat = path.stat() if path.is_file() else None
        key = (stat.st_ino, stat.st_size, stat.st_mtime_ns, only_last) if stat else None
        if key is None or key != self._found_in:
            self._found_in, self._found = key, read_checkpoint(path, self.identity, only_last=only_last)
        return self._found

    @cached_property
    def identity(self) -> str:
        """By what this run is told from others: the digest of its data, whose key each run has of its own."""
        if not (self.path / _ENVIRONMENT).is_file():
            return ""
        return str(self.environment().get(DATA_DIGEST, ""))

    @property
    def is_recomputed(self) -> bool:
        """Whether what is written is that of a run that is computed again, beside its record."""
        return self._rows.where != "rows"

    def write_checkpoint(self, checkpoint: Checkpoint) -> int:
        """Write the place from which the run can go on, which stands for all rows so far; return its bytes."""
        with self._reported():
            self._found_in = self._found = None  # nobody goes back to that one any more
            log = self._rows.log.write()
            size = write_checkpoint(
                self.path / CHECKPOINT, checkpoint, self._rows.extents, log, self.identity
            )
            self._rows.log.checkpointed()
            return size

    def hold(self, rows: Rows) -> None:
        """Add rows that a checkpoint follows, see `FolderRows.hold`. Raises RunError if they cannot be written."""
        with self._reported():
            self._rows.hold(rows)

    def sweep(self) -> None:
        """Delete what writes that a kill interrupted left, which is no part of the record."""
        _delete_left_overs(self.path.rglob(".*"))

    def drop_checkpoints(self) -> None:
        """Delete what a run that has come to its end needs no more."""
        last = self.path / CHECKPOINT
        for path in (before(last), last):  # the last one is missing in no folder that has the one before it
            path.unlink(missing_ok=True)
        if (self.path / TAIL).is_dir():
            shutil.rmtree(self.path / TAIL)

    def scenario(self) -> str:
        """Return the text of scenario.toml, as it was written."""
        try:
            return (self.path / _SCENARIO).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._damaged(_SCENARIO, "text in UTF-8", error) from None

    def settings(self) -> dict[str, Any]:
        """Return the tables of scenario.toml, not validated, with the data where they are now."""
        try:
            tree = checked(read_toml(self.scenario()), _SCENARIO)
        except (tomllib.TOMLDecodeError, SpecError) as error:
            raise self._damaged(_SCENARIO, "a TOML file", error) from None
        return overridden(tree, self._moved)

    def spec(self) -> AnyScenario:
        """Return the resolved scenario, with the data where they are now."""
        found = parse({"name": "scenario", **self.settings()}, str(self.path / _SCENARIO))
        return found.noted(self._note())

    def _note(self) -> str:
        """What was said of the settings when the run began; "" where that is not on record."""
        return str(self.environment().get("note", "")) if (self.path / _ENVIRONMENT).is_file() else ""

    def require_settings(self, spec: AnyScenario) -> None:
        """Raise InputError unless the run on record has these settings, wherever its data lie.

        Where "auto" is asked for, it is what the run chose.
        """
        if other := other_setting(self.spec(), spec):
            raise InputError(
                f"{self.path}: holds a run with other settings: {other}; choose another --out, or ask for the same "
                "settings"
            )

    def rows(self) -> Rows:
        """Return the rows of the record; without an end, those too that its checkpoint has after those of the parts.

        Where there are more in parts by now, these hold the checkpoint's as well.
        """
        parts = read_all(self.path, "rows")
        found = None if self.has_summary() else self._written()
        if not found or not found.packed:
            return parts
        tail, counted = found.tail, {name: found.extents.get(name, Extent()).rows for name in parts}
        return {
            name: pa.concat_tables([rows, tail[name]]) if rows.num_rows == counted[name] else rows
            for name, rows in parts.items()
        }

    def column_rows(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return these columns of the record's rows of one type, with those that its checkpoint alone has.

        Rows that came to be parts after that checkpoint are there twice, as parts the second time.
        """
        columns, found = list(columns), self._written()
        parts = read_rows(self.path, name, columns=columns)
        return pa.concat_tables([found.tail[name].select(columns), parts]) if found else parts

    def last_round(self, name: str) -> int:
        """Return the last round of rows of one type, those beyond the checkpoint among them; 0: there are none."""
        parts = read_rows(self.path, name, columns=["round"])["round"].to_pylist()
        return max([last_round(self.path, name), *parts])

    def so_far(self, name: str) -> pa.Table:
        """Return the rows of one type that were written through this object, those in no part yet among them."""
        return self._rows.so_far(name)

    def written(self) -> Rows:
        """Return the rows written through this object: of a continuation, those of its own."""
        return self._rows.written()

    def has_summary(self) -> bool:
        """Tell whether the run came to an end of any kind: a killed one did not."""
        return (self.path / self._summary).is_file()

    def summary(self) -> dict[str, Any]:
        """Return summary.json, or what was published of it; DataError if there is none yet."""
        name = self._summary
        found = self._json(name, self.unended)
        check_format(found, self.path / name)
        for fault in faults(found):
            raise self._damaged(name, "what a run writes", fault)
        return found

    def unended(self) -> str:
        """Return why a run has no summary, and what to do."""
        if written := is_written(self.path):
            return "another process is writing this run; wait for it, or stop it"
        what = "came to no end here" if written is None else "was killed"
        return f"the run {what}; continue it first: raydpzv resume {self.path}"

    def completed_by(self) -> str | None:
        """Return which budget ended the run; None if it was stopped, failed or was killed."""
        if not self.has_summary() or (summary := self.summary()).get("status") != "done":
            return None
        return str(summary.get("stopped_by") or "its budget is spent")

    @property
    def _summary(self) -> str:
        return _PUBLISHED if self.published else _SUMMARY

    def require_own_record(self) -> None:
        """Raise InputError if there is no more than what was published of a run."""
        if self.published:
            raise InputError(
                f"{self.path}: holds what was published of a run, which is too little to go on from or to run again; "
                "take the run's own folder"
            )

    def environment(self) -> dict[str, Any]:
        """Return environment.json."""
        return self._json(_ENVIRONMENT, lambda: "it was deleted; bring it back from a copy")

    def append(self, rows: Rows, *, keep: bool = False) -> None:
        """Add rows, see `FolderRows.append`. Raises RunError if they cannot be written."""
        with self._reported():
            self._rows.append(rows, keep=keep)

    def begin_leg(self) -> None:
        """Put the summary aside, if there is one: it knows nothing of what is released from now on."""
        older, found = self.path / _OLDER_SUMMARY, None if self.is_recomputed else self.checkpoint()
        self.updates_before = found.round if found else 0
        with self._reported():
            if self.has_summary():
                (self.path / _SUMMARY).replace(older)
            else:
                older.unlink(missing_ok=True)  # of a leg before one that was killed

    def commit_continuation(self, released: int = 0) -> bool:
        """Let a continuation take the place of what it continued, unless it did not come as far; say which.

        Both are beginnings of the same run, so the longer one holds every release of the shorter one; one that went
        back to a checkpoint has what came after it to make up for. released: how many there are in all, if that is
        known; a kill keeps rows from telling. Where it did not come as far all is as it was, the summary too.
        """
        made = self._commit(released)
        older = self.path / _OLDER_SUMMARY
        if not made and older.is_file():
            older.replace(self.path / _SUMMARY)
        return made

    def _commit(self, released: int = 0) -> bool:
        if self._rows.where == "rows":
            return not self._went_back or self._rows.extents.get("release", Extent()).rows >= released
        if _length(self.path, NEXT) < max(_length(self.path, "rows"), (released, 0)):
            shutil.rmtree(self.path / NEXT, ignore_errors=True)
            return False
        (self.path / "rows").rename(self.path / OLD)
        self._complete_commit()
        self._rows.where = "rows"
        return True

    def _complete_commit(self) -> None:
        """Finish what `commit_continuation` began, also when the process was killed in the midst of it."""
        rows, old = self.path / "rows", self.path / OLD
        if old.is_dir() and not rows.is_dir():
            source = self.path / NEXT
            (source if source.is_dir() else old).rename(rows)
        if old.is_dir():
            shutil.rmtree(old)

    def models(self) -> dict[str, np.ndarray]:
        """Return every party's flat parameters, float32 [d], by its name: those of models.npz. Raises DataError."""
        path = self.path / _MODELS
        try:
            with np.load(path) as stored:
                return {name.replace("_", " "): stored[name] for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise self._damaged(_MODELS, "parameters by party", error) from None

    def write_models(self, models: Mapping[str, np.ndarray]) -> None:
        """Write every party's flat parameters to models.npz."""
        write_npz(self.path / _MODELS, models)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json. Raises RunError if it cannot be written."""
        with self._reported():
            write_atomically(self.path / _SUMMARY, as_json(summary).encode())
            (self.path / _OLDER_SUMMARY).unlink(missing_ok=True)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Say where it was if a run's record cannot be written: the disk is full, or the folder not writable now."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot write the run's record ({error.strerror or error}); what is there stays: see to "
                f"the disk, then continue with: raydpzv resume {self.path}"
            ) from error

    def _take(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.path}: another process is writing this run; wait for it, or stop it"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror or error})") from None

    def _json(self, name: str, why: Callable[[], str]) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            raise DataError(f"{self.path}: has no {name}: {why()}")
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(name, "a JSON object", error) from None
        if not isinstance(value, dict):
            raise self._damaged(name, "a JSON object", f"it holds a {type(value).__name__}")
        return value

    def _damaged(self, name: str, wanted: str, why: object) -> DataError:
        reason = " ".join(str(why).split())[:150]
        return DataError(
            f"{self.path / name}: is damaged: wanted {wanted} ({reason}); bring it back from a copy, or run it again"
        )


def _delete_left_overs(hidden: Iterable[Path]) -> None:
    for path in hidden:
        if _LEFT_OVER.fullmatch(path.name):
            path.unlink()


def _length(path: Path, where: str) -> tuple[int, int]:
    rows = read_all(path, where)
    return rows["release"].num_rows, rows["service"].num_rows
