"""A run's folder: scenario, environment, rows, models, summary."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml, load
from raydpzv.errors import DataError, InputError
from raydpzv.files import as_json, write_atomically
from raydpzv.records.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from raydpzv.records.store import Rows, append_rows, count_parts, cut_parts, read_all

NEXT, OLD = "rows.next", "rows.old"
"""A continued run writes its rows to the first until it has ended; the second is what they then replace."""
_CHECKPOINT = "checkpoint.npz"
_CONTENTS = ("scenario.toml", "rows", NEXT, OLD, "ledger", _CHECKPOINT, "models.npz", "summary.json")


class RunFolder:
    """Creates and fills one run's folder; everything is written atomically, so a reader never sees a half file.

    A folder that is written to is locked: one process at a time. Use as a context manager to let go of it.
    """

    def __init__(self, path: Path, where: str = "rows") -> None:
        self.path = path
        self._where = where
        self._lock = FileLock(path / ".lock")

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *details: object) -> None:
        self._lock.release(force=True)

    @classmethod
    def create(cls, path: Path, spec: AnyScenario, environment: Mapping[str, Any]) -> RunFolder:
        """Make the folder (it must not hold a run yet) and write what is known before the start."""
        try:
            if held := [name for name in _CONTENTS if (path / name).exists()]:
                raise InputError(
                    f"{path}: holds a run already ({held[0]}); choose another --out, or delete it"
                )
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            folder = cls(path)
            folder._take()
            (path / "rows").mkdir()
            write_atomically(path / "scenario.toml", as_toml(spec).encode())
            write_atomically(path / "environment.json", as_json(environment).encode())
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the run folder ({error.strerror or error}); choose another --out"
            ) from None
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run's folder for reading."""
        if not (path / "scenario.toml").is_file():
            raise DataError(f"{path}: not a run folder (no scenario.toml in it); give the folder of a run")
        return cls(path)

    @classmethod
    def continued(cls, path: Path) -> RunFolder:
        """Open an existing run's folder for a continuation, which writes beside the record until it has ended."""
        cls.open(path)
        folder = cls(path, NEXT)
        folder._take()
        folder._complete_commit()
        if (path / NEXT).is_dir():
            folder.commit_continuation()
            folder._where = NEXT
        return folder

    @classmethod
    def reopened(cls, path: Path) -> RunFolder:
        """Open an existing run's folder to go on from its checkpoint: rows beyond it are dropped."""
        cls.open(path)
        folder = cls(path)
        folder._take()
        found = read_checkpoint(path / _CHECKPOINT)
        cut_parts(path, found[1] if found else {})
        return folder

    @property
    def ledger(self) -> Path:
        """Where the run's ledger is."""
        return self.path / "ledger"

    def checkpoint(self) -> Checkpoint | None:
        """Return the place from which a run of rounds can go on, if one was written."""
        found = read_checkpoint(self.path / _CHECKPOINT)
        return found[0] if found else None

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write the place from which the run can go on, which stands for all rows written so far."""
        write_checkpoint(self.path / _CHECKPOINT, checkpoint, count_parts(self.path))

    def spec(self) -> AnyScenario:
        """Return the resolved scenario."""
        return load(self.path / "scenario.toml")

    def rows(self) -> Rows:
        """Return the rows of the record."""
        return read_all(self.path, "rows")

    def written(self) -> Rows:
        """Return the rows written through this object: of a continuation, those of its own."""
        return read_all(self.path, self._where)

    def summary(self) -> dict[str, Any]:
        """Return summary.json; DataError if the run has not written one."""
        return self._json("summary.json", "the run was killed before it could end")

    def environment(self) -> dict[str, Any]:
        """Return environment.json."""
        return self._json("environment.json", "it was deleted")

    def append(self, rows: Rows) -> None:
        """Add rows."""
        append_rows(self.path, rows, self._where)

    def commit_continuation(self, released: int = 0) -> bool:
        """Let a continuation take the place of what it continued, unless it did not come as far; say which.

        Both are beginnings of the same run, so the longer one holds every release of the shorter one. released: how
        many there are in all, if that is known; a kill keeps rows from telling.
        """
        if self._where == "rows":
            return True
        if _length(self.path, NEXT) < max(_length(self.path, "rows"), (released, 0)):
            shutil.rmtree(self.path / NEXT, ignore_errors=True)
            return False
        (self.path / "rows").rename(self.path / OLD)
        self._complete_commit()
        self._where = "rows"
        return True

    def _complete_commit(self) -> None:
        """Finish what `commit_continuation` began, also when the process was killed in the midst of it."""
        rows, old = self.path / "rows", self.path / OLD
        if old.is_dir() and not rows.is_dir():
            source = self.path / NEXT
            (source if source.is_dir() else old).rename(rows)
        if old.is_dir():
            shutil.rmtree(old)

    def write_models(self, models: Mapping[str, np.ndarray]) -> None:
        """Write every party's flat parameters to models.npz."""
        write_npz(self.path / "models.npz", models)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_atomically(self.path / "summary.json", as_json(summary).encode())

    def _take(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.path}: another process is writing this run; wait for it, or stop it"
            ) from None

    def _json(self, name: str, why: str) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            raise DataError(f"{self.path}: has no {name}: {why}")
        try:
            value = json.loads(path.read_text())
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise DataError(f"{path}: is damaged: wanted a JSON object")
        return value


def _length(path: Path, where: str) -> tuple[int, int]:
    rows = read_all(path, where)
    return rows["release"].num_rows, rows["service"].num_rows


def write_npz(path: Path, models: Mapping[str, np.ndarray]) -> None:
    """Write parameters by party ("client 0" as client_0) to one file; InputError if it cannot be written."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a file; choose another name for the models")
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name.replace(" ", "_"): values for name, values in models.items()}
    np.savez(buffer, **arrays)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise InputError(f"{path}: cannot write the models ({error.strerror or error})") from None
