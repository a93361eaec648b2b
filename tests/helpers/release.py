"""A mean of slopes released as a party does it: clipped, summed, noised."""

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
    how = mechanisms.MeanRelease(threshold, sigma, noise, divisor)
    clipped_B, nonfinite = mechanisms.clip_two_sided(slopes_B, how.bound)
    return how.release(
        mechanisms.ClippedSum(float(clipped_B.sum()), slopes_B.numel(), nonfinite), address
    )
