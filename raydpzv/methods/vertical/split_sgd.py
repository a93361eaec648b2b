"""Control: synchronous split learning by backpropagation, without privacy.

All clients embed the same rows; the server waits for all of them, backpropagates, and sends each
the gradient of its embeddings with the next rows.
"""

# M clients, B batch, E embedding width

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining, FirstOrder, Top
from raydpzv.methods.descriptor import ClientParts, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import Schedule, StepSizesAt, schedule_of
from raydpzv.methods.vertical.base import (
    Batched,
    ServerSizes,
    SplitClient,
    SplitServer,
    gradient_top,
    sizes,
)
from raydpzv.settings.bounds import Momentum, Positive
from raydpzv.wire.messages import Embeddings, GradientAndRows, Rows


@dataclass(frozen=True)
class SplitSgdConfig(Batched):
    """Control: synchronous split learning by backpropagation, no privacy."""

    name: Literal["sgd"] = "sgd"
    """The method."""
    lr: Positive = 0.02
    """Step size of the clients."""
    lr_at: StepSizesAt | None = None
    """Step sizes of the clients from later updates on: [[update, lr], ...]; left out: lr
    throughout.
    """
    momentum: Momentum = 0.9
    """Momentum of the clients."""


class SgdClient(SplitClient):
    """Embeds the rows that the server names and backpropagates the gradient it gets for them."""

    def __init__(self, client: int, bottom: Bottom, lr: Schedule | None = None) -> None:
        super().__init__(client, bottom, lr)
        self._next_ids: np.ndarray | None = None

    def apply(self, order: Order) -> None:
        """Descend by the chain rule through the last batch, and note which rows come next."""
        body = order.body
        if isinstance(body, GradientAndRows):
            self.descend(body.gradient, order)
        if isinstance(body, Rows | GradientAndRows):
            self._next_ids = body.ids

    def counts(self) -> list[int]:
        """Return uploads, and the rows of the last one."""
        return [self._step, *([] if self._next_ids is None else self._next_ids.tolist())]

    def resume_at(self, counts: Sequence[int]) -> None:
        """Continue from another client's counts: the last upload's answer needs its `forward`
        again.
        """
        self._step, *ids = counts
        if self._step:
            self._next_ids = np.array(ids, np.int32)
            self.bottom.forward(self._next_ids)

    def work(self) -> Upload:
        """Return the embeddings of the rows the server named."""
        if self._next_ids is None:
            raise RuntimeError("an SGD client works only after an order that names rows")
        values = self.bottom.forward(self._next_ids)
        self._step += 1
        return Upload(self.client, self._step - 1, Embeddings(self._next_ids, values))


class SgdServer(SplitServer):
    """Waits for all clients' embeddings of one batch, then updates its head and answers
    everybody.
    """

    def __init__(self, top: Top, batches: Batches, sizes: ServerSizes) -> None:
        super().__init__(top, sizes)
        self._batches, self._step = batches, 0
        self._waiting: dict[int, Embeddings] = {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: its steps and the uploads that wait, too."""
        return super().state() | {
            "step": self._step,
            "waiting": sorted(self._waiting.items(), key=itemgetter(0)),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._step, self._waiting = state["step"], dict(state["waiting"])

    def first_orders(self) -> Sequence[Order]:
        """Name the first rows."""
        ids = self._batches.draw(0)
        return [
            Order(m, Rows(ids), upload_bytes=self._upload_bytes) for m in range(self.sizes.clients)
        ]

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Collect; when the last client's embeddings are there, step and answer in client order."""
        if not isinstance(upload.body, Embeddings):
            raise TypeError(f"an SGD server cannot serve {type(upload.body).__name__}")
        self.begin_round()
        self._waiting[upload.client] = upload.body
        if len(self._waiting) < self.sizes.clients:
            return ()
        bodies = [self._waiting.pop(m) for m in range(self.sizes.clients)]
        loss, gradient_BME = self.top.backward_on(
            np.stack([b.values for b in bodies], 1), bodies[0].ids
        )
        self._step += 1
        ids = self._batches.draw(self._step)
        return [
            Order(
                m,
                GradientAndRows(np.ascontiguousarray(gradient_BME[:, m]), ids),
                self._round,
                upload_bytes=self._upload_bytes,
                loss=loss,
            )
            for m in range(self.sizes.clients)
        ]


def _client(parts: ClientParts, config: SplitSgdConfig) -> SgdClient:
    descent = FirstOrder(config.lr, config.momentum)
    return SgdClient(
        parts.client, parts.bottom(BottomTraining(descent=descent)), schedule_of(config, "lr")
    )


def _server(parts: ServerParts, config: SplitSgdConfig) -> SgdServer:
    return SgdServer(gradient_top(parts, config), parts.batches(config), sizes(parts, config))


SPLIT_SGD = VerticalMethod(
    config=SplitSgdConfig,
    client=_client,
    server=_server,
    barrier=lambda config, clients: clients,
    control=True,
)
