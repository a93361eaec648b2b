"""VFL-CZOFO: server and clients backpropagate; only the gradient between them is estimated from losses.

Source: the cascaded hybrid method of Wang et al. 2024, as the DPZV papers compare with it. The client is VAFL's.
"""

# M clients, B batch, E embedding width, n perturbations, N rows of a group of uploads together

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from raydpzv.keys import Key
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, VerticalMethod
from raydpzv.methods.vertical.base import Batched, cache, cached, gradient_head
from raydpzv.methods.vertical.head import Head
from raydpzv.methods.vertical.row_release import Calibration, row_privacy
from raydpzv.methods.vertical.vafl import FirstOrder, Numbered, Synchrony, VaflClient, VaflServer
from raydpzv.settings.bounds import Momentum, Perturbations, Positive


@dataclass(frozen=True)
class CzofoConfig(Batched):
    """VFL-CZOFO: backpropagation at both ends, the gradient between them estimated from losses (Wang et al. 2024)."""

    name: Literal["czofo"] = "czofo"
    """The method."""
    lr: Positive = 0.02
    """Step size of the clients."""
    momentum: Momentum = 0.0
    """Momentum of the clients."""
    smoothing: Positive = 1e-3
    """Smoothing radius λ of the perturbations of an embedding."""
    perturbations: Perturbations = 5
    """Perturbations n of every row."""
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling argument."""


class CzofoServer(VaflServer):
    """A VAFL server that answers with estimated gradients: n perturbations of every row on the unit sphere."""

    def __init__(
        self, head: Head, *parts: Any, perturbations: int, smoothing: float, key: Key, **named: Any
    ) -> None:
        super().__init__(head, *parts, **named)
        self._perturbations, self._smoothing = perturbations, smoothing
        self._key = key / "embedding directions"

    def _learn(
        self,
        inputs_NME: torch.Tensor,
        labels_N: torch.Tensor,
        group: Sequence[Numbered],
        spans: Sequence[slice],
    ) -> tuple[float, list[torch.Tensor]]:
        """Estimate under one and the same head, which then takes its step."""
        gradients = [
            self._estimate(inputs_NME[span], labels_N[span], upload.client, upload.step)
            for (_, upload), span in zip(group, spans, strict=True)
        ]
        return self._head.train(inputs_NME, labels_N), gradients

    def _estimate(
        self, inputs_BME: torch.Tensor, labels_B: torch.Tensor, client: int, step: int
    ) -> torch.Tensor:
        rows = len(labels_B)
        directions_nBE = self._directions(rows, inputs_BME.shape[2], client, step).to(inputs_BME.device)
        gradient_BE = row_gradients(self._head, inputs_BME, labels_B, client, directions_nBE, self._smoothing)
        return gradient_BE / max(rows, 1)

    def _directions(self, rows: int, width: int, client: int, step: int) -> torch.Tensor:
        generator = (self._key / client / step).generator()
        draws = generator.standard_normal((self._perturbations, rows, width))
        draws /= np.linalg.norm(draws, axis=2, keepdims=True)
        return torch.from_numpy(draws.astype(np.float32))


def row_gradients(
    head: Head,
    inputs_BME: torch.Tensor,
    labels_B: torch.Tensor,
    client: int,
    directions_nBE: torch.Tensor,
    smoothing: float,
) -> torch.Tensor:
    """Return g_h = (E/λ) mean_n (ℓ(h + λv) - ℓ(h)) v for every row's own loss, [B, E]; v on the unit sphere.

    E[v vᵀ] = I/E there, which the factor E undoes.
    """
    count, _, width = directions_nBE.shape
    base_B = head.losses(inputs_BME, labels_B)
    moved = inputs_BME.repeat(count, 1, 1)
    moved[:, client] += smoothing * directions_nBE.flatten(0, 1)
    moved_nB = head.losses(moved, labels_B.repeat(count)).view(count, -1)
    return (width / smoothing) * ((moved_nB - base_B)[:, :, None] * directions_nBE).mean(0)


def _client(parts: ClientParts, config: CzofoConfig) -> VaflClient:
    return VaflClient(
        *(parts.client, parts.model, parts.x_train, parts.x_test),
        parts.batches(config),
        FirstOrder(config.lr, config.momentum),
        row_privacy(parts.noise, "embedding", "embedding"),
    )


def _server(parts: ServerParts, config: CzofoConfig) -> CzofoServer:
    return CzofoServer(
        *(gradient_head(parts, config), cache(parts), parts.labels, parts.labels_test, Synchrony()),
        perturbations=config.perturbations,
        smoothing=config.smoothing,
        key=parts.key,
        **cached(parts, config),
    )


CZOFO = VerticalMethod(
    config=CzofoConfig,
    client=_client,
    server=_server,
    noise=lambda c: NoisePlan("embedding", calibration=c.calibration),
)
