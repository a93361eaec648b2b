"""ZOO-VFL: the client sends its embeddings at w and at w + λu and forms a one-sided estimate from two losses.

Source: Zhang et al. 2021, as the DPZV papers compare with it. The server returns the difference of the two mean losses,
one number, from which the client can make no more than from the two.
"""

# M clients, B batch, E embedding width

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from raydpzv.data.batches import Batches
from raydpzv.errors import Diverged
from raydpzv.keys import Key, direction_seed
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.base import Batched, CachingServer, SplitClient, cache, cached
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.methods.vertical.head import Head
from raydpzv.methods.vertical.row_release import Calibration, EmbeddingRelease, RowPrivacy, row_privacy
from raydpzv.models.flat import FlatModel
from raydpzv.settings.bounds import Momentum, Positive
from raydpzv.wire.messages import EmbeddingPair, LossDifference
from raydpzv.zo.directions import Direction, Law
from raydpzv.zo.perturbation import LayerwisePerturbation
from raydpzv.zo.update import Descent, Rule, Step

AT, AHEAD = 0, 1
"""Places of the two embeddings' noise among the draws of one client's step."""


@dataclass(frozen=True)
class ZooVflConfig(Batched):
    """ZOO-VFL: one-sided estimates from h(w) and h(w + λu); vector noise on both (Zhang et al. 2021)."""

    name: Literal["zoo_vfl"] = "zoo_vfl"
    """The method."""
    lr: Positive = 2e-3
    """Step size of the clients."""
    momentum: Momentum = 0.9
    """Momentum of the clients."""
    smoothing: Positive = 1e-3
    """Smoothing radius λ of the estimate (f(w+λu) - f(w)) / λ."""
    direction: Law = "sphere"
    """Law of the directions."""
    server: Literal["sgd", "zo"] = "sgd"
    """How the head learns: backpropagation, or its own two-point step."""
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling argument."""


class ZooVflClient(SplitClient):
    """Uploads h(w) and h(w + λu), descends along u by (ℓ(w + λu) - ℓ(w)) / λ."""

    def __init__(
        self,
        client: int,
        model: FlatModel,
        x_train: torch.Tensor,
        x_test: torch.Tensor,
        batches: Batches,
        settings: ZerothOrder,
        key: Key,
        privacy: RowPrivacy | None = None,
    ) -> None:
        super().__init__(client, model, x_train, x_test)
        self._batches, self._settings, self._key = batches, settings, key
        self._release = EmbeddingRelease(model, privacy or RowPrivacy())
        self._perturb = LayerwisePerturbation(model.module, model.offsets)
        self._descent = Descent(model.flat, Rule(settings.law, settings.momentum))

    def apply(self, order: Order) -> None:
        """w_m <- w_m - η (ℓ⁺ - ℓ)/λ u, u made again from its seed."""
        if not isinstance(order.body, LossDifference):
            return
        scalar = order.body.value.astype(np.float64) / self._settings.smoothing
        self._descent.apply([Step([self._direction(self._step - 1).seed], scalar, self._settings.lr)])

    def work(self) -> Upload:
        """Return the next batch's embeddings at w and at w + λu."""
        step, ids = self._step, self._batches.draw(self._step)
        x = self._rows(ids)
        with torch.no_grad():
            here_BE = self._release.embed(x)
            with self._perturb.at(self._direction(step), self._settings.smoothing):
                ahead_BE = self._release.embed(x)
        here, first = self._release.release(here_BE, (self.client, step, AT))
        ahead, second = self._release.release(ahead_BE, (self.client, step, AHEAD))
        self._step += 1
        return Upload(self.client, step, EmbeddingPair(ids, here, ahead), releases=(*first, *second))

    def _direction(self, step: int) -> Direction:
        return Direction(direction_seed(self._key, self.client, step), self.model.size, self._settings.law)

    def _embedding(self, x: torch.Tensor) -> torch.Tensor:
        return self._release.embed(x)


class ZooVflServer(CachingServer):
    """Answers every upload with the difference of two mean losses; trains its head on the first embeddings."""

    def __init__(self, head: Head, *parts: Any, **named: Any) -> None:
        super().__init__(head, *parts, **named, sent=2)

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Evaluate both losses under the same head and the others' newest embeddings, then train the head."""
        body = upload.body
        if not isinstance(body, EmbeddingPair):
            raise TypeError(f"a ZOO-VFL server cannot serve {type(body).__name__}")
        self._round += 1
        labels_B = self._labels(body.ids)
        cache = self._table.ages(body.ids, self._round, upload.client)
        self._table.put(
            upload.client, body.ids, torch.tensor(body.values, device=labels_B.device), self._round
        )
        here_BME = self._table.get(body.ids)
        ahead_BME = here_BME.clone()
        ahead_BME[:, upload.client] = torch.tensor(body.ahead, device=labels_B.device)
        difference = self._difference(here_BME, ahead_BME, labels_B)
        if not math.isfinite(difference):
            raise Diverged(
                f"a loss must be finite, but the one for client {upload.client}, step {upload.step} is not: choose a "
                "smaller step size"
            )
        loss = self._head.train(here_BME, labels_B)
        answer = LossDifference(np.array([difference], np.float32))
        return [
            Order(upload.client, answer, self._round, upload_bytes=self._upload_bytes, cache=cache, loss=loss)
        ]

    def _difference(self, here_BME: torch.Tensor, ahead_BME: torch.Tensor, labels_B: torch.Tensor) -> float:
        """Mean over the batch of ℓ(h(w + λu)) - ℓ(h(w)), rows subtracted first; 0 for an empty batch."""
        if len(labels_B) == 0:
            return 0.0
        ahead_B, here_B = self._head.losses(ahead_BME, labels_B), self._head.losses(here_BME, labels_B)
        return float((ahead_B - here_B).double().mean())


def _client(parts: ClientParts, config: ZooVflConfig) -> ZooVflClient:
    settings = ZerothOrder(config.smoothing, config.lr, config.momentum, law=config.direction)
    return ZooVflClient(
        *(parts.client, parts.model, parts.x_train, parts.x_test),
        parts.batches(config),
        settings,
        parts.key,
        row_privacy(parts.noise, "embedding", "embedding"),
    )


def _server(parts: ServerParts, config: ZooVflConfig) -> ZooVflServer:
    head = Head(
        *(parts.model, config.server, config.server_lr, config.server_momentum),
        smoothing=config.smoothing,
        law=config.direction,
        key=parts.key,
    )
    return ZooVflServer(head, cache(parts), parts.labels, parts.labels_test, **cached(parts, config))


ZOO_VFL = VerticalMethod(
    config=ZooVflConfig,
    client=_client,
    server=_server,
    noise=lambda c: NoisePlan(
        "embedding", per_upload=2, hidden=False, calibration=c.calibration, answers_rows=False
    ),
)
