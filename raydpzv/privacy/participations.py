"""How often each record took part in releases, counted batch by batch."""

# D rows, n rows of a batch

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raydpzv.errors import InputError
from raydpzv.zo.kernels import Kernel

_count = Kernel("count", "raydpzv.privacy.participations_kernel")

Rows = npt.NDArray[Any]
"""Row numbers of a batch, int32 or int64 [n]."""


class Participations:
    """Releases that each of D records took part in; `most` is the largest count so far.

    marks: int64 [D] to write to, which several accounts of the same records may share; None: an
    array of its own.
    """

    def __init__(self, rows: int, marks: npt.NDArray[np.int64] | None = None) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self.most = 0
        self._marks = np.zeros(rows, np.int64) if marks is None else marks

    def add(self, ids: Rows, releases: int) -> None:
        """Count so many releases on one batch: `ids` [n], int32 or int64, distinct row numbers.

        Raises InputError for a row twice in one batch (its sensitivity would double) or outside
        0..D-1.
        """
        self.most = self._largest(ids, releases, keeps=True)

    def restore(self, counts: npt.NDArray[np.int64]) -> None:
        """Continue with the counts of another account, int64 [D]."""
        self.counts, self.most = counts.copy(), int(counts.max(initial=0))

    def after(self, ids: Rows, releases: int) -> int:
        """Return what the largest count would be after so many releases on one batch. Raises
        InputError as `add`.
        """
        return self._largest(ids, releases, keeps=False)

    def _largest(self, ids: Rows, releases: int, *, keeps: bool) -> int:
        found = _count(self.counts, self._marks, ids.astype(np.int64), releases, keeps)
        if found >= 0:
            return max(self.most, found)
        if len(np.unique(ids)) < len(ids):
            raise InputError(
                "a row is twice in one batch, which doubles its sensitivity: draw distinct rows"
            )
        raise InputError(
            f"row numbers must lie in 0..{len(self.counts) - 1}: {ids.min()}..{ids.max()} came"
        )
