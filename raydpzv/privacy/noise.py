"""Noise with receipts: the only place where a private mean is formed, noised and let out.

A value before its noise never leaves these functions. The receipt says what was done; accountants read receipts
and nothing else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from raydpzv.errors import ReplayMismatch
from raydpzv.keys import Key
from raydpzv.privacy.clip import clip_two_sided


@dataclass(frozen=True)
class Receipt:
    """How one value was released."""

    mechanism: str  # "gaussian" or "none"
    source: str  # "system", "seeded", "recorded" or "none"
    sigma: float  # standard deviation of the noise on the mean
    sensitivity_replace: float  # 2C / divisor
    sensitivity_add_remove: float  # C / divisor
    divisor: int  # the constant the sum is divided by
    batch: int  # records in the batch
    nonfinite: int  # slopes mapped to 0 before the clip


Address = tuple[int, int, int]
"""(client, step, perturbation) of a release."""


class Noise(Protocol):
    """A source of noise for released values."""

    source: str

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return mean + N(0, sigma²)."""
        ...


class SystemNoise:
    """Gaussian noise from the operating system's randomness: never seeded, never stored.

    In double precision, so not exact: the privacy table labels it as floating point.
    """

    source = "system"

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return mean + N(0, sigma²)."""
        return mean + self._random.gauss(0.0, sigma)


class SeededNoise:
    """Gaussian noise that anybody with the seed can subtract: for tests and reproducibility studies. NOT PRIVATE."""

    source = "seeded"

    def __init__(self, key: Key) -> None:
        self._key = key / "seeded noise"

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return mean + N(0, sigma²), the noise a function of the seed and the address."""
        client, step, perturbation = address
        draw = (self._key / client / step / perturbation).generator().standard_normal()
        return mean + sigma * float(draw)


class NoNoise:
    """The exact mean, for runs without privacy."""

    source = "none"

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return the mean itself."""
        return mean


class RecordedNoise:
    """Gives recorded releases out again; what the record does not have goes to another source, if there is one.

    Sending a stored release again costs no privacy; drawing a new one for the same step would be a second release.
    """

    def __init__(self, values: Mapping[Address, float], then: Noise | None = None) -> None:
        self._values = values
        self._then = then
        self.source = then.source if then else "recorded"

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return the recorded value of this address, or a new release where the record has none."""
        if address in self._values:
            return self._values[address]
        if self._then is None:
            raise ReplayMismatch(
                f"the record has no release for client {address[0]}, step {address[1]}, perturbation {address[2]}: "
                "it does not belong to this scenario, or rows are missing"
            )
        return self._then.release(mean, sigma, address)


def release_mean(
    slopes_B: torch.Tensor,
    *,
    threshold: float | None,
    divisor: int,
    sigma: float,
    noise: Noise,
    address: Address,
) -> tuple[float, Receipt]:
    """Release Δ = (1/B) Σ clip(δ_i) + N(0, σ²) with its receipt (DPZV journal Eq. (8), clip two-sided).

    slopes_B: float32 [B']; divisor: the constant expected batch size B, whatever B' is (an empty batch releases
    pure noise); threshold None: no clipping, for runs without privacy. The value is rounded to float32, the format
    in which it is sent, applied and recorded.
    """
    bound = math.inf if threshold is None else threshold
    clipped_B, nonfinite = clip_two_sided(slopes_B, bound)
    mean = float(clipped_B.sum()) / divisor
    value = float(np.float32(noise.release(mean, sigma, address)))
    receipt = Receipt(
        mechanism="none" if noise.source == "none" else "gaussian",
        source=noise.source,
        sigma=0.0 if noise.source == "none" else sigma,
        sensitivity_replace=2 * bound / divisor,
        sensitivity_add_remove=bound / divisor,
        divisor=divisor,
        batch=slopes_B.numel(),
        nonfinite=nonfinite,
    )
    return value, receipt
