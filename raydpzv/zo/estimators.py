"""Zeroth-order estimates from function values."""

from __future__ import annotations

import torch


def slope(plus: torch.Tensor, minus: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return the two-point slope along u, (f(w + λu) - f(w - λu)) / (2λ), elementwise.

    DPZV (preprint) Eq. (3). Eq. (7) prints λ in place of 2λ; the proofs use 2λ, and so do we: the printed form
    is this one with the step size doubled and the clipping threshold halved.
    """
    return (plus - minus) / (2 * smoothing)
