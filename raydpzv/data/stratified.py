"""Which rows are held out: drawn at random with every class in (nearly) the same proportion on both sides.

The draw is scikit-learn's `train_test_split(..., stratify=y)` to the bit (a test compares them), written out because
importing `sklearn.model_selection` takes two seconds of CPU, and so that no release of theirs moves a recorded run.
Rows that belong together, such as one patient's, can stay on one side.
"""

# D rows, G groups, K classes that occur

from __future__ import annotations

import math

import numpy as np


def stratified_rows(
    labels: np.ndarray, test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the numbers of the training and of the test rows; None if a class would be missing on either side.

    labels: int [D]; test_fraction: in (0, 1); seed: 32 bits.
    """
    _, kinds_D, counts_K = np.unique(labels, return_inverse=True, return_counts=True)
    held_out = math.ceil(test_fraction * len(labels))
    kept = len(labels) - held_out
    if counts_K.min() < 2 or min(kept, held_out) < len(counts_K):
        return None
    rows_of = np.split(np.argsort(kinds_D, kind="stable"), np.cumsum(counts_K)[:-1])
    # the legacy generator is the one scikit-learn draws from; numpy has frozen its stream (NEP 19)
    rng = np.random.RandomState(seed)
    train_K = _shares(counts_K, kept, rng)
    test_K = _shares(counts_K - train_K, held_out, rng)
    if not (train_K.all() and test_K.all()):
        return None
    train, test = [], []
    for rows, of_train, of_test in zip(rows_of, train_K, test_K, strict=True):
        shuffled = rows[rng.permutation(len(rows))]
        train.append(shuffled[:of_train])
        test.append(shuffled[of_train : of_train + of_test])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def _shares(counts_K: np.ndarray, draws: int, rng: np.random.RandomState) -> np.ndarray:
    """Return how many of the draws each class gets, int [K]: its proportion, the largest remainders rounded up."""
    exact_K = counts_K / counts_K.sum() * draws
    shares_K = np.floor(exact_K)
    remainders_K = exact_K - shares_K
    left = int(draws - shares_K.sum())
    for remainder in np.unique(remainders_K)[::-1]:
        if left == 0:
            break
        tied = np.flatnonzero(remainders_K == remainder)
        chosen = rng.choice(tied, size=min(len(tied), left), replace=False)
        shares_K[chosen] += 1
        left -= len(chosen)
    return shares_K.astype(np.int64)


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
