"""Upload the changes of a folder, then a manifest that names all of it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raydpzv.errors import RunError
from raydpzv.storage.filesystem import StorageFolder
from raydpzv.storage.lease import Lease
from raydpzv.storage.manifest import FRESH_NOISE, MANIFESTS, NO_NOISE, OBJECTS, Manifest, StoredFile
from raydpzv.storage.snapshot import Moving, snapshot

_MOST_PIECES = 50
"""Objects of one file. A file that grows further is uploaded anew, as one object."""
_KEPT = 2
"""Newest manifests whose objects stay: a process that reads the older one is not disturbed."""
_TRIES = 20
"""Listings of a folder in which files are deleted meanwhile."""
_TICK = 100_000_000
"""Nanoseconds within which two changes of a file may bear the same time."""

_Stat = tuple[int, int, int]


@dataclass
class Traffic:
    """Uploads so far: manifests, objects, their bytes, and the seconds that they took."""

    commits: int = 0
    objects: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def facts(self, uri: str) -> Mapping[str, object]:
        """Return what summary.json says of a storage."""
        return {"uri": uri, **vars(self), "seconds": round(self.seconds, 3)}


@dataclass
class _Known:
    """A file as it is in the storage, and the stat of the local file that it was read from."""

    stored: StoredFile
    stat: _Stat | None = None


@dataclass
class ManifestWriter:
    """Writes manifests of a folder as the holder of a lease; base: the manifest of the folder's
    present content.
    """

    storage: StorageFolder
    lease: Lease
    root: Path
    kind: str
    base: Manifest | None = None
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        files = self.base.files if self.base else {}
        self._known = {path: _Known(file) for path, file in files.items()}
        self._versions: dict[str, int] = {}
        self._kept: list[Manifest] = [self.base] if self.base else []
        self._number = 0
        self._swept = False

    def write(self, *, fresh_noise: bool, over: bool = False) -> None:
        """Upload changes, then a manifest of all files; delete objects that no kept manifest names.

        Raises OSError if the storage fails: uploaded objects stay, and the next call continues.
        Raises Fenced if another process took the lease, RunError if the folder cannot be read.
        """
        self.lease.check()
        manifest = Manifest(
            self.lease.epoch,
            self._number,
            self.kind,
            self.lease.writer,
            self._uploaded(),
            noise=FRESH_NOISE if fresh_noise else NO_NOISE,
            over=over,
        )
        self._put(manifest.name, manifest.encoded())
        self._number += 1
        self.traffic.commits += 1
        # a process that took the lease has read this manifest, or is seen now: see
        # `raydpzv.storage.lease`
        self.lease.check()
        self._drop(manifest)

    def _uploaded(self) -> dict[str, StoredFile]:
        for _ in range(_TRIES):
            try:
                return self._once()
            except Moving as error:
                moving = error
        raise RunError(
            f"{self.root}: cannot be uploaded to {self.storage.uri}: {moving} changes all the time"
        )

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
        """Upload a file's content, or only its end if it has grown."""
        sha256 = hashlib.sha256(data).hexdigest()
        before = self._known[path].stored if path in self._known else None
        if before and before.sha256 == sha256:
            return before
        pieces: tuple[tuple[str, int], ...] = ()
        start = 0
        grown = before and hashlib.sha256(data[: before.size]).hexdigest() == before.sha256
        if before and grown and len(before.pieces) < _MOST_PIECES:
            pieces, start = before.pieces, before.size
        if start < len(data):
            version = self._versions[path] = self._versions.get(path, -1) + 1
            name = f"{OBJECTS}{self.lease.epoch:08d}/{path}{f'~{version}' if version else ''}"
            self._put(name, data[start:])
            pieces = (*pieces, (name, len(data) - start))
        return StoredFile(len(data), sha256, pieces)

    def _put(self, name: str, data: bytes) -> None:
        self.storage.write(name, data)
        self.traffic.objects += 1
        self.traffic.bytes += len(data)

    def _drop(self, manifest: Manifest) -> None:
        """Delete objects and manifests that none of the newest manifests needs; once, also those of
        other writers.
        """
        self._kept.append(manifest)
        old, self._kept = self._kept[:-_KEPT], self._kept[-_KEPT:]
        needed = frozenset[str]().union(*(each.objects for each in self._kept))
        for each in old:
            self.storage.delete(each.name)
            for name in sorted(each.objects - needed):
                self.storage.delete(name)
        if not self._swept and self._number >= _KEPT:
            self._swept = True
            self._sweep(needed)

    def _sweep(self, needed: frozenset[str]) -> None:
        """Delete files of earlier epochs whose writers were interrupted."""
        names = {each.name for each in self._kept}
        for name in self.storage.below(MANIFESTS):
            if f"{MANIFESTS}/{name}" not in names:
                self.storage.delete(f"{MANIFESTS}/{name}")
        for epoch in range(1, self.lease.epoch):
            folder = f"{OBJECTS}{epoch:08d}"
            for name in self.storage.below(folder):
                if f"{folder}/{name}" not in needed:
                    self.storage.delete(f"{folder}/{name}")


def settled(changed: int) -> bool:
    """Return whether a file changed at this time, in ns, would get another time if it changed once
    more.
    """
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - changed > _TICK
