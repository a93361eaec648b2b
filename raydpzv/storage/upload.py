"""Brings what has changed of a folder to a storage, and commits it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raydpzv.errors import RunError
from raydpzv.storage.commits import COMMITS, OBJECTS, Commit, StoredFile
from raydpzv.storage.filesystem import StorageFolder
from raydpzv.storage.lease import Lease
from raydpzv.storage.snapshot import Moving, snapshot

_MOST_PIECES = 50
"""Objects of one file: what grows beyond is written anew, in one."""
_KEPT = 2
"""Newest commits whose objects stay: whoever reads the one before the last is not disturbed."""
_TRIES = 20
"""Times that a folder is looked at anew in which files went meanwhile."""

_TICK = 100_000_000
"""Nanoseconds within which two changes of a file may bear the same time."""

_Stat = tuple[int, int, int]


@dataclass
class Traffic:
    """What was brought: commits, objects, their bytes, and seconds that it took."""

    commits: int = 0
    objects: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Announced:
    """What a commit says of releases with fresh noise, see `Commit`."""

    noise: str
    covered: int = 0
    announced: int = 0
    over: bool = False


@dataclass
class _Known:
    """A file as it is in the storage, and the stat of the one that it was read from."""

    stored: StoredFile
    stat: _Stat | None = None


@dataclass
class Uploader:
    """Commits a folder as the holder of a lease; base: the commit that the folder's content is of, if there is one."""

    place: StorageFolder
    lease: Lease
    root: Path
    kind: str
    base: Commit | None = None
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        files = self.base.files if self.base else {}
        self._known = {path: _Known(file) for path, file in files.items()}
        self._versions: dict[str, int] = {}
        self._kept: list[Commit] = [self.base] if self.base else []
        self._number = 0
        self._swept = False

    def commit(self, announced: Announced) -> None:
        """Bring what has changed, then a commit that names all of it; delete what no kept commit names.

        Raises OSError where the storage fails: what was brought stays, and the next call goes on. Raises Fenced where
        another process has taken over; RunError where the folder cannot be read.
        """
        self.lease.check()
        files = self._brought()
        commit = Commit(
            *(self.lease.epoch, self._number, self.kind, self.lease.writer, files),
            noise=announced.noise,
            covered=announced.covered,
            announced=announced.announced,
            over=announced.over,
        )
        self._write(commit.name, commit.encoded())
        self._number += 1
        self.traffic.commits += 1
        # whoever has taken over since has read this commit, or is seen now: see `raydpzv.storage.lease`
        self.lease.check()
        self._drop(commit)

    def _brought(self) -> dict[str, StoredFile]:
        for _ in range(_TRIES):
            try:
                return self._once()
            except Moving as error:
                moving = error
        raise RunError(f"{self.root}: cannot be brought to {self.place.uri}: {moving} changes all the time")

    def _once(self) -> dict[str, StoredFile]:
        stats: dict[str, _Stat] = {}

        def unchanged(path: str, stat: os.stat_result) -> bool:
            stats[path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            known = self._known.get(path)
            return known is not None and known.stat == stats[path]

        found = {}
        for path, data in snapshot(self.root, unchanged):
            if data is not None:
                stored = self._stored(path, data)
                self._known[path] = _Known(stored, stats[path] if settled(stats[path][2]) else None)
            found[path] = self._known[path].stored
        self._known = {path: self._known[path] for path in found}
        return found

    def _stored(self, path: str, data: bytes) -> StoredFile:
        """Bring a file's content, or of one that has grown what is new."""
        sha256 = hashlib.sha256(data).hexdigest()
        before = self._known[path].stored if path in self._known else None
        if before and before.sha256 == sha256:
            return before
        pieces: tuple[tuple[str, int], ...] = ()
        start = 0
        if before and len(before.pieces) < _MOST_PIECES and _begins_with(data, before):
            pieces, start = before.pieces, before.size
        if start < len(data):
            name = self._new_name(path)
            self._write(name, data[start:])
            pieces = (*pieces, (name, len(data) - start))
        return StoredFile(len(data), sha256, pieces)

    def _new_name(self, path: str) -> str:
        version = self._versions.get(path, 0)
        self._versions[path] = version + 1
        return f"{OBJECTS}{self.lease.epoch:08d}/{path}{f'~{version}' if version else ''}"

    def _write(self, name: str, data: bytes) -> None:
        self.place.write(name, data)
        self.traffic.objects += 1
        self.traffic.bytes += len(data)

    def _drop(self, commit: Commit) -> None:
        """Delete objects and commits that none of the newest commits needs; once, also what others have left."""
        self._kept.append(commit)
        old, self._kept = self._kept[:-_KEPT], self._kept[-_KEPT:]
        needed = frozenset[str]().union(*(each.objects for each in self._kept))
        for each in old:
            self.place.delete(each.name)
            for name in sorted(each.objects - needed):
                self.place.delete(name)
        if not self._swept and self._number >= _KEPT:
            self._swept = True
            self._sweep(needed)

    def _sweep(self, needed: frozenset[str]) -> None:
        """Delete what writers of earlier epochs left that were interrupted."""
        names = {each.name for each in self._kept}
        for name in self.place.below(COMMITS):
            if f"{COMMITS}/{name}" not in names:
                self.place.delete(f"{COMMITS}/{name}")
        for epoch in range(1, self.lease.epoch):
            folder = f"{OBJECTS}{epoch:08d}"
            for name in self.place.below(folder):
                if f"{folder}/{name}" not in needed:
                    self.place.delete(f"{folder}/{name}")


def settled(changed: int) -> bool:
    """Tell whether a file that was changed then, in ns, would have another time of change if it changed once more."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - changed > _TICK


def _begins_with(data: bytes, before: StoredFile) -> bool:
    """Tell whether a file has grown, and is as it was up to there."""
    return before.size <= len(data) and hashlib.sha256(data[: before.size]).hexdigest() == before.sha256


def facts(traffic: Traffic, uri: str) -> Mapping[str, object]:
    """Return what summary.json says of a storage."""
    return {
        "uri": uri,
        "commits": traffic.commits,
        "objects": traffic.objects,
        "bytes": traffic.bytes,
        "seconds": round(traffic.seconds, 3),
    }
