"""Where a run can go on: its state at a moment, and the rows up to it.

The ledger holds the updates, the key the rest; so a checkpoint of rounds is a few numbers (and the weights, where a
method sends weights). One of a run without rounds holds the messages under way, too, and what its roles keep. It is
written after its rows, in one piece, beside the one before it, which is taken if it is damaged. Rows beyond it are
dropped when the run goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from raydpzv.errors import DataError
from raydpzv.records.packed_rows import unpacked_rows
from raydpzv.records.row_log import LogExtent, read_log
from raydpzv.records.state_tree import packed, unpacked
from raydpzv.records.store import Extent, Rows

_FAULTS = (
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    IndexError,
    OSError,
    EOFError,
    RuntimeError,
    SyntaxError,
)
"""What zip and npy readers raise for bytes that are not theirs, beside BadZipFile."""


@dataclass(frozen=True)
class Checkpoint:
    """After how many updates; the run's state, see `raydpzv.records.state_tree`; the weights, float32 [d], or None."""

    round: int
    state: Mapping[str, Any]
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Written:
    """A checkpoint, and the rows that it stands for: those of the first parts, by type, and of a log."""

    checkpoint: Checkpoint
    extents: Mapping[str, Extent]
    log: LogExtent | None = None


@dataclass(frozen=True)
class Found(Written):
    """The same, with the rows of the log as bytes."""

    packed: bytes = b""

    @property
    def tail(self) -> Rows:
        """Return the rows of the log, of every type; parsed anew each time."""
        return unpacked_rows(self.packed)


_EXTENT = ("parts", "rows", "digest")
"""What a checkpoint says of each row type. Those of earlier versions have no digests, older ones no numbers of rows."""

_SIGNATURE = "sha256"
_NOTHING = np.zeros(0, np.uint8)

Piece = tuple[Rows, Checkpoint | None]
"""Rows, and where the run can go on after them."""


def write_checkpoint(
    path: Path, checkpoint: Checkpoint, extents: Mapping[str, Extent], log: LogExtent | None = None
) -> int:
    """Write a checkpoint that says which rows it stands for; return its size. The one before it is kept.

    log: of rows after those of the parts.
    """
    state, data = packed(checkpoint.state)
    facts: dict[str, Any] = {"round": checkpoint.round, "state": state}
    for kind in _EXTENT:
        facts[kind] = {name: getattr(extent, kind) for name, extent in extents.items()}
    if log:
        facts["log"] = [log.number, log.size, log.sha256]
    held = {"data": data, "facts": json.dumps(facts).encode()}
    arrays = {name: np.frombuffer(content, np.uint8) for name, content in held.items()}
    if checkpoint.weights is not None:
        arrays["weights"] = checkpoint.weights
    arrays[_SIGNATURE] = np.frombuffer(_signature(arrays), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    _put(path, buffer.getbuffer())
    return buffer.tell()


def _put(path: Path, data: memoryview) -> None:
    """Write a file in one piece and keep the one before it, in the place of whose own forerunner it is written.

    Three names take turns, and none takes the place of another: that, and new files, cost four times as much.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    if before(path).is_file():
        before(path).rename(scratch)
    try:
        with open(scratch, "wb", buffering=0, opener=_not_cut) as file:
            written = 0
            while written < len(data):
                written += file.write(data[written:])
            file.truncate()
        if path.is_file():
            path.rename(before(path))
        scratch.rename(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def _not_cut(name: str, flags: int) -> int:
    """Open a file whose bytes are written over, of which nobody else may read any."""
    return os.open(name, flags & ~os.O_TRUNC, 0o600)


def before(path: Path) -> Path:
    """Return where the checkpoint before the last one is."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def read_checkpoint(path: Path, *, only_last: bool = False) -> Found | None:
    """Return the last checkpoint that can be read with its rows, or None if there is none.

    Raises DataError if all are damaged, with `only_last` also if the last one is.
    """
    found, damage = None, None
    for place in (path, before(path)):
        if place.is_file() and not (damage and only_last):
            try:
                written = _read(place)
                held = read_log(path.parent, written.log) if written.log else b""
                found = Found(written.checkpoint, written.extents, written.log, held)
                break
            except DataError as error:
                damage = damage or error
    if found is None and damage is not None:
        raise damage
    return found


def log_of(file: IO[bytes], path: Path) -> LogExtent | None:
    """Return of which log a checkpoint tells. Raises DataError, which names this path, unless it is a whole one."""
    return _read(path, file).log


def _read(path: Path, file: IO[bytes] | None = None) -> Written:
    try:
        with np.load(file or path) as stored:
            arrays = {name: stored[name] for name in stored.files}
        facts = json.loads(arrays["facts"].tobytes())
        weights, data = arrays.get("weights"), arrays.get("data", _NOTHING).tobytes()
        if _SIGNATURE in arrays:
            signed = arrays.pop(_SIGNATURE).tobytes() == _signature(arrays)
        else:
            signed = facts.pop("sha256") == _older_sha256(facts, data, weights)
        if not signed:
            raise ValueError("its sha256 does not fit its content")
        state = unpacked(facts["state"], data)
        parts, rows, digests = (facts.get(kind, {}) for kind in _EXTENT)
        extents = {
            str(name): Extent(
                int(count),
                int(rows[name]) if name in rows else None,
                str(digests[name]) if name in digests else None,
            )
            for name, count in parts.items()
        }
        if "tail" in arrays:
            raise ValueError("it holds rows itself, as those of an earlier version did")
        log = LogExtent(*facts["log"]) if "log" in facts else None
        return Written(Checkpoint(facts["round"], state, weights), extents, log)
    except (*_FAULTS, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:150]
        raise DataError(f"{path}: cannot be read ({reason}); the run cannot go on, start a new one") from None


def _signature(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The digest of arrays, of their names, types and shapes."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.digest()


def _older_sha256(facts: dict[str, Any], data: bytes, weights: np.ndarray | None) -> str:
    """The digest of a checkpoint without a signature: of the facts in their order, and of the arrays."""
    values = [value for name, value in facts.items() if name != "weighted"]
    held = b"" if weights is None else weights.tobytes()
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode() + held + data).hexdigest()
