"""Which rows are held out where some belong together: all rows of a group, such as one patient's, on one side."""

# D rows, G groups

from __future__ import annotations

import math

import numpy as np

from raydpzv.data.stratified import stratified_rows


def grouped_rows(
    labels: np.ndarray, groups: np.ndarray, test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the numbers of the training and of the test rows, each ascending; None if a class is missing on a side.

    labels, groups: int [D]; test_fraction: of the groups, in (0, 1); seed: 32 bits. Where every group has one class
    the draw of groups is stratified by it, as `stratified_rows` does it; groups of several classes are drawn as they
    come.
    """
    group_D = np.unique(groups, return_inverse=True)[1]
    count = int(group_D.max()) + 1
    lowest_G, highest_G = np.full(count, labels.max()), np.full(count, labels.min())
    np.minimum.at(lowest_G, group_D, labels)
    np.maximum.at(highest_G, group_D, labels)
    if np.array_equal(lowest_G, highest_G):
        drawn = stratified_rows(lowest_G, test_fraction, seed)
    else:
        order = np.random.RandomState(seed).permutation(count)  # the generator of the stratified draw
        held_out = math.ceil(test_fraction * count)
        drawn = order[held_out:], order[:held_out]
    if drawn is None:
        return None
    tested_D = np.isin(group_D, drawn[1])
    complete = all(len(np.unique(labels[side])) == len(np.unique(labels)) for side in (~tested_D, tested_D))
    return (np.flatnonzero(~tested_D), np.flatnonzero(tested_D)) if complete else None
