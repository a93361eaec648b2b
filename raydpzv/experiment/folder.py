"""A run's folder: scenario, environment, rows, models, summary."""

from __future__ import annotations

import io
import json
import math
import os
import platform
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raydpzv import __version__
from raydpzv.errors import DataError, InputError
from raydpzv.experiment.spec import Spec
from raydpzv.experiment.toml import as_toml, load
from raydpzv.records.store import Rows, append_rows, read_all, write_atomically

LIBRARIES = ("torch", "numpy", "numba", "pyarrow", "scikit-learn", "dp-accounting", "ray")


NEXT, OLD = "rows.next", "rows.old"
"""A continued run writes its rows to the first until it has ended; the second is what they then replace."""


class RunFolder:
    """Creates and fills one run's folder; everything is written atomically, so a reader never sees a half file."""

    def __init__(self, path: Path, where: str = "rows") -> None:
        self.path = path
        self._where = where

    @classmethod
    def create(cls, path: Path, spec: Spec, runner: str, device: str) -> RunFolder:
        """Make the folder (it must not hold a run yet) and write what is known before the start."""
        if (path / "scenario.toml").exists():
            raise InputError(f"{path}: holds a run already; choose another --out, or delete it")
        try:
            (path / "rows").mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            write_atomically(path / "scenario.toml", as_toml(spec).encode())
            write_atomically(path / "environment.json", as_json(environment(spec, runner, device)).encode())
        except OSError as error:
            raise InputError(
                f"{path}: cannot write the run folder ({error.strerror or error}); choose another --out"
            ) from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run's folder."""
        if not (path / "scenario.toml").is_file():
            raise DataError(f"{path}: not a run folder (no scenario.toml in it); give the folder of a run")
        folder = cls(path)
        folder._complete_settling()
        return folder

    def spec(self) -> Spec:
        """Return the resolved scenario."""
        return load(self.path / "scenario.toml")

    def rows(self) -> Rows:
        """Return all rows."""
        return read_all(self.path, self._where)

    def summary(self) -> dict[str, Any]:
        """Return summary.json; DataError if the run has not written one."""
        path = self.path / "summary.json"
        if not path.is_file():
            raise DataError(f"{self.path}: has no summary.json: the run was killed before it could end")
        return dict(json.loads(path.read_text()))

    def append(self, rows: Rows) -> None:
        """Add rows."""
        append_rows(self.path, rows, self._where)

    def settle(self) -> None:
        """Let the rows of a run that was continued take the place of those it began with."""
        if self._where == "rows":
            return
        (self.path / "rows").rename(self.path / OLD)
        self._complete_settling()
        self._where = "rows"

    def _complete_settling(self) -> None:
        """Finish what `settle` began, also when the process was killed in the midst of it."""
        rows, old = self.path / "rows", self.path / OLD
        if old.is_dir() and not rows.is_dir():
            (self.path / NEXT).rename(rows)
        if old.is_dir():
            shutil.rmtree(old)

    def write_models(self, models: Mapping[str, np.ndarray]) -> None:
        """Write every party's flat parameters to models.npz."""
        write_npz(self.path / "models.npz", models)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_atomically(self.path / "summary.json", as_json(summary).encode())


def write_npz(path: Path, models: Mapping[str, np.ndarray]) -> None:
    """Write parameters by party ("client 0" as client_0) to one file; InputError if it cannot be written."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name.replace(" ", "_"): values for name, values in models.items()}
    np.savez(buffer, **arrays)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise InputError(f"{path}: cannot write the models ({error.strerror or error})") from None


def environment(spec: Spec, runner: str, device: str) -> dict[str, Any]:
    """Return what a result depends on besides the scenario."""
    return {
        "raydpzv": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "device": device,
        "runner": runner,
        "seed": spec.seed,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    found = {"raydpzv": __version__}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def as_json(value: Any) -> str:
    """Return indented JSON. NaN becomes null and infinity the word, since JSON has neither."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else "infinity"
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
