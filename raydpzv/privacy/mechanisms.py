"""Noise with receipts: the only place where a private mean is noised and let out.

An engine clips and sums the slopes; what leaves these functions is noised. The receipt says what
was done; accountants read receipts and nothing else.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from raydpzv.errors import ReplayMismatch
from raydpzv.keys import Key
from raydpzv.lazy_import import torch


class Receipt(NamedTuple):
    """How one value, or every row of an array, was released."""

    # "gaussian" or "none"; "gaussian rows": independent noise on every coordinate of every row
    mechanism: str
    source: str  # "system", "seeded", "recorded" or "none"
    sigma: float  # standard deviation of the noise on the mean, or on each coordinate of a row
    sensitivity_replace: float  # 2C / divisor; of a row, its ℓ2 norm
    sensitivity_add_remove: float  # C / divisor
    divisor: int  # the constant the sum is divided by
    batch: int  # records in the batch
    nonfinite: int  # slopes, or rows, mapped to 0 before the clip


Address = tuple[int, int, int]
"""(client, step, perturbation) of a release."""


class Noise(Protocol):
    """A source of noise for released values."""

    source: str

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return mean + N(0, sigma²)."""
        ...


class RowNoise(Protocol):
    """A source of noise for rows of an array."""

    source: str

    def normal(self, count: int, address: Address) -> np.ndarray:
        """Return standard normal draws, float64 [count]."""
        ...

    def uniform(self, count: int, address: Address) -> np.ndarray:
        """Return uniform draws on [-1, 1], float64 [count]."""
        ...


class SystemNoise:
    """Gaussian noise from the operating system's randomness: never seeded, never stored.

    In double precision, so not exact: the privacy table labels it as floating point.
    """

    source = "system"

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def release(self, mean: float, sigma: float, address: Address) -> float:
        return mean + self._random.gauss(0.0, sigma)

    def normal(self, count: int, address: Address) -> np.ndarray:
        """Return standard normal draws, the inverse of Φ at uniform ones of 53 bits."""
        from scipy.special import (
            ndtri,
        )  # not all who import this draw rows, and scipy takes a second

        return np.asarray(ndtri(_system_uniform(count)))

    def uniform(self, count: int, address: Address) -> np.ndarray:
        return 2 * _system_uniform(count) - 1


class SeededNoise:
    """Gaussian noise that anybody with the seed can subtract: for tests and reproducibility
    studies. NOT PRIVATE.
    """

    source = "seeded"

    def __init__(self, key: Key) -> None:
        self._key = key / "seeded noise"

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return mean + N(0, sigma²), the noise a function of the seed and the address."""
        client, step, perturbation = address
        draw = (self._key / client / step / perturbation).generator().standard_normal()
        return mean + sigma * float(draw)

    def normal(self, count: int, address: Address) -> np.ndarray:
        """Return standard normal draws, a function of the seed and the address."""
        return self._rows(address).standard_normal(count)

    def uniform(self, count: int, address: Address) -> np.ndarray:
        """Return uniform draws on [-1, 1], a function of the seed and the address."""
        return self._rows(address).uniform(-1.0, 1.0, count)

    def _rows(self, address: Address) -> np.random.Generator:
        client, step, which = address
        return (self._key / "rows" / client / step / which).generator()


class NoNoise:
    """The exact mean, for runs without privacy."""

    source = "none"

    def release(self, mean: float, sigma: float, address: Address) -> float:
        """Return the mean itself."""
        return mean


class RecordedNoise:
    """Gives recorded releases out again; what the record does not have goes to another source, if
    there is one.

    Sending a stored release again costs no privacy; drawing a new one for the same step would be a
    second release.
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
                f"the record has no release for client {address[0]}, step {address[1]}, "
                f"perturbation {address[2]}: it does not belong to this scenario, or rows are "
                "missing"
            )
        return self._then.release(mean, sigma, address)


def clip_two_sided(slopes_B: torch.Tensor, threshold: float) -> tuple[torch.Tensor, int]:
    """Return slopes clipped to [-C, C], float64 [B], and how many were not finite (those count as
    0).

    The papers print min{δ, C}: one-sided, of unbounded sensitivity. Two-sided, replacing one
    record's slope changes the sum by at most 2C and removing it by at most C.
    """
    finite = torch.isfinite(slopes_B)
    kept_B = torch.where(finite, slopes_B, torch.zeros_like(slopes_B))
    # in float32 the threshold itself would be rounded, often up, and the claimed sensitivity
    # exceeded
    return kept_B.double().clamp(-threshold, threshold), int((~finite).sum())


def clip_rows(rows_BE: np.ndarray, threshold: float) -> tuple[np.ndarray, int]:
    """Return rows of Euclidean norm at most S, float64 [B, E], and how many were not finite (those
    count as 0).

    Replacing one record's row moves it by at most 2S, setting it to zero by at most S. Squares are
    added in the order of the columns, so that the bits are the same on every machine.
    """
    finite_B = np.isfinite(rows_BE).all(1)
    kept_BE = np.where(finite_B[:, None], rows_BE, np.float32(0)).astype(np.float64)
    squares_B = np.zeros(len(kept_BE))
    for column_B in kept_BE.T:
        squares_B += column_B * column_B
    norms_B, factors_B = np.sqrt(squares_B), np.ones(len(kept_BE))
    long_B = norms_B > threshold
    # only rows that are too long are touched; the last factor keeps rounding from leaving them a
    # hair above S
    factors_B[long_B] = threshold / norms_B[long_B] * (1 - 2.0**-50)
    return kept_BE * factors_B[:, None], int((~finite_B).sum())


class ClippedSum(NamedTuple):
    """The sum of a batch's slopes, each clipped (`clip_two_sided`); nonfinite: those of `batch`
    that count as 0.
    """

    total: float
    batch: int
    nonfinite: int


@dataclass(frozen=True)
class MeanRelease:
    """How a sum of slopes is released as a mean: threshold C (None: no clip), deviation σ of its
    noise, constant B.

    divisor: the expected batch size B, whatever the batch is, so that an empty one releases pure
    noise. Without a clip, for runs without privacy, the sensitivity is unbounded.
    """

    clip: float | None
    sigma: float
    noise: Noise
    divisor: int

    @property
    def bound(self) -> float:
        """The threshold, infinite without a clip."""
        return math.inf if self.clip is None else self.clip

    def release(self, summed: ClippedSum, address: Address) -> tuple[float, Receipt]:
        """Release Δ = total / B + N(0, σ²) with its receipt (DPZV journal Eq. (8), the clip
        two-sided).

        The value is rounded to float32, the format in which it is sent, applied and recorded.
        """
        exact = self.noise.source == "none"
        value = float(
            np.float32(self.noise.release(summed.total / self.divisor, self.sigma, address))
        )
        receipt = Receipt(
            mechanism="none" if exact else "gaussian",
            source=self.noise.source,
            sigma=0.0 if exact else self.sigma,
            sensitivity_replace=2 * self.bound / self.divisor,
            sensitivity_add_remove=self.bound / self.divisor,
            divisor=self.divisor,
            batch=summed.batch,
            nonfinite=summed.nonfinite,
        )
        return value, receipt


def release_rows(
    rows_BE: np.ndarray, *, threshold: float | None, sigma: float, noise: RowNoise, address: Address
) -> tuple[np.ndarray, Receipt]:
    """Release every row clipped to norm S plus N(0, σ²) on each coordinate, float32 [B, E], with
    its receipt.

    A row belongs to one record, whose replacement moves it by at most 2S. threshold None: rows are
    not clipped, their sensitivity is unbounded, and no ε follows. VAFL Eq. (11a) with the clip that
    a claim needs.
    """
    bound = math.inf if threshold is None else threshold
    clipped_BE, nonfinite = clip_rows(rows_BE, bound)
    draws_BE = noise.normal(clipped_BE.size, address).reshape(clipped_BE.shape)
    receipt = Receipt(
        "gaussian rows", noise.source, sigma, 2 * bound, bound, 1, len(rows_BE), nonfinite
    )
    return (clipped_BE + sigma * draws_BE).astype(np.float32), receipt


@dataclass(frozen=True)
class GradientRelease:
    """How a sum of gradients, each of norm at most C_0, is released: noise multiplier z_0, B rows,
    constant divisor.
    """

    clip: float
    multiplier: float
    rows: int
    noise: RowNoise

    def release(self, total: np.ndarray) -> np.ndarray:
        """Return g = (total + N(0, (z_0 C_0)² I)) / B, float32 [d]; the noise in double
        precision.
        """
        draws = self.noise.normal(total.size, (0, 0, 0))
        return np.asarray((total + self.multiplier * self.clip * draws) / self.rows, np.float32)

    def receipt(self, batch: int) -> Receipt:
        """Return how the mean of `batch` records' gradients was released."""
        largest = self.clip / self.rows
        sigma = self.multiplier * largest
        return Receipt(
            "gaussian",
            self.noise.source,
            sigma,
            2 * largest,
            largest,
            self.rows,
            batch,
            nonfinite=0,
        )


def _system_uniform(count: int) -> np.ndarray:
    """Draws on (0, 1) from the operating system: odd multiples of 2^-54, so that neither end is
    reached.
    """
    words = np.frombuffer(os.urandom(8 * count), np.uint64)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
