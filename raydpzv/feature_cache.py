"""A frozen part of a model as data: computed once per record, kept in a file, and read from
there.
"""

# D records, B of a batch

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from filelock import FileLock

from raydpzv.data.own_arrays import numbers_of
from raydpzv.errors import DataError, InputError
from raydpzv.files import as_json, file_sha256, write_atomically
from raydpzv.foreign import source_digest
from raydpzv.lazy_import import torch

_SAID_EVERY = 10.0
"""Seconds between two lines of progress."""
_READ_ONLY = 0o444

Progress = Callable[[int, int, float], None]
"""(records done, records in all, seconds so far) to what is said."""


def features(
    module: Any,
    x: Any,
    *,
    batch: int = 64,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return what a frozen module makes of each record, float32 [D, ...], as a read-only
    memory-mapped file.

    module: an nn.Module, used as in evaluation, without gradients. x: its records, an array or
    tensor [D, ...]. The file is named by a digest of module, records, batch and torch's version,
    and a later call with the same digest reads
    it. folder: where files are kept; None: `raydpzv/features` in the user's cache folder. progress:
    told after a batch, every ten seconds at most; None: a line on stderr. The bits depend on the
    processor and on torch's number of threads, too, so a run that resumes wants the file that it
    started with. Raises InputError for a module that fails, that is random, that lacks a token id,
    or whose features of a record depend on others of a batch that differ, and for a folder without
    room; DataError for records that are no numbers.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"features: wanted an nn.Module, got {type(module).__name__}")
    if not isinstance(batch, int) or batch < 1:
        raise InputError(f"features: batch wants a whole number of at least 1, got {batch!r:.60}")
    rows = numbers_of(x, "x")
    if rows.ndim < 2 or not len(rows):
        raise DataError(
            f"features: x has the shape {rows.shape}: wanted at least one record, [D, ...]"
        )
    home = Path(folder) if folder is not None else _cache()
    made_of = {
        "module": source_digest(module),
        "records": _sha256(rows),
        "batch": batch,
        "torch": torch.__version__,
    }
    path = home / f"{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]}.npy"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not _is_whole(path):
                _compute(path, made_of, _Prefix(module, rows, batch), progress or _say)
    except OSError as error:
        raise InputError(
            f"features: cannot write {path} ({error.strerror or error}); give a folder with room "
            "for it (features(..., folder=...)), or set XDG_CACHE_HOME"
        ) from error
    return np.load(path, mmap_mode="r")


def _typed(module: Any, rows: np.ndarray) -> np.ndarray:
    """Return records as int64 to a module that takes whole numbers, else as float32. Raises
    DataError for what is neither.
    """
    from raydpzv.models.own_model import takes_whole_numbers  # loads torch

    kind = np.int64 if takes_whole_numbers(lambda: copy.deepcopy(module), rows.shape[1:]) else None
    with np.errstate(invalid="ignore", over="ignore"):
        found = rows.astype(kind or np.float32)
    wrong = found != rows if kind else ~np.isfinite(found)
    if wrong.any():
        row, *place = (int(n) for n in np.argwhere(wrong)[0])
        wanted = "whole numbers, which the module takes," if kind else "finite numbers"
        raise DataError(
            f"features: x has {rows[(row, *place)]:g} in row {row} (counted from 0), feature "
            f"{tuple(place)}: wanted {wanted} in each"
        )
    return found


class _Prefix:
    """A frozen module and the records that it is called on, always so many at a time.

    The last batch is filled up with its last record: a product's bits may depend on how many rows
    it has.
    """

    def __init__(self, module: Any, rows: np.ndarray, batch: int) -> None:
        self._module, self._rows, self._batch = module, rows, batch
        self.records = len(rows)

    def at(self, first: int) -> np.ndarray:
        """Return the features of the records from `first` on, float32 [B, ...]."""
        last = min(first + self._batch, self.records) - 1
        found = self._called(self._given(first), f"records {first} to {last}")
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        if not isinstance(found, torch.Tensor) or found.ndim < 2 or len(found) != self._batch:
            raise InputError(
                f"features: wanted a tensor [{self._batch}, ...] of {self._batch} records, got "
                f"{got}"
            )
        array: np.ndarray = found.to(torch.float32).cpu().numpy()[: self.records - first]
        if not np.isfinite(array).all():
            row = first + int(np.argwhere(~np.isfinite(array))[0][0])
            raise InputError(
                f"features: record {row} has features that are not finite; look at its values"
            )
        return array

    def set_type(self) -> None:
        """Give the records the type that the module takes."""
        self._rows = _typed(self._module, self._rows)

    def check(self) -> None:
        """Refuse a module that is random, or that mixes records of a batch of distinct ones. Raises
        InputError.
        """
        from raydpzv.models.own_model import mixing_place  # loads torch

        x = self._tensor(self._distinct())
        found = self._called(x, distinct := "the first records that differ")
        if not torch.equal(found, self._called(x, distinct)):
            raise InputError(
                "features: two calls on the same records differ; leave out what is random, such as "
                "dropout that is on in evaluation"
            )
        if place := mixing_place(
            self._module, lambda mixed: self._called(mixed, distinct), x, found
        ):
            raise InputError(
                f"features: a record's features depend on the other records of its batch, {place}; "
                "leave out what mixes records, or use stored statistics"
            )

    def _distinct(self) -> np.ndarray:
        """Return the numbers of a batch of records, the first that differ: between equal ones no
        mixing is seen.
        """
        found: dict[bytes, int] = {}
        for number, row in enumerate(self._rows):
            found.setdefault(hashlib.sha256(row.tobytes()).digest(), number)
            if len(found) == self._batch:
                break
        return np.resize(list(found.values()), self._batch)

    def _given(self, first: int) -> torch.Tensor:
        return self._tensor(np.minimum(np.arange(first, first + self._batch), self.records - 1))

    def _tensor(self, ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._rows[ids]))

    def _called(self, x: torch.Tensor, records: str) -> torch.Tensor:
        try:
            with torch.no_grad():
                return cast("torch.Tensor", self._module(x.clone()))
        except Exception as error:  # whatever the user's forward raises is said in one line
            from raydpzv.models.own_model import unknown_id  # loads torch

            if unknown := unknown_id(self._module, lambda: self._module(x.clone())):
                raise InputError(f"features: {unknown}") from error
            text = " ".join(str(error).split())
            raise InputError(
                f"features: the module fails on {records}, {list(x.shape)} of {x.dtype} "
                f"({type(error).__name__}: {text})"
            ) from error

    def in_evaluation(self, compute: Callable[[], None]) -> None:
        """Call `compute` with all layers as in evaluation, and leave them as they were."""
        training = {name: layer.training for name, layer in self._module.named_modules()}
        try:
            self._module.eval()
            compute()
        finally:
            for name, layer in self._module.named_modules():
                layer.training = training[name]


def _compute(path: Path, made_of: dict[str, Any], prefix: _Prefix, say: Progress) -> None:
    """Write the features and, when all are there, what they were made of."""
    scratch = path.with_suffix(".part")

    def write() -> None:
        prefix.set_type()
        first = prefix.at(0)
        prefix.check()
        shape = (prefix.records, *first.shape[1:])
        need = 4 * int(np.prod(shape, dtype=np.int64))
        if need > (free := shutil.disk_usage(path.parent).free):
            raise InputError(
                f"features: {prefix.records:,} records need {need / 2**20:,.0f} MiB in "
                f"{path.parent}, which has {free / 2**20:,.0f}; give another folder"
            )
        kept = np.lib.format.open_memmap(scratch, "w+", np.float32, shape)
        started = said = time.perf_counter()
        done = len(first)
        kept[:done] = first
        while done < prefix.records:
            if (now := time.perf_counter()) - said > _SAID_EVERY:
                said = now
                say(done, prefix.records, now - started)
            found = prefix.at(done)
            kept[done : done + len(found)] = found
            done += len(found)
        kept.flush()

    try:
        prefix.in_evaluation(write)
        scratch.chmod(_READ_ONLY)
        digest = file_sha256(scratch)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    write_atomically(path.with_suffix(".json"), as_json(made_of | {"sha256": digest}).encode())


def _is_whole(path: Path) -> bool:
    """Return whether a file of features has the digest on record."""
    try:
        wanted = json.loads(path.with_suffix(".json").read_text())["sha256"]
    except (FileNotFoundError, ValueError, KeyError):
        return False
    return path.is_file() and file_sha256(path) == wanted


def _cache() -> Path:
    """Return the folder of features in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raydpzv" / "features"


def _sha256(rows: np.ndarray) -> str:
    digest = hashlib.sha256(f"{rows.dtype} {rows.shape} ".encode())
    for first in range(0, len(rows), 1024):
        digest.update(np.ascontiguousarray(rows[first : first + 1024]).tobytes())
    return digest.hexdigest()


def _say(done: int, records: int, seconds: float) -> None:
    left = seconds / done * (records - done)
    print(f"features: {done:,} of {records:,} records, about {left:,.0f} s left", file=sys.stderr)
