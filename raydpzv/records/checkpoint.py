"""Where a run can go on: its state at a moment, and the rows up to it.

The ledger holds the updates, the key the rest; so a checkpoint of rounds is a few numbers (and the weights, where a
method sends weights). One of a run without rounds holds the messages under way, too, and what its roles keep. It is
written after its rows, in one piece, beside the one before it, which is taken if it is damaged. Rows beyond it are
dropped when the run goes on.

The file: a line with the sha256 of what follows, a line of JSON, and the bytes of its arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.errors import DataError
from raydpzv.records.packed_rows import unpacked_rows
from raydpzv.records.row_log import LogExtent, read_log
from raydpzv.records.state_tree import packed, unpacked
from raydpzv.records.store import Extent, Rows

CHECKPOINT = "checkpoint.state"
"""Where it is in a run's folder."""
_SIGNED = 65
"""Bytes of the first line: a sha256 in hexadecimal digits, and the line's end."""


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


Piece = tuple[Rows, Checkpoint | None]
"""Rows, and where the run can go on after them."""


def write_checkpoint(
    path: Path, checkpoint: Checkpoint, extents: Mapping[str, Extent], log: LogExtent | None = None
) -> int:
    """Write a checkpoint that says which rows it stands for; return its size. The one before it is kept.

    log: of rows after those of the parts.
    """
    state, arrays = packed([checkpoint.state, checkpoint.weights])
    facts = {
        "round": checkpoint.round,
        "state": state,
        "extents": {name: astuple(extent) for name, extent in extents.items()},
        "log": log and astuple(log),
    }
    body = b"".join([json.dumps(facts).encode(), b"\n", arrays])
    head = f"{hashlib.sha256(body).hexdigest()}\n".encode()
    _put(path, head, body)
    return len(head) + len(body)


def _put(path: Path, *pieces: bytes) -> None:
    """Write a file in one piece and keep the one before it, in the place of whose own forerunner it is written.

    Three names take turns, and none takes the place of another: that, and new files, cost four times as much.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    if before(path).is_file():
        before(path).rename(scratch)
    try:
        with open(scratch, "wb", buffering=0, opener=_not_cut) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
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
    if found is None and (old := path.with_suffix(".npz")).is_file():
        damage = _unreadable(old, "an earlier version wrote it")
    if found is None and damage is not None:
        raise damage
    return found


def log_of(data: bytes, path: Path) -> LogExtent | None:
    """Return of which log a checkpoint's bytes tell. Raises DataError, which names this path, unless they are whole."""
    return _parsed(data, path).log


def _read(path: Path) -> Written:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    return _parsed(data, path)


def _parsed(data: bytes, path: Path) -> Written:
    body = data[_SIGNED:]
    if data[:_SIGNED] != f"{hashlib.sha256(body).hexdigest()}\n".encode():
        raise _unreadable(path, "its sha256 does not fit its content")
    head, _, arrays = body.partition(b"\n")
    try:
        facts = json.loads(head)
        state, weights = unpacked(facts["state"], arrays)
        extents = {str(name): Extent(*values) for name, values in facts["extents"].items()}
        log = LogExtent(*facts["log"]) if facts["log"] else None
        return Written(Checkpoint(facts["round"], state, weights), extents, log)
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        IndexError,
    ) as error:  # as another version writes it
        raise _unreadable(path, error) from None


def _unreadable(path: Path, why: object) -> DataError:
    reason = " ".join(str(why).split())[:150]
    return DataError(f"{path}: cannot be read ({reason}); the run cannot go on, start a new one")
