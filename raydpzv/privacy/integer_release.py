"""Released integers: a record's slopes as one clipped vector on a grid, the exact sum, and where
its noise comes from.

One release of privacy.mode = "proved" is R = Σ_i k_i + rint(N(0, s²)) on each of P coordinates; Δ =
R V / (G B) is what the client descends by. k_i is record i's vector of slopes, of Euclidean norm at
most G in whole numbers whatever was rounded, so that replacing a record moves the sum by at most 2G
and setting its term to zero by at most G.
"""

# B batch, P directions

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from raydpzv.errors import ReplayMismatch
from raydpzv.privacy.mechanisms import Address, Receipt, clip_rows
from raydpzv.privacy.rounded_gaussian import RandomBytes, rounded_gaussian

GRID = 4096
"""Grid units per limit, G."""

ClipOver = Literal["scalar", "vector"]
Integers = npt.NDArray[np.int64]
Recorded = Mapping[Address, float]
"""Released numbers by (client, step, perturbation)."""


@dataclass(frozen=True)
class IntegerRelease:
    """What a release of integers is made with: threshold C, P directions, noise multiplier z, B
    rows a release.

    over: C bounds each slope, or C√P a record's vector of them; either way V = C√P bounds the
    vector.
    """

    clip: float
    directions: int
    multiplier: float
    rows: int
    over: ClipOver = "vector"

    @property
    def limit(self) -> float:
        """Largest norm of a record's vector of slopes, V = C√P."""
        return float(self.clip * np.sqrt(self.directions))

    @property
    def scale(self) -> float:
        """Deviation of the noise in grid units, s = z G."""
        return self.multiplier * GRID

    @property
    def unit(self) -> float:
        """What one grid unit of the sum is worth in the mean, V / (G B)."""
        return self.limit / (GRID * self.rows)

    def receipt(self, source: str, *, batch: int, nonfinite: int) -> Receipt:
        """Return how a sum over `batch` records was released, σ and sensitivities in units of the
        grid.
        """
        return Receipt(
            "rounded gaussian",
            source,
            self.scale,
            2.0 * GRID,
            float(GRID),
            self.rows,
            batch,
            nonfinite,
        )


def release_integers(
    sums_P: Integers,
    how: IntegerRelease,
    *,
    batch: int,
    nonfinite: int,
    source: RandomBytes = os.urandom,
) -> tuple[Integers, Receipt]:
    """Release R = S + rint(N(0, s²)) on each of P coordinates, int64 [P], with one receipt for them
    together.

    sums_P: the sum of one integer vector a record, each of Euclidean norm at most G; batch: the
    records in the sum;
    nonfinite: those among them whose vector was set to zero.
    """
    released_P = sums_P + rounded_gaussian(how.scale, len(sums_P), source)
    origin = "system" if source is os.urandom else "seeded"
    return released_P, how.receipt(origin, batch=batch, nonfinite=nonfinite)


class IntegerNoise(Protocol):
    """A source of noise for sums of integers."""

    def release(
        self,
        sums_P: Integers,
        how: IntegerRelease,
        address: tuple[int, int],
        *,
        batch: int,
        nonfinite: int,
    ) -> tuple[npt.NDArray[np.float32], Receipt]:
        """Return the released whole numbers, float32 [P], and the receipt; address: (client,
        step).
        """
        ...


class SystemIntegers:
    """Rounded Gaussian noise from the operating system's randomness: never seeded, never stored.

    What is released has 24 significant bits, those of the float32 in which it travels and is kept;
    larger numbers lose their last bits after the noise was added, which is post-processing.
    """

    def release(
        self,
        sums_P: Integers,
        how: IntegerRelease,
        address: tuple[int, int],
        *,
        batch: int,
        nonfinite: int,
    ) -> tuple[npt.NDArray[np.float32], Receipt]:
        """Return sum and noise."""
        released_P, receipt = release_integers(sums_P, how, batch=batch, nonfinite=nonfinite)
        return released_P.astype(np.float32), receipt


class RecordedIntegers:
    """Gives recorded releases out again; what the record does not have goes to another source, if
    there is one.
    """

    def __init__(self, values: Recorded, then: IntegerNoise | None = None) -> None:
        self._values, self._then = values, then

    def release(
        self,
        sums_P: Integers,
        how: IntegerRelease,
        address: tuple[int, int],
        *,
        batch: int,
        nonfinite: int,
    ) -> tuple[npt.NDArray[np.float32], Receipt]:
        """Return the recorded numbers of this address, or a new release where the record has
        none.
        """
        places = [(*address, p) for p in range(len(sums_P))]
        if all(place in self._values for place in places):
            source = "system" if self._then else "recorded"
            receipt = how.receipt(source, batch=batch, nonfinite=nonfinite)
            return np.array([self._values[place] for place in places], np.float32), receipt
        if self._then is None:
            raise ReplayMismatch(
                f"the record has no release for client {address[0]}, step {address[1]}: it does "
                "not belong to this scenario, or rows are missing"
            )
        return self._then.release(sums_P, how, address, batch=batch, nonfinite=nonfinite)


def integer_sum(
    slopes_PB: npt.NDArray[np.float32], *, limit: float, over: ClipOver = "vector"
) -> tuple[Integers, int]:
    """Return Σ_i k_i, int64 [P], and how many records had a slope that was not finite (their
    vectors count as 0).

    Each record's slopes are clipped once, as a vector to norm V (over = "scalar": each to ±V/√P),
    scaled to G and cut to whole numbers towards zero, so that no rounding makes a vector longer
    than G.
    """
    count = len(slopes_PB)
    finite_B = np.isfinite(slopes_PB).all(0)
    scaled_PB = np.where(finite_B, slopes_PB, np.float32(0)).astype(np.float64) * (GRID / limit)
    if over == "scalar":
        largest = GRID / np.sqrt(count)
        np.clip(scaled_PB, -largest, largest, out=scaled_PB)
    else:
        norms_B = np.sqrt((scaled_PB * scaled_PB).sum(0))
        scaled_PB *= GRID / np.maximum(norms_B, GRID)
    return scaled_PB.astype(np.int64).sum(1), int((~finite_B).sum())


def release_rows_once(
    rows_BE: npt.NDArray[np.float32], how: IntegerRelease
) -> tuple[npt.NDArray[np.float32], Receipt]:
    """Release every row clipped to norm S plus rounded noise on each coordinate, float32 [B, E],
    with its receipt.

    how: with C = S, one direction and one row. A row is cut to whole numbers of norm at most G =
    4096 towards zero, so that replacing its record moves it by at most 2G; what is released is n S
    / G of whole numbers n, z S its deviation.
    """
    clipped_BE, nonfinite = clip_rows(rows_BE, how.limit)
    whole = (clipped_BE * (GRID / how.limit)).astype(np.int64)
    released, receipt = release_integers(
        whole.ravel(), how, batch=len(rows_BE), nonfinite=nonfinite
    )
    return (released * how.unit).astype(np.float32).reshape(rows_BE.shape), receipt
