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
