"""The working set: the entries in growable columns, with the place of every round.

52 bytes per entry held (up to twice that after a doubling) and 8 bytes per round.
"""

from __future__ import annotations

import numpy as np

from raydpzv.ledger.entries import COLUMNS, Array, LedgerUpdate, Slice, frozen

_LEAST = 64


class WorkingSet:
    """Updates trimmed+1 .. version in memory. Arrays that were handed out are never written to again."""

    def __init__(self) -> None:
        self.version = 0
        self.trimmed = 0
        self._offsets = np.zeros(_LEAST, np.int64)  # entries after version v, also of what is trimmed
        self._base = 0  # the number of the entry that stands first in the columns
        self._allocate(_LEAST)

    @property
    def entries(self) -> int:
        """Entries of all updates so far, trimmed ones included."""
        return int(self._offsets[self.version])

    @property
    def nbytes(self) -> int:
        """Bytes of the columns and of the rounds' places."""
        return self._offsets.nbytes + sum(column.nbytes for column in self._columns)

    def add(self, update: LedgerUpdate) -> None:
        """Take one update in; it counts from the last line on."""
        n = len(update.seed)
        a = self._room(n, 1)
        values = (update.round, update.party, update.read, update.step)
        values += (update.perturbation, update.seed, update.scalar, update.lr)  # type: ignore[assignment]
        for column, value in zip(self._columns, values, strict=True):
            column[a : a + n] = value
        self._offsets[self.version + 1] = self._base + a + n
        self.version += 1

    def extend(self, entries: Slice, bounds: Array) -> None:
        """Take a slice in; `bounds` are the places of its updates, from 0, int64 [updates + 1]."""
        a = self._room(len(entries), len(bounds) - 1)
        for column, name in zip(self._columns, COLUMNS, strict=True):
            column[a : a + len(entries)] = getattr(entries, name)
        after = self.version + len(bounds) - 1
        self._offsets[self.version + 1 : after + 1] = self._base + a + bounds[1:]
        self.version = after

    def slice(self, version: int, until: int) -> Slice:
        """Return updates version+1 .. until without a copy; trimmed <= version <= until <= the newest."""
        a, b = self._offsets[version] - self._base, self._offsets[until] - self._base
        return Slice(version, until, *[view[a:b] for view in self._views])

    def pairs(self, version: int, until: int) -> int:
        """Return the number of entries of updates version+1 .. until."""
        return int(self._offsets[until] - self._offsets[version])

    def trim(self, version: int) -> None:
        """Forget updates <= version; the memory comes back when more than half of what is held is forgotten."""
        self.trimmed = max(self.trimmed, version)
        held, dead = self.entries - self._base, int(self._offsets[self.trimmed]) - self._base
        if 2 * dead > held:
            self._move(held - dead + (held - dead) // 4)

    def truncate(self, version: int) -> None:
        """Forget updates > version; the columns move, since slices of the old ones may be in use."""
        self.trimmed = min(self.trimmed, version)
        self._base = min(self._base, int(self._offsets[version]))
        self.version = version
        self._move(self.entries - self._base)

    def _room(self, entries: int, updates: int) -> int:
        """Make room for so many more and return where they begin."""
        if self.version + updates >= len(self._offsets):
            offsets = np.zeros(2 * max(len(self._offsets), updates), np.int64)
            offsets[: self.version + 1] = self._offsets[: self.version + 1]
            self._offsets = offsets
        if self.entries - self._base + entries > len(self._columns[0]):
            self._move(2 * (self.entries - int(self._offsets[self.trimmed])) + entries)
        return self.entries - self._base

    def _move(self, capacity: int) -> None:
        """Copy what is not trimmed to new columns."""
        old, first, last = self._columns, int(self._offsets[self.trimmed]), self.entries
        a, b = first - self._base, last - self._base
        self._allocate(max(capacity, _LEAST))
        for column, values in zip(self._columns, old, strict=True):
            column[: b - a] = values[a:b]
        self._base = first

    def _allocate(self, capacity: int) -> None:
        self._columns = [np.empty(capacity, dtype) for dtype in COLUMNS.values()]
        self._views = [frozen(column) for column in self._columns]
