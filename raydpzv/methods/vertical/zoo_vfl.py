"""ZOO-VFL: the client sends its embeddings at w and at w + λu and forms a one-sided estimate from
two losses.

Source: Zhang et al. 2021, as the DPZV papers compare with it. The server returns the difference of
the two mean losses, one number, from which the client can make no more than from the two. As
published, the server learns by zeroth order too (server = "zo_one_sided"); the default head, which
backpropagates, is ours.
"""

# M clients, B batch, E embedding width

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining, HeadSettings, Top
from raydpzv.errors import Diverged
from raydpzv.keys import DirectionSeeds, Key
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import StepSizesAt, schedule_of
from raydpzv.methods.vertical.base import Batched, CachingServer, ServerSizes, SplitClient, sizes
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.methods.vertical.row_release import (
    Calibration,
    EmbeddingRelease,
    RowPrivacy,
    row_privacy,
)
from raydpzv.settings.bounds import Momentum, Positive
from raydpzv.wire.messages import EmbeddingPair, LossDifference
from raydpzv.zo.directions import Law
from raydpzv.zo.spans import Group, groups_of
from raydpzv.zo.update import Rule, Step, Steps

AT, AHEAD = 0, 1
"""Places of the two embeddings' noise among the draws of one client's step."""


@dataclass(frozen=True)
class ZooVflConfig(Batched):
    """ZOO-VFL: one-sided estimates from h(w) and h(w + λu); vector noise on both (Zhang et al.
    2021).
    """

    name: Literal["zoo_vfl"] = "zoo_vfl"
    """The method."""
    lr: Positive = 2e-3
    """Step size of the clients."""
    lr_at: StepSizesAt | None = None
    """Step sizes of the clients from later updates on: [[update, lr], ...]; left out: lr
    throughout.
    """
    momentum: Momentum = 0.9
    """Momentum of the clients."""
    smoothing: Positive = 1e-3
    """Smoothing radius λ of the estimate (f(w+λu) - f(w)) / λ."""
    direction: Law = "sphere"
    """Law of the directions."""
    groups: dict[str, Group] | None = None
    """Factors of the clients' parameters whose names match a pattern, {"1.*" = {lr = 2.0, smoothing
    = 0.5}}: of the step size and of the smoothing radius, 1 where nothing is said."""
    server: Literal["sgd", "zo", "zo_one_sided"] = "sgd"
    """How the head learns: backpropagation, its own two-point step (both ours), or the one-sided
    step as published.
    """
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling
    argument.
    """


class ZooVflClient(SplitClient):
    """Uploads h(w) and h(w + λu), descends along u by (ℓ(w + λu) - ℓ(w)) / λ."""

    def __init__(
        self,
        client: int,
        bottom: Bottom,
        batches: Batches,
        settings: ZerothOrder,
        key: Key,
        privacy: RowPrivacy | None = None,
    ) -> None:
        super().__init__(client, bottom)
        self._batches, self._settings, self._seeds = batches, settings, DirectionSeeds(key, 1)
        self._release = EmbeddingRelease(privacy or RowPrivacy())

    def apply(self, order: Order) -> None:
        """w_m <- w_m - η (ℓ⁺ - ℓ)/λ u, u made again from its seed."""
        if not isinstance(order.body, LossDifference):
            return
        scalar = order.body.value.astype(np.float64) / self._settings.smoothing
        lr = self._settings.lr.at(order.round)
        self.bottom.descend(Steps.of(Step(self._seeds.of(self.client, self._step - 1), scalar, lr)))

    def work(self) -> Upload:
        """Return the next batch's embeddings at w and at w + λu."""
        step, ids = self._step, self._batches.draw(self._step)
        seeds = self._seeds.of(self.client, step)
        found_21BE = self.bottom.embed_along(ids, seeds, (0.0, self._settings.smoothing))
        here_BE, ahead_BE = found_21BE[:, 0]
        here, first = self._release.release(here_BE, (self.client, step, AT))
        ahead, second = self._release.release(ahead_BE, (self.client, step, AHEAD))
        self._step += 1
        return Upload(
            self.client, step, EmbeddingPair(ids, here, ahead), releases=(*first, *second)
        )


class ZooVflServer(CachingServer):
    """Answers every upload with the difference of two mean losses; trains its head on the first
    embeddings.
    """

    def __init__(self, top: Top, sizes: ServerSizes) -> None:
        super().__init__(top, sizes, sent=2)

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Evaluate both losses under the same head and the others' newest embeddings, then train
        the head.
        """
        body = upload.body
        if not isinstance(body, EmbeddingPair):
            raise TypeError(f"a ZOO-VFL server cannot serve {type(body).__name__}")
        self.begin_round()
        cache = self.top.ages(body.ids, self._round, upload.client)
        self.top.put(upload.client, body.ids, body.values, self._round)
        difference = float(self.top.mean_differences(upload.client, body.ids, body.ahead[None])[0])
        if not math.isfinite(difference):
            raise Diverged(
                f"a loss must be finite, but the one for client {upload.client}, step "
                f"{upload.step} is not: choose a smaller step size"
            )
        loss = self.top.train(body.ids)
        return [
            self.answer(
                upload, LossDifference(np.array([difference], np.float32)), cache=cache, loss=loss
            )
        ]


def _client(parts: ClientParts, config: ZooVflConfig) -> ZooVflClient:
    settings = ZerothOrder(
        config.smoothing, schedule_of(config, "lr"), config.momentum, law=config.direction
    )
    privacy = row_privacy(parts.noise, "embedding", "embedding")
    rule = Rule(config.direction, config.momentum, groups=groups_of(config.groups))
    training = BottomTraining(rule, clip=privacy.clip)
    return ZooVflClient(
        parts.client, parts.bottom(training), parts.batches(config), settings, parts.key, privacy
    )


def _server(parts: ServerParts, config: ZooVflConfig) -> ZooVflServer:
    head = HeadSettings(
        "sgd" if config.server == "sgd" else "zo",
        config.server_lr,
        config.server_momentum,
        config.smoothing,
        config.direction,
        one_sided=config.server == "zo_one_sided",
    )
    return ZooVflServer(parts.top(head), sizes(parts, config))


ZOO_VFL = VerticalMethod(
    config=ZooVflConfig,
    client=_client,
    server=_server,
    noise=lambda c: NoisePlan(
        "embedding",
        per_upload=2,
        hidden=False,
        calibration=c.calibration,
        traffic=lambda batch, width: (4 * batch + 8 * batch * width, 4),
    ),
)
