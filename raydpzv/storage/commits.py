"""Commits: what a folder is at a moment, file by file, in a file that is written last and never over another.

commits/<epoch>-<number>.json names each file of the folder by the objects that make it up, one after the other, with
their bytes and the sha256 of the whole; a sha256 of the commit ends it. Objects are below by-<epoch>/, where the writer
of that epoch alone writes, under the file's own name (later versions with ~1, ~2, ... behind it). The newest commit
that is whole counts: what a writer still writes that was taken over is of an older epoch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from raydpzv.errors import DataError
from raydpzv.storage.filesystem import StorageFolder

COMMITS, OBJECTS = "commits", "by-"
_FORMAT = 1
NO_NOISE, ANNOUNCED, TRIALS, UNBOUNDED = "none", "announced", "trials", "unbounded"
"""What may have been released with fresh noise beyond a commit: nothing, so many updates, all of a search's trials that
have not come to their end, or nobody knows."""


@dataclass(frozen=True)
class StoredFile:
    """A file: its bytes and sha256, and the objects that it consists of, each with its bytes."""

    size: int
    sha256: str
    pieces: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Commit:
    """A folder at a moment.

    kind: "run" or "search"; writer: who wrote it; noise: see `NO_NOISE`; covered: updates whose releases are in it;
    announced: updates that its writer may make before the next commit; over: nothing more is to come of this writer.
    """

    epoch: int
    number: int
    kind: str
    writer: str
    files: Mapping[str, StoredFile] = field(repr=False)
    noise: str = NO_NOISE
    covered: int = 0
    announced: int = 0
    over: bool = False

    @property
    def name(self) -> str:
        """The file's name in the storage."""
        return f"{COMMITS}/{self.epoch:08d}-{self.number:08d}.json"

    @property
    def objects(self) -> frozenset[str]:
        """The objects that it names."""
        return frozenset(name for file in self.files.values() for name, _ in file.pieces)

    def encoded(self) -> bytes:
        """Return the file's content."""
        facts = {"format": _FORMAT, **asdict(self)}
        text = json.dumps(facts, separators=(",", ":")).encode()
        return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"


def latest(place: StorageFolder) -> Commit | None:
    """Return the newest commit that is whole; None if there is none. Raises DataError if all are damaged."""
    for _ in range(_TRIES):
        names = place.names(COMMITS)
        found = next(_whole(place, names), None)
        if found or not names:
            return found
        if place.names(COMMITS) == names:  # else a writer has deleted what was listed
            break
    raise DataError(f"{place.uri}: all its commits are damaged; bring it back from a copy")


_TRIES = 10
"""Times that a storage is listed anew which is being written meanwhile."""


def _whole(place: StorageFolder, names: list[str]) -> Iterator[Commit]:
    for name in reversed(names):
        data = place.read(f"{COMMITS}/{name}")
        if data is not None and (found := _decoded(place, data)):
            yield found


def _decoded(place: StorageFolder, data: bytes) -> Commit | None:
    text, _, signature = data.rstrip(b"\n").rpartition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != signature:
        return None
    facts: dict[str, Any] = json.loads(text)
    if (found := facts.pop("format")) != _FORMAT:
        raise DataError(f"{place.uri}: has format {found!r}, this program reads {_FORMAT}")
    files = {
        path: StoredFile(file["size"], file["sha256"], tuple((name, size) for name, size in file["pieces"]))
        for path, file in facts.pop("files").items()
    }
    return Commit(files=files, **facts)


def content(place: StorageFolder, path: str, file: StoredFile) -> bytes | None:
    """Return a file of a commit; None if an object is gone. Raises DataError if it is damaged."""
    pieces = [place.read(name) for name, _ in file.pieces]
    if any(piece is None for piece in pieces):
        return None
    data = b"".join(piece for piece in pieces if piece is not None)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DataError(
            f"{place.uri}: {path} is damaged there (its sha256 differs); bring it back from a copy"
        )
    return data


def commit_names(place: StorageFolder) -> list[str]:
    """Return the names of all commits."""
    return [f"{COMMITS}/{name}" for name in place.names(COMMITS)]


def newest_epoch(place: StorageFolder) -> int:
    """Return the newest epoch of all commits, whole or not; 0 if there is none."""
    return max((int(name[:8]) for name in place.names(COMMITS) if name[:8].isdigit()), default=0)
