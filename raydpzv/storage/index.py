"""The index of a copy: every file of a folder at one moment, by the digest of its content.

objects/<sha256> holds a file's content and never changes. index/00000012-<writer>.json names the
files. It is written after all that it names, under a new name, and ends with its own digest. Then
the index before it is deleted. So a storage holds a whole folder at every moment, on any file
system.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from raydpzv.errors import DataError
from raydpzv.storage.filesystem import StorageFolder

INDEXES, OBJECTS = "index", "objects"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRIES = 10
"""Listings of a storage whose index is replaced meanwhile."""


@dataclass(frozen=True)
class StoredFile:
    """The digest of a file's content, which is its object's name, and who may read it."""

    sha256: str
    mode: int


@dataclass(frozen=True)
class Index:
    """A folder at one moment."""

    number: int
    """It grows with every copy."""
    writer: str
    """The id of the folder that was copied."""
    files: Mapping[str, StoredFile] = field(repr=False)
    """By path in the folder."""
    fresh_noise: bool
    """Whether the run draws noise of the system, which a second run would draw anew."""
    over: bool
    """Whether the run ended after this copy, in whatever way: nothing was released since."""

    @property
    def name(self) -> str:
        """The file's name in the storage."""
        return f"{INDEXES}/{self.number:08d}-{self.writer}.json"

    @property
    def objects(self) -> frozenset[str]:
        """The names of the objects that it needs."""
        return frozenset(file.sha256 for file in self.files.values())

    def encoded(self) -> bytes:
        """Return the file's content."""
        text = json.dumps(asdict(self), separators=(",", ":")).encode()
        return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"


def latest(place: StorageFolder) -> Index | None:
    """Return the newest complete index of a storage; None if it holds none.

    Raises DataError if none of its indexes can be read, or if one names a file outside its folder.
    """
    for _ in range(_TRIES):
        names = _names(place)
        for name in reversed(names):
            data = place.read(f"{INDEXES}/{name}")
            if data is not None and (found := _decoded(place, data)):
                return found
        if not names:
            return None
        if names == _names(place):
            break
    raise DataError(f"{place.uri}: its index is damaged; restore it from a copy")


def _names(place: StorageFolder) -> list[str]:
    return [name for name in place.names(INDEXES) if not name.startswith(".")]  # unfinished ones


def _decoded(place: StorageFolder, data: bytes) -> Index | None:
    """Return an index; None if it was not written to its end."""
    text, _, digest = data.rstrip(b"\n").rpartition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    try:
        facts = json.loads(text)
        files = {str(path): StoredFile(**file) for path, file in facts.pop("files").items()}
        found = Index(files=files, **facts)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise DataError(f"{place.uri}: its index is of another version ({error})") from None
    for path, file in files.items():
        inside = not {"", ".", ".."} & set(path.split("/")) and path.isprintable()
        if not inside or not _SHA256.fullmatch(file.sha256) or file.mode & ~0o777:
            raise DataError(
                f"{place.uri}: its index names {path!r}, which is no file of a run's folder; "
                "restore the storage from a copy"
            )
    return found
