"""Manifests: all files of a folder at one moment, written last and never overwritten.

commits/<epoch>-<number>.json names each file of the folder by its objects, one after the other,
with their bytes and the sha256 of the whole file. A sha256 of the manifest ends it. Objects lie
below by-<epoch>/, where only the writer of that epoch writes, under the file's own name (later
versions with ~1, ~2, ... behind it). The newest complete manifest counts. A writer that lost its
lease has an older epoch, so its manifests count for nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from raydpzv.errors import DataError, NotRecomputable
from raydpzv.storage.filesystem import StorageFolder

MANIFESTS, OBJECTS = "commits", "by-"
_FORMAT = 1
NO_NOISE, FRESH_NOISE = "none", "fresh"
"""Whether the writer draws noise of the system, which a second run would draw anew."""
_TRIES = 10
"""Listings of a storage that another process writes meanwhile."""


@dataclass(frozen=True)
class StoredFile:
    """A file: its bytes, its sha256, and the objects that it consists of, each with its bytes."""

    size: int
    sha256: str
    pieces: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Manifest:
    """A folder at one moment.

    kind: "run" or "search"; writer: the id of the lease; noise: see `NO_NOISE`; over: the writer
    ends here and has uploaded all that it has.
    """

    epoch: int
    number: int
    kind: str
    writer: str
    files: Mapping[str, StoredFile] = field(repr=False)
    noise: str = NO_NOISE
    over: bool = False

    @property
    def name(self) -> str:
        """The file's name in the storage."""
        return f"{MANIFESTS}/{self.epoch:08d}-{self.number:08d}.json"

    @property
    def objects(self) -> frozenset[str]:
        """The objects that it names."""
        return frozenset(name for file in self.files.values() for name, _ in file.pieces)

    def encoded(self) -> bytes:
        """Return the file's content."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":")).encode()
        return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"


def latest(storage: StorageFolder) -> Manifest | None:
    """Return the newest complete manifest; None if there is none. Raises DataError if all are
    damaged.
    """
    for _ in range(_TRIES):
        names = storage.names(MANIFESTS)
        for name in reversed(names):
            data = storage.read(f"{MANIFESTS}/{name}")
            if data is not None and (found := _decoded(storage, data)):
                return found
        if not names:
            return None
        if storage.names(MANIFESTS) == names:  # else a writer has deleted those that were listed
            break
    raise DataError(f"{storage.uri}: all its manifests are damaged; restore it from a copy")


def _decoded(storage: StorageFolder, data: bytes) -> Manifest | None:
    text, _, signature = data.rstrip(b"\n").rpartition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != signature:
        return None
    facts: dict[str, Any] = json.loads(text)
    if (found := facts["format"]) != _FORMAT:
        raise DataError(f"{storage.uri}: has format {found!r}, this program reads {_FORMAT}")
    facts["files"] = {
        path: StoredFile(
            file["size"], file["sha256"], tuple((name, size) for name, size in file["pieces"])
        )
        for path, file in facts["files"].items()
    }
    return Manifest(**{each.name: facts[each.name] for each in fields(Manifest)})


def require_repeatable(storage: StorageFolder, base: Manifest) -> None:
    """Raise NotRecomputable where the writer may have released noise of the system after a
    manifest.

    A run that resumes from the manifest would make the same updates with other noise: two releases,
    one of them charged. A newer manifest that is damaged shows that the writer continued after this
    one.
    """
    if base.noise == NO_NOISE:
        return
    newer = any(f"{MANIFESTS}/{name}" > base.name for name in storage.names(MANIFESTS))
    if base.over and not newer:
        return
    raise NotRecomputable(
        f"{storage.uri}: this {base.kind} draws its noise from the system, and its writer did not "
        "end cleanly: the releases after its last upload are not in the storage, and would be "
        "drawn a second time and not charged; resume on the machine that wrote it: raydpzv resume "
        "FOLDER; or start a new one in another storage"
    )


def content(storage: StorageFolder, path: str, file: StoredFile) -> bytes | None:
    """Return a file of a manifest; None if an object is gone. Raises DataError if it is damaged."""
    pieces = [storage.read(name) for name, _ in file.pieces]
    if any(piece is None for piece in pieces):
        return None
    data = b"".join(piece for piece in pieces if piece is not None)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DataError(
            f"{storage.uri}: {path} is damaged (its sha256 differs); restore it from a copy"
        )
    return data


def newest_epoch(storage: StorageFolder) -> int:
    """Return the newest epoch of all manifests, complete or not; 0 if there is none."""
    return max(
        (int(name[:8]) for name in storage.names(MANIFESTS) if name[:8].isdigit()), default=0
    )
