"""Releases of a client's embeddings: perturbed inside the layers, clipped, noised, each with its
receipt.
"""

# D rows, B batch, E embedding width

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.engine.split_model import LayerNoise
from raydpzv.methods.descriptor import NoiseParts
from raydpzv.methods.roles import Release
from raydpzv.privacy.integer_release import IntegerRelease, release_rows_once
from raydpzv.privacy.mechanisms import Address, RowNoise, release_rows

_FIRST_LAYER = 16
"""Place of the first layer's draws among those of one upload; the releases' are 0, 1, 2."""


LayerLaw = Literal["uniform", "gaussian"]
"""Noise inside the layers: uniform on ±√3 c_l, or N(0, c_l²)."""


@dataclass(frozen=True)
class RowPrivacy:
    """Clipping norm of each row (None: no clip), noise deviation σ per coordinate, and the noise's
    source (None: none).

    layers: c_l of the inner layers, first to last; the last number holds for all further layers, ()
    for no noise.
    law: of the noise inside the layers.
    """

    clip: float | None = None
    sigma: float = 0.0
    noise: RowNoise | None = None
    layers: tuple[float, ...] = ()
    law: LayerLaw = "uniform"


Calibration = Literal["counted", "sampled"]
"""Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling
argument.
"""


def row_privacy(
    noise: NoiseParts,
    place: Literal["embedding", "gradient"],
    noised: str,
    layers: tuple[float, ...] = (),
    law: LayerLaw = "uniform",
) -> RowPrivacy:
    """Return what is done to rows at this place; noised: where the method's clip and noise fall.

    A clip without noise holds as well, as it does for DPZV.
    """
    if noised != place:
        return RowPrivacy()
    source = noise.of_rows(place)
    return RowPrivacy(noise.clip, noise.sigma, source, layers if source else (), law)


class EmbeddingRelease:
    """Releases of a client's embeddings."""

    def __init__(self, privacy: RowPrivacy) -> None:
        self._privacy = privacy

    def release(
        self, values_BE: np.ndarray, address: Address
    ) -> tuple[np.ndarray, tuple[Release, ...]]:
        """Return what is sent of these embeddings, float32 [B, E], and its receipt if noise is
        added.
        """
        privacy = self._privacy
        if privacy.noise is None:
            return values_BE, ()
        sent_BE, receipt = release_rows(
            values_BE,
            threshold=privacy.clip,
            sigma=privacy.sigma,
            noise=privacy.noise,
            address=address,
        )
        return sent_BE, (Release(address[2], math.nan, receipt),)

    def layer_noise(self, address: Address) -> LayerNoise | None:
        """Return noise of deviation c_l for what every layer but the last puts out. VAFL Eq. (10),
        (11b), G.3.2.

        The last one's noise Z_L is Gaussian and is the release itself. None where there is none
        inside the layers.
        """
        layers, source = self._privacy.layers, self._privacy.noise
        if not layers or source is None:
            return None
        client, step, which = address

        def draw(layer: int, count: int) -> np.ndarray:
            place = (client, step, _FIRST_LAYER * (1 + which) + layer)
            deviation = layers[min(layer, len(layers) - 1)]
            if self._privacy.law == "gaussian":
                return np.float32(deviation) * source.normal(count, place).astype(np.float32)
            return np.float32(math.sqrt(3) * deviation) * source.uniform(count, place).astype(
                np.float32
            )

        return draw


class MemoizedRelease:
    """Rows of embeddings that are clipped and noised once, and then repeated whenever they are
    asked for.
    """

    def __init__(self, how: IntegerRelease, rows: int) -> None:
        self._how, self._sent_DE = how, np.zeros((rows, 0), np.float32)
        self._known_D = np.zeros(rows, bool)

    def release(
        self, ids: np.ndarray, values_BE: np.ndarray
    ) -> tuple[np.ndarray, tuple[Release, ...]]:
        """Return what is sent of the embeddings of these rows, float32 [B, E], and the receipt of
        those noised now.
        """
        if not self._sent_DE.shape[1]:
            self._sent_DE = np.zeros((len(self._known_D), values_BE.shape[1]), np.float32)
        new_B = ~self._known_D[ids]
        if not new_B.any():
            return self._sent_DE[ids], ()
        fresh = ids[new_B]
        self._sent_DE[fresh], receipt = release_rows_once(values_BE[new_B], self._how)
        self._known_D[fresh] = True
        return self._sent_DE[ids], (Release(0, math.nan, receipt, ids=fresh),)
