"""The working set: the entries in growable columns, with the place of every round.

52 bytes per entry held (up to twice that after a doubling) and 8 bytes per round.
"""

# n entries of an update, N of those that are written at once

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raydpzv.ledger.entries import COLUMNS, CONSTANT, Array, LedgerUpdate, Slice, frozen

_LEAST = 64
_GROWS_BY = 512
"""Most updates that wait before they are written into the columns together."""


class WorkingSet:
    """Updates trimmed+1 .. version in memory. Arrays that were returned are never overwritten."""

    def __init__(self) -> None:
        self.version = 0
        self.trimmed = 0
        self._waiting: list[LedgerUpdate] = []  # the newest, not in the columns yet
        self._written = 0  # the version that the columns are at
        self._offsets = np.zeros(
            _LEAST, np.int64
        )  # entries after version v, also of what is trimmed
        self._base = 0  # the number of the entry that stands first in the columns
        self._allocate(_LEAST)

    @property
    def entries(self) -> int:
        """Entries of all updates so far, trimmed ones included."""
        self._write()
        return int(self._offsets[self._written])

    @property
    def nbytes(self) -> int:
        """Bytes of the columns and of the rounds' places."""
        self._write()
        return self._offsets.nbytes + sum(column.nbytes for column in self._columns)

    def add(self, update: LedgerUpdate) -> None:
        """Add one update; it counts from the last line on."""
        if len(self._waiting) >= _GROWS_BY:
            self._write()
        self._waiting.append(update)
        self.version += 1

    def extend(self, entries: Slice, bounds: Array) -> None:
        """Add a slice; `bounds` are the offsets of its updates, from 0, int64 [updates + 1]."""
        self._write()
        self._append([getattr(entries, name) for name in COLUMNS], bounds)
        self.version = self._written

    def slice(self, version: int, until: int) -> Slice:
        """Return updates version+1 .. until without a copy; trimmed <= version <= until <= the
        newest.
        """
        self._write()
        a, b = self._offsets[version] - self._base, self._offsets[until] - self._base
        return Slice(version, until, *[view[a:b] for view in self._views])

    def pairs(self, version: int, until: int) -> int:
        """Return the number of entries of updates version+1 .. until."""
        self._write()
        return int(self._offsets[until] - self._offsets[version])

    def trim(self, version: int) -> None:
        """Forget updates <= version; free their memory once they take more than half of it."""
        self._write()
        self.trimmed = max(self.trimmed, version)
        total, dead = self.entries - self._base, int(self._offsets[self.trimmed]) - self._base
        if 2 * dead > total:
            self._move(total - dead + (total - dead) // 4)

    def truncate(self, version: int) -> None:
        """Forget updates > version; copy the columns, since slices of the old ones may be in
        use.
        """
        self._write()
        self.trimmed = min(self.trimmed, version)
        self._base = min(self._base, int(self._offsets[version]))
        self.version = self._written = version
        self._move(self.entries - self._base)

    def _write(self) -> None:
        """Write waiting updates into the columns, but for those that an interruption added twice or
        only in part.
        """
        if not self._waiting:
            return
        if updates := [u for u in self._waiting if self._written < u.round <= self.version]:
            counts = np.array([len(u.seed) // 8 for u in updates], np.int64)
            values = dict(zip(LedgerUpdate._fields, zip(*updates, strict=True), strict=True))
            columns = [_column(values[name], name, counts) for name in COLUMNS]
            self._append(columns, np.concatenate(([0], np.cumsum(counts))))
        self._waiting = []

    def _append(self, columns_N: list[Array], bounds: Array) -> None:
        """Add updates to the columns; they count from the last line on."""
        count, updates = int(bounds[-1]), len(bounds) - 1
        a, after = self._room(count, updates), self._written + updates
        for column, values_N in zip(self._columns, columns_N, strict=True):
            column[a : a + count] = values_N
        self._offsets[self._written + 1 : after + 1] = self._base + a + bounds[1:]
        self._written = after

    def _room(self, entries: int, updates: int) -> int:
        """Make room for more entries and updates; return the offset of the first."""
        if self._written + updates >= len(self._offsets):
            offsets = np.zeros(_doubled(self._written + updates + 1), np.int64)
            offsets[: self._written + 1] = self._offsets[: self._written + 1]
            self._offsets = offsets
        last = int(self._offsets[self._written])
        if last - self._base + entries > len(self._columns[0]):
            self._move(_doubled(last - int(self._offsets[self.trimmed]) + entries))
        return last - self._base

    def _move(self, capacity: int) -> None:
        """Copy untrimmed entries to new columns."""
        old, first, last = (
            self._columns,
            int(self._offsets[self.trimmed]),
            int(self._offsets[self._written]),
        )
        a, b = first - self._base, last - self._base
        self._allocate(max(capacity, _LEAST))
        for column, values in zip(self._columns, old, strict=True):
            column[: b - a] = values[a:b]
        self._base = first

    def _allocate(self, capacity: int) -> None:
        self._columns = [np.empty(capacity, dtype) for dtype in COLUMNS.values()]
        self._views = [frozen(column) for column in self._columns]


def _doubled(least: int) -> int:
    """Return a capacity that depends on the number of entries alone, not on the batches they came
    in.
    """
    return max(_LEAST, 1 << (least - 1).bit_length())


def _column(values: Sequence[Any], name: str, counts: Array) -> Array:
    """Return one column of several updates, given each update's value and its number of entries."""
    if name in CONSTANT:
        return np.repeat(np.array(values, COLUMNS[name]), counts)
    return np.frombuffer(b"".join(values), COLUMNS[name])
