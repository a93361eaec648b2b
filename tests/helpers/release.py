"""A mean of slopes released as a party does it: clipped, summed, noised."""

from __future__ import annotations

import math

import torch

from raydpzv.privacy import mechanisms
from raydpzv.privacy.mechanisms import Address, Noise, Receipt


def release_mean(
    slopes_B: torch.Tensor,
    *,
    threshold: float | None,
    divisor: int,
    sigma: float,
    noise: Noise,
    address: Address,
) -> tuple[float, Receipt]:
    """Release the mean of these slopes with its receipt."""
    bound = math.inf if threshold is None else threshold
    clipped_B, nonfinite = mechanisms.clip_two_sided(slopes_B, bound)
    return mechanisms.release_sum(
        float(clipped_B.sum()),
        batch=slopes_B.numel(),
        nonfinite=nonfinite,
        threshold=threshold,
        divisor=divisor,
        sigma=sigma,
        noise=noise,
        address=address,
    )
