"""Copy a run's folder to a storage after its checkpoints and at its end.

The process that writes the folder calls `RunCopy.checkpointed`, so that nothing but the ledger
changes while files are read. The upload itself happens in a thread: a checkpoint that comes while
one is under way is left to the next copy.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from raydpzv.errors import InputError, RunError
from raydpzv.records.checkpoint import CHECKPOINT, before
from raydpzv.storage.filesystem import StorageFolder, reason
from raydpzv.storage.index import OBJECTS, Index, StoredFile, latest
from raydpzv.storage.link import LINK, Link, link_of, write_link

_LEFT_OUT = (LINK, before(Path(CHECKPOINT)).name)
"""Files that a copy lacks, beside hidden ones, which are locks and unfinished files."""
_TRIES = 20
"""Listings of a folder to which files are added meanwhile."""
_TICK = 100_000_000
"""Nanoseconds within which two changes of a file may bear the same time."""
_WAITS = (1.0, 4.0, 16.0)
"""Seconds before the last copy is tried again."""

Contents = Mapping[str, tuple[bytes, int]]
"""Content and mode by digest."""


class RunCopy:
    """Copies one folder to one storage. Make one with `copied`."""

    def __init__(self, folder: Path, place: StorageFolder, *, fresh_noise: bool) -> None:
        self._folder, self._place, self._fresh_noise = folder, place, fresh_noise
        self._found = latest(place)
        self._there = set(self._found.objects) if self._found else set()
        known = link_of(folder)
        self._writer = (known and known.writer) or secrets.token_hex(8)
        self._known: dict[str, tuple[tuple[int, ...], StoredFile]] = {}
        self._thread, self._copying = ThreadPoolExecutor(1), _done()

    def begin(self) -> None:
        """Copy the folder before the run draws any noise; delete objects that a kill left.

        Raises InputError if the storage cannot be written.
        """
        seen = self._found.name if self._found else ""
        write_link(self._folder, Link(self._place.uri, self._writer, seen))
        try:
            self._put(*self._read(), over=False)
            for name in set(self._place.names(OBJECTS)) - self._there:
                self._place.delete(f"{OBJECTS}/{name}")
        except (OSError, RunError) as error:
            raise InputError(str(self._failure(error))) from error

    def checkpointed(self) -> None:
        """Copy the folder as it is now, unless an earlier copy is still under way.

        A copy that fails is a warning: the next one brings what it lacks. Raises RunError if
        another process writes to the storage.
        """
        if not self._copying.done():
            return
        try:
            self._copying.result()
            files, contents = self._read()
        except OSError as error:
            warnings.warn(
                f"{self._place.uri}: {self._folder} cannot be copied there ({reason(error)}); it is "
                "tried again after the next checkpoint",
                RuntimeWarning,
                stacklevel=2,
            )
            self._copying = _done()
            return
        self._copying = self._thread.submit(self._put, files, contents, over=False)

    def end(self) -> None:
        """Copy the folder for the last time. Raises RunError if that fails for good."""
        self._thread.shutdown()
        for wait in (*_WAITS, None):
            try:
                self._put(*self._read(), over=True)
                return
            except OSError as error:
                if wait is None:
                    raise self._failure(error) from error
            time.sleep(wait)

    def _failure(self, error: Exception) -> RunError:
        if isinstance(error, RunError):
            return error
        return RunError(
            f"{self._place.uri}: cannot be written ({reason(error)}); see to the storage, then "
            f"copy {self._folder}, which has all of the run, with: raydpzv resume {self._folder}"
        )

    def _read(self) -> tuple[dict[str, StoredFile], Contents]:
        """Return all files of the folder, and the contents that the storage lacks.

        A ledger may begin its next segment meanwhile, and seals the one before only then. So the
        files are read again if others were added.
        """
        for _ in range(_TRIES):
            names = sorted(self._names(""))
            contents: dict[str, tuple[bytes, int]] = {}
            try:
                files = {name: self._file(name, contents) for name in names}
            except FileNotFoundError:
                continue
            if names == sorted(self._names("")):
                return files, contents
        raise RunError(f"{self._folder}: cannot be copied: its files change all the time")

    def _file(self, name: str, contents: dict[str, tuple[bytes, int]]) -> StoredFile:
        path = self._folder / name
        found = path.stat()
        changed = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._known.get(name)
        if known and known[0] == changed and known[1].sha256 in self._there:
            return known[1]
        data, mode = path.read_bytes(), stat.S_IMODE(found.st_mode) & 0o777
        file = StoredFile(hashlib.sha256(data).hexdigest(), mode)
        if time.clock_gettime_ns(time.CLOCK_REALTIME) - found.st_mtime_ns > _TICK:
            self._known[name] = changed, file
        if file.sha256 not in self._there:
            contents[file.sha256] = data, mode
        return file

    def _names(self, folder: str) -> Iterator[str]:
        for entry in os.scandir(self._folder / folder):
            name = f"{folder}{entry.name}"
            if entry.name.startswith(".") or name in _LEFT_OUT:
                continue
            if entry.is_symlink():
                raise RunError(
                    f"{self._folder / name}: is a link, which no copy follows; put the file itself "
                    "there"
                )
            if entry.is_dir():
                yield from self._names(f"{name}/")
            else:
                yield name

    def _put(self, files: Mapping[str, StoredFile], contents: Contents, *, over: bool) -> None:
        """Write contents, then the index, then delete what only the index before it needed."""
        last = latest(self._place)
        if last and last.writer != self._writer and last != self._found:
            raise RunError(
                f"{self._place.uri}: another process writes to this storage; nothing more is "
                f"copied there. Stop it, or this run: {self._folder} has all of it"
            )
        for sha256, (data, mode) in contents.items():
            self._place.write(f"{OBJECTS}/{sha256}", data, mode)
            self._there.add(sha256)
        index = Index(last.number + 1 if last else 1, self._writer, files, self._fresh_noise, over)
        self._place.write(index.name, index.encoded())
        if last:
            self._place.delete(last.name)
        for sha256 in self._there - index.objects:
            self._place.delete(f"{OBJECTS}/{sha256}")
        self._there &= index.objects


def _done() -> Future[None]:
    found = Future[None]()
    found.set_result(None)
    return found


@contextmanager
def copied(folder: Path, place: StorageFolder, *, fresh_noise: bool) -> Iterator[RunCopy]:
    """Copy a folder to a storage at the block's start, when its checkpoints are written, and at the
    block's end, however it ends.

    fresh_noise: see `Index`. Raises InputError if the first copy fails, RunError if the last one
    does.
    """
    copy = RunCopy(folder, place, fresh_noise=fresh_noise)
    copy.begin()
    try:
        yield copy
    except BaseException:
        try:
            copy.end()
        except RunError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        raise
    copy.end()
