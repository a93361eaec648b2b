"""Rows that a run writes: first to a write-ahead log that grows with each checkpoint, and to parts
when they are many.

A checkpoint says how far the log goes. Bytes that a kill left beyond that are ignored. A new file
starts when the rows have become parts, and when a run resumes.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from raydpzv.errors import DataError
from raydpzv.files import inner_folder, no_link
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import (
    Extent,
    Packed,
    Rows,
    append_rows,
    joined,
    packed_rows,
    read_all,
    read_rows,
    unpacked_rows,
    whole_pieces,
)

TAIL = "rows.tail"
"""The folder of these files in a run's folder."""
_LONGEST_LOG = 1 << 24
"""Bytes of rows in a log before they become parts, few and large: parts take four times as long to
write and read.
"""


@dataclass(frozen=True)
class LogExtent:
    """The written part of a log file: the file's number, the bytes, and their CRC-32."""

    number: int
    size: int
    crc32: int

    @property
    def path(self) -> str:
        """Return the file's path, relative to the run's folder."""
        return f"{TAIL}/{self.number:05d}.rows"

    def holds(self, data: Packed) -> bool:
        """Return whether a file with these bytes holds this part."""
        return zlib.crc32(memoryview(data)[: self.size]) == self.crc32


class WriteAheadLog:
    """Writes the rows of a run that are in no part yet; reads them back when they are needed.

    last: the file that a resumed run takes rows from, if there is one; taken: the bytes of these
    rows.
    """

    def __init__(self, run: Path, last: LogExtent | None = None, taken: Packed = b"") -> None:
        self._run = run
        self._taken, self._waiting = taken, list[Rows]()
        self._extent: LogExtent | None = None
        self._needed: deque[LogExtent | None] = deque([last], maxlen=2)
        self._next: int | None = None  # numbers are never reused, since a reader may have the file

    @property
    def size(self) -> int:
        """Bytes of the rows, without those that wait."""
        return self._extent.size if self._extent else len(self._taken)

    def add(self, rows: Rows) -> None:
        """Add rows, which are written with the next checkpoint."""
        self._waiting.append(rows)

    def rows(self) -> Rows:
        """Return all rows since the last `clear`; types without rows may be missing.

        Raises DataError if the file has changed.
        """
        pieces = list(self._waiting)
        if data := read_log(self._run, self._extent) if self._extent else self._taken:
            pieces.insert(0, unpacked_rows(data))
        return joined(pieces)

    def clear(self) -> None:
        """Forget all rows: they have become parts."""
        self._taken, self._waiting, self._extent = b"", [], None

    def write(self) -> LogExtent | None:
        """Write the rows that wait; return the written extent, None if there are no rows. Raises
        OSError.
        """
        waiting = chain.from_iterable(map(packed_rows, self._waiting))
        if pieces := [data for data in (memoryview(self._taken), *waiting) if data]:
            last = self._extent or LogExtent(self._begun(), 0, 0)
            size, crc32 = last.size, last.crc32
            kind = "r+b" if size else "wb"
            with open(self._run / last.path, kind, buffering=0, opener=no_link()) as file:
                file.seek(size)
                for data in pieces:
                    size, crc32 = size + len(data), zlib.crc32(data, crc32)
                    while data:
                        data = data[file.write(data) :]
            self._extent = LogExtent(last.number, size, crc32)
        self._taken, self._waiting = b"", []
        return self._extent

    def checkpointed(self) -> None:
        """Delete the files that neither of the last two checkpoints needs."""
        known = _paths(self._needed)
        self._needed.append(self._extent)
        if (needed := _paths(self._needed)) != known:
            for path in self._files():
                if f"{TAIL}/{path.name}" not in needed:
                    path.unlink()

    def _begun(self) -> int:
        """Return the number of a new file."""
        if self._next is None:
            inner_folder(self._run / TAIL)
            self._next = max((int(path.stem) for path in self._files()), default=-1) + 1
        self._next += 1
        return self._next - 1

    def _files(self) -> list[Path]:
        return [path for path in (self._run / TAIL).glob("*.rows") if path.stem.isdecimal()]


def read_log(run: Path, extent: LogExtent) -> Packed:
    """Return the bytes up to an extent, see `unpacked_rows`. Raises DataError if they are missing
    or differ.
    """
    path = run / extent.path
    try:
        data = _read(path, extent.size)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); the run cannot continue, start a new one"
        ) from None
    if not extent.holds(data):
        raise DataError(
            f"{path}: its first {extent.size:,} bytes are not the rows that the checkpoint counts; "
            "the run cannot continue: restore the folder from a copy, or start a new one"
        )
    return data


def _read(path: Path, size: int) -> Packed:
    """Map the first bytes of a file: copying them takes three times as long.

    A process that truncates the file meanwhile would end this one, as a kill does. No writer of
    such files does.
    """
    with open(path, "rb") as file:
        size = min(size, os.fstat(file.fileno()).st_size)
        if not size:
            return b""
        try:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError:  # file systems without mmap
            return file.read(size)


def last_round_in_logs(run: Path, name: str) -> int:
    """Return the last round of rows of one type in all these files, also beyond the checkpoint; 0:
    there are none.
    """
    found = [whole_pieces(path.read_bytes()) for path in (run / TAIL).glob("*.rows")]
    return max(
        (max(unpacked_rows(data)[name]["round"].to_pylist(), default=0) for data in found),
        default=0,
    )


def _paths(extents: deque[LogExtent | None]) -> set[str]:
    return {extent.path for extent in extents if extent}


class FolderRows:
    """Writes rows to the log and to parts, and counts them.

    extents: of each type with rows; log: of rows in no part yet; logged: these rows.
    Failed writes raise OSError.
    """

    def __init__(
        self,
        run: Path,
        extents: Mapping[str, Extent] | None = None,
        log: WriteAheadLog | None = None,
        logged: Rows | None = None,
    ) -> None:
        self._run, self.log = run, log or WriteAheadLog(run)
        self.extents: dict[str, Extent] = dict(extents or {})
        self.counts = Counter({name: extent.rows for name, extent in self.extents.items()})
        """Rows of each type, with those of the log."""
        self._kept: list[Rows] = []  # the last rows of the parts, in memory
        self._unkept: dict[str, Extent] = {}  # the parts before these
        self._count(logged or {})

    def hold(self, rows: Rows) -> None:
        """Add rows that a checkpoint follows: they are written to the log with it.

        They become parts when they are many, or when other rows are appended. Parts are then larger
        and fewer than with one for each checkpoint.
        """
        # `nbytes` takes 70 times as long
        size = sum(table.get_total_buffer_size() for table in rows.values() if table.num_rows)
        if self.log.size + size > _LONGEST_LOG:
            self.append(rows)
            return
        self.log.add(rows)
        self._count(rows)

    def append(self, rows: Rows, *, keep: bool = False) -> None:
        """Write rows to parts, after those of the log.

        keep: also in memory, so that `written` need not read them back; for the last rows of a run.
        Types that cannot be written are added with the next rows.
        """
        self.log.add(rows)
        whole = self.log.rows()
        if keep:  # what reads them looks at each piece of a column
            whole = {name: table.combine_chunks() for name, table in whole.items()}
        self.log.clear()
        kept, self._kept = self._kept, []  # where it fails, parts show what there is
        if not kept:
            self._unkept = dict(self.extents)
        before = dict(self.extents)
        self._count(rows)
        try:
            append_rows(self._run, whole, self.extents)
        except BaseException:
            self.log.add(
                {name: whole[name] for name in whole if self.extents.get(name) == before.get(name)}
            )
            raise
        if keep:
            self._kept = [*kept, whole]

    def so_far(self, name: str) -> pa.Table:
        """Return the rows of one type, with those in no part yet."""
        parts, rows = read_rows(self._run, name), self.log.rows()
        return pa.concat_tables([parts, rows[name]]) if name in rows else parts

    def written(self) -> Rows:
        """Return the rows of the parts."""
        if not self._kept:
            return read_all(self._run)
        return {name: self._with_kept(name) for name in SCHEMAS}

    def _with_kept(self, name: str) -> pa.Table:
        parts = self._unkept.get(name, Extent()).parts
        kept = [rows[name] for rows in self._kept if name in rows]
        return pa.concat_tables([read_rows(self._run, name, first=parts), *kept])

    def _count(self, rows: Rows) -> None:
        self.counts.update({name: table.num_rows for name, table in rows.items()})
