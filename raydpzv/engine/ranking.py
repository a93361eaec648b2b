"""Scores by which held-out rows are judged: what scikit-learn finds, without its import, and
concordance.
"""

# N rows, P of them positive, T distinct scores, E events

from __future__ import annotations

import math

import numpy as np


def areas(scores_N: np.ndarray, labels_N: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision of float scores for labels 0
    and 1.

    Rows with equal scores are one step of either curve: the first area is the share of pairs of
    classes in the right order, ties counting half (`sklearn.metrics.roc_auc_score`), the second
    sum_t (R_t - R_(t-1)) P_t over recall and precision at the distinct scores
    (`average_precision_score`). NaN where a score is not finite, or without both classes.
    """
    positives = int(labels_N.sum())
    if not 0 < positives < len(labels_N) or not np.isfinite(scores_N).all():
        return math.nan, math.nan
    order = np.argsort(-scores_N, kind="stable")
    falling_N, hits_N = scores_N[order], labels_N[order].cumsum()
    last_T = np.append(np.flatnonzero(falling_N[1:] != falling_N[:-1]), len(falling_N) - 1)
    right_T, found_T = hits_N[last_T], last_T + 1
    more_T, before_T = np.diff(right_T, prepend=0), np.append(0, right_T[:-1])
    wrong_T = np.diff(found_T - right_T, prepend=0)
    pairs = positives * (len(labels_N) - positives)
    return (
        float((wrong_T * (before_T + right_T)).sum() / (2 * pairs)),
        float((more_T / positives * (right_T / found_T)).sum()),
    )


def balanced_accuracy(scores_N: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the mean of both classes' shares of rows predicted right, where a score above 0
    predicts class 1.

    It is `sklearn.metrics.balanced_accuracy_score`; NaN where a score is not finite, or without
    both classes.
    """
    positives = int(labels_N.sum())
    if not 0 < positives < len(labels_N) or not np.isfinite(scores_N).all():
        return math.nan
    predicted_N = scores_N > 0
    found = int(predicted_N[labels_N == 1].sum()) / positives
    return (found + int((~predicted_N[labels_N == 0]).sum()) / (len(labels_N) - positives)) / 2


def concordance(scores_N: np.ndarray, times_N: np.ndarray, events_N: np.ndarray) -> float:
    """Return the share of comparable pairs whose higher score has the earlier event; ties of scores
    count one half.

    Comparable are t_i < t_j where t_i is the time of an event (events: 1, or 0 for censored):
    Harrell et al. (1982). NaN where a score is not finite, or without a comparable pair. O(N log²
    N): the ranks of t_i < t_j first differ in one bit, and bit by bit pairs are counted by
    bisection among the rows that agree before it.
    """
    if not np.isfinite(scores_N).all():
        return math.nan
    times_N, scores_N = (
        np.unique(values, return_inverse=True)[1] for values in (times_N, scores_N)
    )
    width, twice, pairs = len(scores_N) + 1, 0, 0
    for bit in range(int(times_N.max()).bit_length()):
        late_N = (times_N >> bit) & 1 == 1
        group_N = (times_N >> (bit + 1)) * width
        later = np.sort((group_N + scores_N)[late_N])
        first_N = ~late_N & (events_N == 1)
        first_E = group_N[first_N]
        places = [
            np.searchsorted(later, first_E + offset)
            for offset in (0, scores_N[first_N], scores_N[first_N] + 1, width)
        ]
        start_E, below_E, through_E, end_E = places
        twice += int((below_E - start_E).sum() + (through_E - start_E).sum())
        pairs += int((end_E - start_E).sum())
    return twice / (2 * pairs) if pairs else math.nan
