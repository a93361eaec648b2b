"""Counting a batch's participations, compiled: callers go through
`raydpzv.privacy.participations`.
"""

from __future__ import annotations

from raydpzv.zo.kernel_cache import compiled


@compiled
def count(counts, marks, ids, releases, keeps):  # type: ignore[no-untyped-def]
    """Return the largest count among rows `ids` [n] after so many releases; counts [D]: changed if
    it `keeps` them.

    -1: a row does not exist, or is there twice, and nothing is changed. marks [D]: to write to.
    """
    rows = counts.shape[0]
    for n in range(ids.shape[0]):
        if ids[n] < 0 or ids[n] >= rows:
            return -1
        marks[ids[n]] = n  # of a row that is there twice, the later place stays
    for n in range(ids.shape[0]):
        if marks[ids[n]] != n:
            return -1
    largest = 0
    for n in range(ids.shape[0]):
        found = counts[ids[n]] + releases
        largest = max(largest, found)
        if keeps:
            counts[ids[n]] = found
    return largest
