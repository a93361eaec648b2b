"""Areas under the ROC and the precision-recall curve of two classes: what scikit-learn finds, without its import."""

# N rows, P of them positive, T distinct scores

from __future__ import annotations

import math

import numpy as np


def areas(scores_N: np.ndarray, labels_N: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision of float scores for labels 0 and 1.

    Rows with equal scores are one step of either curve: the first area is the share of pairs of classes in the right
    order, ties counting half (`sklearn.metrics.roc_auc_score`), the second sum_t (R_t - R_(t-1)) P_t over recall and
    precision at the distinct scores (`average_precision_score`). NaN where a score is not finite, or without both
    classes.
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
