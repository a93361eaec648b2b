"""The mean of a model's last iterates: Polyak and Ruppert's averaging, over a tail of the updates
alone.

Iterates are functions of what was released, and so is their mean: it costs no privacy. Sources:
Polyak and Juditsky 1992; Rakhlin, Shamir and Sridharan 2012 (the last share of the iterates).
"""

# d parameters

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def tail_begin(share: float | None, updates: int | None, gathered: int) -> int | None:
    """Return after which update of the ledger the tail begins; None: there is no tail.

    share: of the ledger's planned updates, the last ones; updates: planned uploads, Q = `gathered`
    of which make one update of the ledger.
    """
    if share is None or updates is None:
        return None
    planned = updates // gathered
    return planned - round(share * planned)


class ModelAverage:
    """Mean of a model's iterates after the updates past `begin`; of none if `begin` is None.

    They are summed in float64 in the order in which they come, so that equal summands give equal
    bits.
    """

    def __init__(self, begin: int | None) -> None:
        self._begin, self._count = begin, 0
        self._sum_d: npt.NDArray[np.float64] = np.zeros(0)

    def covers(self, update: int) -> bool:
        """Return whether the iterate after this update of the ledger belongs to the tail."""
        return self._begin is not None and update > self._begin

    def before(self, updates: Sequence[int]) -> int:
        """Return how many of these updates, ascending, come before the tail."""
        return len(updates) if self._begin is None else bisect_right(updates, self._begin)

    def add(self, x_d: npt.NDArray[np.float32]) -> None:
        """Add an iterate of the tail, float32 [d]."""
        iterate_d = x_d.astype(np.float64)
        self._sum_d = self._sum_d + iterate_d if self._count else iterate_d
        self._count += 1

    def state(self) -> tuple[int, npt.NDArray[np.float64]]:
        """Return how many iterates were taken, and their sum, float64 [d]."""
        return self._count, self._sum_d

    def restore(self, state: tuple[int, npt.NDArray[np.float64]]) -> None:
        """Take over another mean's state."""
        self._count, self._sum_d = state

    def mean(self) -> npt.NDArray[np.float32] | None:
        """Return the mean so far, float32 [d]; None before the tail's first iterate."""
        return (self._sum_d / self._count).astype(np.float32) if self._count else None
