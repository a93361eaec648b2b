"""How a client's embeddings leave it: perturbed inside the layers, clipped, noised, each release with its receipt."""

# B batch, E embedding width

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from raydpzv.methods.descriptor import NoiseParts
from raydpzv.methods.roles import Release
from raydpzv.models.flat import FlatModel
from raydpzv.privacy.mechanisms import Address, RowNoise, release_rows

if TYPE_CHECKING:
    from torch import nn

_FIRST_LAYER = 16
"""Place of the first layer's draws among those of one upload; the releases' are 0, 1, 2."""


@dataclass(frozen=True)
class RowPrivacy:
    """Clipping norm of each row (None: no clip), noise deviation σ per coordinate, and the noise's source (None: none).

    layers: c_l of the inner layers, first to last; the last number holds for all further layers, () for no noise.
    """

    clip: float | None = None
    sigma: float = 0.0
    noise: RowNoise | None = None
    layers: tuple[float, ...] = ()


Calibration = Literal["counted", "sampled"]
"""Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling argument."""


def row_privacy(
    noise: NoiseParts,
    place: Literal["embedding", "gradient"],
    noised: str,
    layers: tuple[float, ...] = (),
) -> RowPrivacy:
    """Return what is done to rows at this place; noised: where the method's clip and noise fall.

    A clip without noise holds as well, as it does for DPZV.
    """
    if noised != place:
        return RowPrivacy()
    source = noise.of_rows(place)
    return RowPrivacy(noise.clip, noise.sigma, source, layers if source else ())


class EmbeddingRelease:
    """A bottom model as its client uses it: `embed` for learning, `release` for sending."""

    def __init__(self, model: FlatModel, privacy: RowPrivacy) -> None:
        self._model, self._privacy = model, privacy
        self._layers = LayerNoise(model.module, privacy) if privacy.layers and privacy.noise else None

    def embed(self, x: torch.Tensor, address: Address | None = None) -> torch.Tensor:
        """Return the clipped embeddings [B, E], differentiable; with an address, perturbed inside the layers."""
        if self._layers is None or address is None:
            return self._clipped(self._model.module(x))
        with self._layers.at(address):
            return self._clipped(self._model.module(x))

    def release(self, values_BE: torch.Tensor, address: Address) -> tuple[np.ndarray, tuple[Release, ...]]:
        """Return what is sent of these embeddings, float32 [B, E], and its receipt if noise is added."""
        privacy, values_BE = self._privacy, values_BE.detach()
        if privacy.noise is None:
            return values_BE.cpu().numpy(), ()
        sent_BE, receipt = release_rows(
            values_BE, threshold=privacy.clip, sigma=privacy.sigma, noise=privacy.noise, address=address
        )
        return sent_BE, (Release(address[2], math.nan, receipt),)

    def _clipped(self, values_BE: torch.Tensor) -> torch.Tensor:
        limit = self._privacy.clip
        if limit is None:
            return values_BE
        norms_B1 = torch.linalg.vector_norm(values_BE, dim=1, keepdim=True)
        return values_BE * (limit / norms_B1.clamp(min=limit))


def inner_layers(module: nn.Module) -> list[nn.Module]:
    """Return a model's layers but the last: the modules with parameters of their own."""
    return [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None][:-1]


class LayerNoise:
    """Uniform noise on ±√3 c_l on what every layer but the last puts out, before its activation. VAFL Eq. (10), (11b).

    A layer is a module with parameters of its own. The last one's noise Z_L is Gaussian and is the release itself.
    """

    def __init__(self, module: nn.Module, privacy: RowPrivacy) -> None:
        assert privacy.noise is not None
        self._noise: RowNoise = privacy.noise
        self._address: Address | None = None
        for layer, owner in enumerate(inner_layers(module)):
            owner.register_forward_hook(self._add(layer, privacy.layers[min(layer, len(privacy.layers) - 1)]))

    @contextmanager
    def at(self, address: Address) -> Iterator[None]:
        """Forward calls inside are perturbed."""
        self._address = address
        try:
            yield
        finally:
            self._address = None

    def _add(self, layer: int, deviation: float) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if self._address is None:
                return output
            if isinstance(output, tuple):  # a recurrent layer's outputs come with its last state
                return (self._perturbed(output[0], layer, deviation), *output[1:])
            return self._perturbed(output, layer, deviation)

        return hook

    def _perturbed(self, output: torch.Tensor, layer: int, deviation: float) -> torch.Tensor:
        assert self._address is not None
        client, step, which = self._address
        draws = self._noise.uniform(output.numel(), (client, step, _FIRST_LAYER * (1 + which) + layer))
        noise = torch.from_numpy(draws.astype(np.float32)).view(output.shape).to(output.device)
        return output + math.sqrt(3) * deviation * noise
