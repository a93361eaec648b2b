"""Linear discriminant analysis of noised rows: the head in closed form, the noise's covariance
taken off.

Rows x = h + N(0, σ² I) of class k are taken for N(m + d_k, C + σ² I). The pooled covariance within
classes less σ² I is an unbiased estimate of C; it is drawn towards its mean eigenvalue by the share
of its spread that sampling explains (Ledoit and Wolf 2004), and no eigenvalue stays below 0. The
offsets d_k are shrunk likewise, as posterior means under N(0, τ² I), whose posterior variance adds
to C (the predictive law). No setting is tuned. Scores are those of rows
without noise: log p_k + xᵀ A d_k - (m + d_k/2)ᵀ A d_k with A the inverse of the sum.
"""

# N rows, F features (M clients x E), K classes

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]


def discriminant(
    rows_NF: npt.NDArray[np.float32], classes_N: npt.NDArray[np.int64], count: int, variance: float
) -> tuple[Reals, Reals] | None:
    """Return weights [K, F] and biases [K] of linear scores; None where no row differs from others
    of its class.

    count: K; variance: σ² of the noise on each coordinate.
    """
    total = len(rows_NF)
    x_NF = rows_NF.astype(np.float64)
    sizes_K = np.bincount(classes_N, minlength=count)
    centre_F = x_NF.sum(0) / max(total, 1)
    sums_KF = np.zeros((count, x_NF.shape[1]))
    np.add.at(sums_KF, classes_N, x_NF - centre_F)
    offsets_KF = sums_KF / np.maximum(sizes_K, 1)[:, None]
    within_NF = x_NF - centre_F - offsets_KF[classes_N]
    if total <= count or not within_NF.any():
        return None
    noised_FF = within_NF.T @ within_NF / (total - count)
    offsets_KF, doubt = _shrunk_offsets(offsets_KF, sizes_K, float(np.trace(noised_FF)))
    covariance_FF = _shrunk_covariance(noised_FF, variance, total) + doubt * np.eye(x_NF.shape[1])
    weights_KF: Reals = np.linalg.solve(covariance_FF, offsets_KF.T).T.astype(np.float64)
    priors_K = (sizes_K + 1) / (total + count)
    biases_K: Reals = np.log(priors_K) - ((centre_F + offsets_KF / 2) * weights_KF).sum(1)
    return weights_KF, biases_K


def _shrunk_offsets(
    offsets_KF: Reals, sizes_K: npt.NDArray[np.int64], trace: float
) -> tuple[Reals, float]:
    """Return the classes' offsets as posterior means under N(0, τ² I), and their mean posterior
    variance.

    trace: of the rows' covariance within classes; τ² is what the offsets spread beyond what that
    explains, and no less than the standard error of this estimate.
    """
    total, (count, width) = int(sizes_K.sum()), offsets_KF.shape
    noise = trace / width
    spread = float((sizes_K[:, None] * offsets_KF**2).sum()) / total / width
    explained = (count - 1) / total * noise
    prior = max(spread - explained, explained * math.sqrt(2 / (max(count - 1, 1) * width)))
    kept_K = prior / (prior + noise / np.maximum(sizes_K, 1e-9))
    return offsets_KF * kept_K[:, None], float(prior * np.sum(sizes_K * (1 - kept_K)) / total)


def _shrunk_covariance(noised_FF: Reals, variance: float, total: int) -> Reals:
    """Return C: σ² I taken off, the rest drawn to a multiple of I as far as sampling explains its
    spread.
    """
    width = len(noised_FF)
    level = np.trace(noised_FF) / width
    beyond_FF = noised_FF - level * np.eye(width)
    spread = float((beyond_FF**2).sum())
    sampling = (float((noised_FF**2).sum()) + float(np.trace(noised_FF)) ** 2) / total
    kept = max(0.0, 1 - sampling / spread) if spread else 0.0
    values_F, vectors_FF = np.linalg.eigh(
        max(level - variance, 0.0) * np.eye(width) + kept * beyond_FF
    )
    floor = 1e-6 * level  # rows without noise may lie in fewer dimensions than they have
    return (vectors_FF * np.maximum(values_F, floor)) @ vectors_FF.T
