"""Clipping: what bounds one record's direct part in a released mean."""

from __future__ import annotations

import torch


def clip_two_sided(slopes_B: torch.Tensor, threshold: float) -> tuple[torch.Tensor, int]:
    """Return slopes clipped to [-C, C], float64 [B], and how many were not finite (those count as 0).

    The papers print min{δ, C}: one-sided, of unbounded sensitivity. Two-sided, replacing one record's slope
    changes the sum by at most 2C and removing it by at most C.
    """
    finite = torch.isfinite(slopes_B)
    kept_B = torch.where(finite, slopes_B, torch.zeros_like(slopes_B))
    # in float32 the threshold itself would be rounded, often up, and the claimed sensitivity exceeded
    clipped = kept_B.double().clamp(-threshold, threshold)
    return clipped, int((~finite).sum())


def clip_rows(rows_BE: torch.Tensor, threshold: float) -> tuple[torch.Tensor, int]:
    """Return rows of Euclidean norm at most S, float64 [B, E], and how many were not finite (those count as 0).

    Replacing one record's row moves it by at most 2S, setting it to zero by at most S.
    """
    finite_B = torch.isfinite(rows_BE).all(1)
    kept_BE = torch.where(finite_B[:, None], rows_BE, torch.zeros_like(rows_BE)).double()
    norms_B1 = torch.linalg.vector_norm(kept_BE, dim=1, keepdim=True)
    # only rows that are too long are touched; the last factor keeps rounding from leaving them a hair above S
    factors_B1 = torch.where(
        norms_B1 > threshold, threshold / norms_B1 * (1 - 2.0**-50), torch.ones_like(norms_B1)
    )
    return kept_BE * factors_B1, int((~finite_B).sum())
