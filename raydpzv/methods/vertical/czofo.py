"""VFL-CZOFO: server and clients backpropagate; only the gradient between them is estimated from losses.

Source: the cascaded hybrid method of Wang et al. 2024, as the DPZV papers compare with it. The client is VAFL's.
"""

# M clients, B batch, E embedding width, n perturbations, N rows of a group of uploads together

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raydpzv.engine.split_model import BottomTraining, Top
from raydpzv.keys import Key
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, VerticalMethod
from raydpzv.methods.vertical.base import Batched, cached, gradient_top
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
        self, top: Top, synchrony: Synchrony, *, perturbations: int, smoothing: float, key: Key, **named: Any
    ) -> None:
        super().__init__(top, synchrony, **named)
        self._perturbations, self._smoothing = perturbations, smoothing
        self._key = key / "embedding directions"

    def _learn(
        self, ids: np.ndarray, group: Sequence[Numbered], spans: Sequence[slice]
    ) -> tuple[float, list[np.ndarray]]:
        """Estimate under one and the same head, which then takes its step."""
        gradients = [
            self._estimate(ids[span], upload.client, upload.step)
            for (_, upload), span in zip(group, spans, strict=True)
        ]
        return self.top.train(ids), gradients

    def _estimate(self, ids: np.ndarray, client: int, step: int) -> np.ndarray:
        key = self._key / client / step
        gradient_BE = self.top.row_gradients(client, ids, self._perturbations, self._smoothing, key)
        return gradient_BE / np.float32(max(len(ids), 1))


def _client(parts: ClientParts, config: CzofoConfig) -> VaflClient:
    privacy = row_privacy(parts.noise, "embedding", "embedding")
    training = BottomTraining(descent=FirstOrder(config.lr, config.momentum), clip=privacy.clip)
    return VaflClient(parts.client, parts.bottom(training), parts.batches(config), privacy)


def _server(parts: ServerParts, config: CzofoConfig) -> CzofoServer:
    return CzofoServer(
        *(gradient_top(parts, config), Synchrony()),
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
