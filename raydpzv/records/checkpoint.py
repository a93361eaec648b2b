"""Checkpoints: a run's state at a moment, and the rows up to it.

The ledger holds the updates and the key the rest, so a checkpoint of rounds is a few numbers (and
the weights, where a method sends weights). A run without rounds also keeps the messages under way
and the state of its roles. A checkpoint is written after its rows, in one piece, and the one before
it stays. A reader uses that one if the last is damaged. A resumed run drops the rows beyond its
checkpoint.

The file: a line with the sha256 of what follows, a line of JSON, and the bytes of its arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.errors import DataError
from raydpzv.files import no_link
from raydpzv.records.checkpoint_codec import packed, unpacked
from raydpzv.records.store import Extent, Packed, Rows, unpacked_rows
from raydpzv.records.write_ahead_log import LogExtent, read_log

CHECKPOINT = "checkpoint.state"
"""Its name in a run's folder."""
_OTHERS = ValueError, TypeError, AttributeError, KeyError, IndexError
"""Exceptions of reading an intact file with other content, such as that of another version."""
_DIGEST = re.compile(rb"[0-9a-f]{64}\n")
_SIGNED = 65
"""Bytes of the first line: a sha256 in hexadecimal digits, and the line's end."""


@dataclass(frozen=True)
class Checkpoint:
    """Updates so far; the run's state (see `raydpzv.records.checkpoint_codec`); the weights,
    float32 [d], or None.
    """

    round: int
    state: Mapping[str, Any]
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Written:
    """A checkpoint, its rows (by type the first parts, and a log), and the identity of its run."""

    checkpoint: Checkpoint
    extents: Mapping[str, Extent]
    log: LogExtent | None
    run: str


@dataclass(frozen=True)
class Found(Written):
    """The same, with its file, the digest of the file's content, and the rows of the log as
    bytes.
    """

    place: Path
    sha256: str
    packed: Packed

    @cached_property
    def tail(self) -> Rows:
        """The rows of the log, of every type, without a copy."""
        return unpacked_rows(self.packed)


Piece = tuple[Rows, Checkpoint | None]
"""Rows, and a checkpoint that follows them."""


def write_checkpoint(
    path: Path,
    checkpoint: Checkpoint,
    extents: Mapping[str, Extent],
    log: LogExtent | None = None,
    run: str = "",
) -> int:
    """Write a checkpoint that names its rows; return its size. The one before it is kept.

    log: the rows after those of the parts; run: the run's identity.
    """
    state, arrays = packed([checkpoint.state, checkpoint.weights])
    facts = {
        "run": run,
        "round": checkpoint.round,
        "state": state,
        "extents": {name: astuple(extent) for name, extent in extents.items()},
        "log": log and astuple(log),
    }
    line = f"{json.dumps(facts)}\n".encode()
    digest = hashlib.sha256(line)
    digest.update(arrays)
    pieces = f"{digest.hexdigest()}\n".encode() + line, arrays
    _put(path, *pieces)
    return sum(map(len, pieces))


def _put(path: Path, *pieces: bytes) -> None:
    """Write a file in one piece and keep the one before it; at each moment there is an intact one.

    The one before the last is overwritten. A new file, or a name that replaces a file's only name,
    costs seven times as much.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    if path.is_file():
        _make_room(before(path), scratch)
    try:
        _write(scratch, pieces)
        if path.is_file():
            _keep(path, before(path))
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def _make_room(older: Path, scratch: Path) -> None:
    """Let an older checkpoint's file be overwritten, unless it has another name too."""
    try:
        alone = older.stat().st_nlink == 1
    except FileNotFoundError:
        return
    if alone:
        older.rename(scratch)
    else:
        older.unlink()


def _keep(path: Path, place: Path) -> None:
    """Keep a file that is replaced next under another name."""
    try:
        os.link(path, place)
    except OSError:  # a file system without links
        scratch = place.with_name(f".{place.name}.{os.getpid()}")
        _write(scratch, [path.read_bytes()])
        scratch.replace(place)


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    with open(path, "wb", buffering=0, opener=_not_cut) as file:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[file.write(left) :]
        file.truncate()


def _not_cut(name: str, flags: int) -> int:
    """Open a file to overwrite its bytes; only its owner may read it."""
    return no_link()(name, flags & ~os.O_TRUNC)


def before(path: Path) -> Path:
    """Return the path of the checkpoint before the last one."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def read_checkpoint(path: Path, run: str = "", *, only_last: bool = False) -> Found | None:
    """Return the last checkpoint that can be read with its rows, or None if there is none.

    run: the identity that it must have. Raises DataError if all are damaged or of another run. With
    `only_last` it also raises if the last one is damaged, missing or of another run.
    """
    last, older = path.is_file(), before(path).is_file()
    if not last and not older:
        return None
    if only_last and not last:
        raise DataError(
            f"{path}: is missing, and {before(path).name}, which knows of less, is no place to "
            "continue from: restore it from a copy, or start a new run"
        )
    damage = None
    for place in (path, before(path))[: 1 if only_last else 2]:
        if place.is_file():
            try:
                return _found(place, run)
            except DataError as error:
                damage = damage or error
    assert damage is not None
    raise damage


def read_before(path: Path, run: str) -> Found | None:
    """Return the checkpoint before the last one; None where it is missing, damaged, or of another
    run.
    """
    try:
        return _found(before(path), run)
    except DataError:
        return None


def settle(path: Path, found: Found) -> None:
    """Make the checkpoint that a run resumes from the last one, if the one after it is damaged or
    missing.
    """
    if found.place != path:
        found.place.replace(path)


def _found(place: Path, run: str) -> Found:
    written, sha256 = _parsed(place)
    if written.run != run:
        raise DataError(
            f"{place}: is a checkpoint of another run; the run cannot continue: restore its own "
            "from a copy, or start a new one"
        )
    rows = read_log(place.parent, written.log) if written.log else b""
    return Found(written.checkpoint, written.extents, written.log, run, place, sha256, rows)


def _signed(path: Path) -> tuple[bytes, str]:
    """Return a file's content and its digest, which is looked at before the content is in memory."""
    try:
        with path.open("rb") as file:
            signed = file.read(_SIGNED)
            fits = _DIGEST.fullmatch(signed)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest() if fits else ""
            if signed != f"{sha256}\n".encode():
                raise _unreadable(path, "its sha256 does not fit its content")
            file.seek(_SIGNED)
            return file.read(), sha256
    except OSError as error:
        raise _unreadable(path, error) from None


def _parsed(path: Path) -> tuple[Written, str]:
    """Return a file's content and its digest."""
    body, sha256 = _signed(path)
    head, _, arrays = body.partition(b"\n")
    try:
        facts = json.loads(head)
        state, weights = unpacked(facts["state"], arrays)
        extents = {str(name): Extent(*values) for name, values in facts["extents"].items()}
        log = LogExtent(*facts["log"]) if facts["log"] else None
        checkpoint = Checkpoint(facts["round"], state, weights)
        return Written(checkpoint, extents, log, str(facts["run"])), sha256
    except _OTHERS as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, why: object) -> DataError:
    reason = " ".join(str(why).split())[:150]
    return DataError(f"{path}: cannot be read ({reason}); the run cannot continue, start a new one")
