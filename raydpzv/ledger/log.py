"""The log: a folder of segments, one writer, any number of readers.

Segment k holds updates k S + 1 .. (k+1) S. When it is full the next append makes segment k+1
(empty) and only then puts the sealed form in the open one's place: a sealed segment is never the
last, so a lost last segment is seen.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from raydpzv.errors import InputError, RunError
from raydpzv.files import sync_folder, write_atomically
from raydpzv.ledger.entries import LedgerUpdate, Slice, bounds
from raydpzv.ledger.files import damaged, reported, sweep
from raydpzv.ledger.header import LogSettings
from raydpzv.ledger.reading import read
from raydpzv.ledger.segment import Segment, head, record, seal, unseal

_CUT = "truncate"
"""The file that names the version to which an unfinished truncation leads."""


class Log:
    """The segments of one folder; `start` is the chain's value before update 1.

    recent(version, until): returns updates version+1 .. until if the ledger has them in memory,
    else None. A full segment then need not be read back to be sealed.
    """

    def __init__(
        self,
        folder: Path,
        start: bytes,
        settings: LogSettings,
        recent: Callable[[int, int], Slice | None],
    ) -> None:
        self._folder, self._start, self._settings, self._recent = folder, start, settings, recent
        self._lock = FileLock(folder / ".lock", thread_local=False)
        self._file: int | None = None
        self._number, self._crc = 0, 0
        self._chains: list[
            bytes
        ] = []  # the chain's values from before the open segment's first update on

    @property
    def writable(self) -> bool:
        """Whether this object may append."""
        return self._file is not None

    @property
    def disk_bytes(self) -> int:
        """Bytes of the segments."""
        return sum(path.stat().st_size for path in self._paths())

    def lock(self) -> None:
        """Become the one writer; InputError if there is another."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self._folder}: another process is writing this ledger; wait for it, or open it "
                "for reading"
            ) from None

    def create(self) -> None:
        """Start with an empty segment; delete those that a killed creation left."""
        for path in self._paths():
            path.unlink()
        self._begin(0, self._start)

    def segments(self, version: int = 0, chain: bytes | None = None) -> Iterator[Segment]:
        """Yield the segments from the one with update version+1 on, each checked.

        chain: the value that the first of them has to start with; None trusts the segment's own
        value.
        """
        limit, number = self._limit(), version // self._settings.segment
        chain = self._start if number == 0 else chain
        while True:
            # asked before the segment is read: a writer may continue to the next one in the
            # meantime
            followed = self._path(number + 1).exists()
            segment = read(self._path(number), number, number * self._settings.segment, chain)
            self._require_full(number, segment, followed)
            if limit is not None and segment.last >= limit:
                yield segment.cut(limit)
                return
            yield segment
            if not (segment.sealed or followed):
                return
            number, chain = number + 1, segment.chains[-1]

    def repair(self) -> None:
        """Finish the truncation of a killed writer, and delete its scratch files."""
        sweep(self._folder)
        if (limit := self._limit()) is not None:
            self._cut(limit)

    def stand(self, segment: Segment) -> None:
        """Continue after the last segment; cut off a torn record."""
        number = segment.first // self._settings.segment
        if segment.torn:
            os.truncate(self._path(number), segment.whole)
        if number > 0 and segment.last == segment.first:
            self._seal(self._read(number - 1))
        self._open(number, segment.crc, segment.chains)

    def append(self, update: LedgerUpdate, before: bytes, chain: bytes) -> None:
        """Write one update; RunError if that fails: the log then takes no more before it is opened
        again.
        """
        settings = self._settings
        number = (update.round - 1) // settings.segment
        if number != self._number:
            self._roll(number, before)
        data, file = record(update, chain, self._crc), self._file
        assert file is not None
        try:
            if os.write(file, data) != len(data):
                raise OSError(errno.ENOSPC, "the disk is full")
            if settings.fsync:
                os.fsync(file)
        except OSError as error:
            raise RunError(
                f"{self._path(number)}: cannot write update {update.round} ({error.strerror}); "
                "see to the disk and open the ledger again: all updates before are kept"
            ) from None
        self._chains.append(chain)

    def truncate(self, version: int) -> bytes:
        """Drop updates > version and return the chain's value there; if killed, the next writer
        finishes it.
        """
        with reported(self._folder, RunError):
            write_atomically(
                self._folder / _CUT, b"%d %d\n" % (version, version), self._settings.fsync
            )
            return self._cut(version)

    def close(self) -> None:
        """Close the file and let another writer in."""
        self._shut()
        self._lock.release(force=True)

    def _cut(self, version: int) -> bytes:
        number = version // self._settings.segment
        kept = next(self.segments(max(version - 1, 0)))
        at_end = version == number * self._settings.segment
        begin = head(number, version if at_end else kept.first, kept.chains[-1 if at_end else 0])
        for path in self._paths():
            if int(path.stem.removeprefix("segment-")) > number:
                path.unlink()
        data = begin if at_end else unseal(kept, number)
        write_atomically(self._path(number), data, self._settings.fsync)
        (self._folder / _CUT).unlink()
        if self._settings.fsync:
            sync_folder(self._folder)
        self._open(number, zlib.crc32(begin), kept.chains[-1:] if at_end else kept.chains)
        return kept.chains[-1]

    def _roll(self, number: int, chain: bytes) -> None:
        chains, first = self._chains, (number - 1) * self._settings.segment
        with reported(self._folder, RunError):
            self._begin(number, chain)
            entries = self._recent(first, first + self._settings.segment)
            if entries is None:
                self._seal(self._read(number - 1))
            else:
                self._seal(Segment(first, False, entries, bounds(entries.round), chains, 0, 0, 0))

    def _begin(self, number: int, chain: bytes) -> None:
        begin = head(number, number * self._settings.segment, chain)
        write_atomically(self._path(number), begin, self._settings.fsync)
        self._open(number, zlib.crc32(begin), [chain])

    def _read(self, number: int) -> Segment:
        return read(self._path(number), number, number * self._settings.segment, None)

    def _seal(self, segment: Segment) -> None:
        if not segment.sealed:
            number = segment.first // self._settings.segment
            write_atomically(self._path(number), seal(segment, number), self._settings.fsync)

    def _open(self, number: int, crc: int, chains: Sequence[bytes]) -> None:
        self._shut()
        self._file = os.open(self._path(number), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        self._number, self._crc, self._chains = number, crc, list(chains)

    def _shut(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _require_full(self, number: int, segment: Segment, followed: bool) -> None:
        wanted, count = self._settings.segment, segment.last - segment.first
        if count > wanted or ((segment.sealed or followed) and (count != wanted or segment.torn)):
            raise damaged(
                self._path(number),
                f"has {count} updates, wanted {wanted} in each but the last",
                segment.last,
            )

    def _limit(self) -> int | None:
        path = self._folder / _CUT
        if not path.exists():
            return None
        words = path.read_bytes().split()
        if len(words) != 2 or words[0] != words[1] or not words[0].isdigit():
            raise damaged(path, "is damaged: wanted a version, twice", 0)
        return int(words[0])

    def _path(self, number: int) -> Path:
        return self._folder / f"segment-{number:05d}.arrow"

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("segment-*.arrow"))
