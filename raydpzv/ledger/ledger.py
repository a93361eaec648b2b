"""The ledger: appends one update at a time, hands out slices of the history, keeps both memory and
disk.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError
from raydpzv.files import write_atomically
from raydpzv.ledger.entries import (
    COLUMNS,
    Array,
    LedgerUpdate,
    NewUpdate,
    Slice,
    checked,
    frozen,
    link,
    links,
)
from raydpzv.ledger.files import damaged, reported
from raydpzv.ledger.header import Header, LogSettings, decode, encode
from raydpzv.ledger.log import Log
from raydpzv.ledger.memory import WorkingSet
from raydpzv.ledger.snapshots import Snapshots

_HEADER = "header.json"


class Ledger:
    """The updates 1, 2, ... of a model. Make one with `create` or `open`; its methods may be called
    by any thread.

    In memory: 52 bytes per entry (up to twice that, columns grow by doubling) and 8 bytes per
    update.
    """

    def __init__(self, folder: Path | None, header: Header, settings: LogSettings) -> None:
        self.header = header
        self._folder, self._settings = folder, settings
        self._memory = WorkingSet()
        self._chain = self._base = (
            header.start()
        )  # the chain's value now, and at the trimmed version
        self._begun = 0, self._chain  # version and chain before the last segment that was read
        self._log = Log(folder, self._chain, settings, self._recent) if folder else None
        self._snapshots = Snapshots(
            folder / "snapshots" if folder else None, self._chain, settings.fsync
        )
        self._mutex = threading.RLock()
        self._shut: str | None = None  # why no update is taken; None if updates are taken

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    @classmethod
    def create(
        cls, folder: Path | None, header: Header, *, fsync: bool = False, segment: int = 1024
    ) -> Ledger:
        """Create an empty ledger, in memory only without a folder; InputError if the folder holds
        one already.

        With `fsync` an append survives a power loss too (it costs one fsync); `segment` is the
        number of updates per segment of the log.
        """
        ledger = cls(folder, header, LogSettings(segment, fsync))
        if folder is not None:
            with reported(folder):
                folder.mkdir(parents=True, exist_ok=True)
                ledger._begin(folder)
        return ledger

    @classmethod
    def open(cls, folder: Path, *, expect: Header | None = None, write: bool = False) -> Ledger:
        """Open a ledger: all of it is read and checked. `write` makes this the one writer and drops
        a torn record.

        InputError: no ledger there, another writer, or the header is not the expected one (names
        the field).
        DataError: damage; names the file and the last good round.
        """
        path = folder / _HEADER
        if not path.is_file():
            raise InputError(
                f"{folder}: holds no ledger (no {_HEADER}); give the folder of one, or create it"
            )
        header, settings = decode(path)
        if expect is not None:
            header.require(expect, str(folder))
        ledger = cls(folder, header, settings)
        try:
            with reported(folder):
                ledger._load(write)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def begin_writing(self) -> None:
        """Become the one writer of a ledger that is open for reading, or was closed; drop a torn
        record.

        Only the last segment and later ones are read again: the chain shows whether all before is
        unchanged. Raises as `open` does.
        """
        with self._mutex:
            if self._log is None or self._folder is None or self._log.writable:
                raise InputError(
                    f"{self._folder or 'ledger'}: it is being written, or is in no folder"
                )
            with reported(self._folder):
                self._load(write=True)
            self._shut = None

    @property
    def version(self) -> int:
        """Updates so far."""
        return self._memory.version

    @property
    def entries(self) -> int:
        """Entries of all updates so far."""
        with self._mutex:
            return self._memory.entries

    @property
    def digest(self) -> str:
        """The digest chain's value: equal ledgers have equal digests, however they were written."""
        return self._chain.hex()

    @property
    def memory_bytes(self) -> int:
        """Bytes that the working set takes."""
        with self._mutex:
            return self._memory.nbytes

    @property
    def recalls(self) -> bool:
        """Whether updates that are trimmed from memory can still be read."""
        return self._log is not None

    @property
    def disk_bytes(self) -> int:
        """Bytes that the log takes on disk, snapshots apart."""
        if self._log is None or self._folder is None:
            return 0
        return (self._folder / _HEADER).stat().st_size + self._log.disk_bytes

    def append(self, **update: Unpack[NewUpdate]) -> int:
        """Add one update of n entries and return its round; it is written when this returns.

        Values are never rounded: a scalar that is no float32 is an InputError, like every other
        value that does not fit.
        """
        with self._mutex:
            self._require_open()
            return self.enter(checked(self.version + 1, update))

    def enter(self, update: LedgerUpdate) -> int:
        """Add one update and return its round, as `append` does, without a look at its values.

        The caller guarantees columns of the types that `LedgerUpdate` names, n >= 1 entries
        ascending by (step, perturbation), and finite scalars. Only the round is checked: it has to
        be the next one.
        """
        with self._mutex:
            if self._shut is not None:
                self._require_open()
            memory, before = self._memory, self._chain
            if update.round != memory.version + 1:
                raise InputError(
                    f"wanted update {memory.version + 1}, the next one, got {update.round}"
                )
            chain = link(before, update)
            # stays if anything from here on is interrupted: disk and memory may then differ by this
            # update
            self._shut = "an append was interrupted: open the ledger again"
            if self._log is not None:
                self._log.append(update, before, chain)
            memory.add(update)
            self._chain = chain
            self._shut = None
            return update.round

    def since(self, version: int, until: int | None = None) -> Slice:
        """Return updates version+1 .. until (default: all); from memory without a copy, from disk
        where trimmed.
        """
        with self._mutex:
            last = self.version if until is None else until
            self._require_range(version, last)
            trimmed = self._memory.trimmed
            if version >= trimmed:
                return self._memory.slice(version, last)
            if self._log is None:
                raise InputError(
                    f"since: updates 1 to {trimmed} were trimmed and this ledger has no folder to "
                    f"read them from; ask from version {trimmed} on"
                )
            return self._recalled(version, last)

    def pairs(self, version: int, until: int | None = None) -> int:
        """Return how many entries updates version+1 .. until have, trimmed or not, without making a
        slice.
        """
        with self._mutex:
            last = self.version if until is None else until
            self._require_range(version, last)
            return self._memory.pairs(version, last)

    def trim(self, version: int) -> None:
        """Forget updates <= version in memory; the log keeps them. The memory is freed once half of
        it is unused.
        """
        with self._mutex:
            self._require_range(version, self.version)
            if self._log is None and version > self._memory.trimmed:
                self._base = self._linked(version)
            self._memory.trim(version)

    def truncate(self, version: int) -> None:
        """Drop updates > version, and their snapshots. Close readers first. After a kill the next
        writer finishes it.

        Raises InputError for a ledger in memory only whose updates before that version are trimmed.
        """
        with self._mutex:
            self._require_open()
            self._require_range(version, self.version)
            if self._log is None and version < self._memory.trimmed:
                raise InputError(
                    f"truncate: wanted a version from {self._memory.trimmed} on, got {version}"
                )
            if version == self.version:
                return
            self._shut = "a truncation was interrupted: open the ledger again"
            self._snapshots.drop(version)
            self._begun = 0, self.header.start()
            self._chain = (
                self._linked(version) if self._log is None else self._log.truncate(version)
            )
            self._memory.truncate(version)
            self._shut = None

    def verify(self) -> str:
        """Recompute everything from disk (without a folder: from memory); return the digest, or
        raise DataError.
        """
        with self._mutex:
            if self._log is None or self._folder is None:
                return self._linked(self.version).hex()
            decode(self._folder / _HEADER)[0].require(self.header, str(self._folder))
            found = self._found(self._folder, self._log)
            self._snapshots.verify()
            return found

    def save_snapshot(
        self, name: str, version: int, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Keep a snapshot (atomically) of `name` ("shared", "client 3") at a version that the
        ledger has.
        """
        with self._mutex:
            self._require_open()
            self._require_range(version, self.version)
            self._snapshots.save_snapshot(name, version, arrays)

    def forget_snapshots(self, name: str, before: int) -> None:
        """Delete the snapshots of `name` with a version < before."""
        with self._mutex:
            self._require_open()
            self._snapshots.forget(name, before)

    def load_snapshot(
        self, name: str, until: int
    ) -> tuple[int, dict[str, npt.NDArray[Any]]] | None:
        """Return (version, arrays) of the newest snapshot with version <= until; DataError names a
        damaged one.
        """
        with self._mutex:
            return self._snapshots.load_snapshot(name, min(until, self.version))

    def close(self) -> None:
        """Release the ledger to another writer; updates in memory can still be read."""
        with self._mutex:
            self._shut = "it is closed; open it again with write=True"
            if self._log is not None:
                self._log.close()

    def _begin(self, folder: Path) -> None:
        assert self._log is not None
        self._log.lock()
        try:
            if (folder / _HEADER).exists():
                raise InputError(
                    f"{folder}: holds a ledger already; open it, or choose another folder"
                )
            self._log.create()
            # last, so that a folder with a header has a whole ledger
            write_atomically(
                folder / _HEADER, encode(self.header, self._settings), self._settings.fsync
            )
        except BaseException:
            self.close()
            raise

    def _load(self, write: bool) -> None:
        assert self._log is not None
        if write:
            self._log.lock()
            self._log.repair()
        version, self._chain = self._begun
        self._memory.truncate(version)
        for segment in self._log.segments(version, self._chain):
            self._begun = segment.first, segment.chains[0]
            self._memory.extend(segment.entries, segment.bounds)
            self._chain = segment.chains[-1]
        if write:
            self._log.stand(segment)
            # a snapshot of updates that a power loss took belongs to another history
            self._snapshots.drop(self.version)
        else:
            self._shut = "it is open for reading; open it with write=True"

    def _recent(self, version: int, until: int) -> Slice | None:
        """Updates version+1 .. until if they are in memory."""
        return self._memory.slice(version, until) if version >= self._memory.trimmed else None

    def _recalled(self, version: int, last: int) -> Slice:
        """Updates version+1 .. last, those below the trim from disk."""
        assert self._log is not None
        trimmed = min(last, self._memory.trimmed)
        parts: list[Slice] = []
        for segment in self._log.segments(version):
            parts.append(segment.between(version, trimmed))
            if segment.last >= trimmed:
                break
        if last > trimmed:
            parts.append(self._memory.slice(trimmed, last))
        columns: list[Array] = [
            np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
        ]
        return Slice(version, last, *map(frozen, columns))

    def _linked(self, version: int) -> bytes:
        """Return the chain's value at a version from the entries in memory."""
        return links(self._base, self._memory.slice(self._memory.trimmed, version))[-1]

    def _found(self, folder: Path, log: Log) -> str:
        """Return the digest of this version that the disk has; DataError if it is not this
        ledger's.
        """
        chain = None
        for segment in log.segments():
            if segment.first <= self.version <= segment.last:
                chain = segment.chains[self.version - segment.first]
        if chain != self._chain:
            raise damaged(
                folder,
                f"does not hold update {self.version} of this ledger",
                min(segment.last, self.version),
            )
        if log.writable and (segment.last != self.version or segment.torn):
            raise damaged(
                folder, f"holds more than the {self.version} updates of its writer", self.version
            )
        return chain.hex()

    def _require_open(self) -> None:
        if self._shut is not None:
            raise InputError(f"{self._folder or 'ledger'}: takes no update: {self._shut}")

    def _require_range(self, version: int, until: int) -> None:
        if not 0 <= version <= until <= self.version:
            raise InputError(
                f"wanted versions 0 <= version <= until <= {self.version}, the newest; "
                f"got {version} and {until}"
            )


def begin_ledger(path: Path | None, header: Header, *, fsync: bool = False) -> Ledger:
    """Return the ledger of a run: a new one, or the one that a resumed run has to repeat.

    path: its folder; None: in memory only. A folder without a header is left by a kill at the
    start, and is reused. Raises InputError and DataError as `Ledger.open` does.
    """
    if path is None or not (path / "header.json").exists():
        return Ledger.create(path, header, fsync=fsync)
    return Ledger.open(path, expect=header, write=True)


def ledger_facts(ledger: Ledger | None) -> dict[str, Any]:
    """Return what summary.json says about a ledger."""
    if ledger is None:
        return {}
    return {
        "ledger": {
            "updates": ledger.version,
            "pairs": ledger.entries,
            "bytes": ledger.disk_bytes,
            "memory_bytes": ledger.memory_bytes,
            "digest": ledger.digest,
        }
    }
