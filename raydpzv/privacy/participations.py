"""How often each record took part in releases, counted batch by batch."""

# D rows, n rows of a batch

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError

Rows = npt.NDArray[Any]
"""Row numbers of a batch, int32 or int64 [n]."""


class Participations:
    """Releases that each of D records took part in; `most` is the largest count so far.

    marks: int64 [D] to write to, which several accounts of the same records may share; None: an array of its own.
    """

    def __init__(self, rows: int, marks: npt.NDArray[np.int64] | None = None) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.most = 0
        self._marks = np.zeros(rows, np.int64) if marks is None else marks
        self._order = np.arange(0)  # 0, 1, ... as many as the last batch had rows

    def add(self, ids: Rows, releases: int) -> None:
        """Count so many releases on one batch: `ids` [n], int32 or int64, distinct row numbers.

        Raises InputError for a row twice in one batch (its sensitivity would double) or outside 0..D-1.
        """
        if not ids.size:
            return
        self.check(ids)
        counts = self.counts[ids] + releases
        self.counts[ids] = counts
        self.most = max(self.most, int(np.maximum.reduce(counts)))

    def after(self, ids: Rows, releases: int) -> int:
        """Return what the largest count would be after so many releases on one batch. Raises InputError as `add`."""
        if not ids.size:
            return self.most
        self.check(ids)
        return max(self.most, int(np.maximum.reduce(self.counts[ids])) + releases)

    def check(self, ids: Rows) -> None:
        """Raise InputError unless the row numbers are distinct and in 0..D-1."""
        if not ids.size:
            return
        # a negative number is a large one without its sign: one bound in place of two
        if np.maximum.reduce(ids.view(np.uint32 if ids.itemsize == 4 else np.uint64)) >= len(self.counts):
            raise InputError(
                f"row numbers must lie in 0..{len(self.counts) - 1}: {ids.min()}..{ids.max()} came"
            )
        if ids.size != self._order.size:
            self._order = np.arange(ids.size)
        order = self._order
        self._marks[ids] = order  # of a row that is there twice, the later place stays
        if self._marks[ids].tobytes() != order.tobytes():
            raise InputError("a row is twice in one batch, which doubles its sensitivity: draw distinct rows")
