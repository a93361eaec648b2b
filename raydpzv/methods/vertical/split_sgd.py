"""Control: synchronous split learning by backpropagation, without privacy.

All clients embed the same rows; the server waits for all of them, backpropagates, and sends each the gradient of
its embeddings with the next rows.
"""

# M clients, B batch, E embedding width

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from raydpzv.data.batches import Batches
from raydpzv.methods.descriptor import ClientParts, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.base import Batched, SplitClient, SplitServer, gradient_head, sizes
from raydpzv.methods.vertical.head import Head
from raydpzv.models.flat import FlatModel
from raydpzv.models.momentum import MomentumDescent
from raydpzv.settings.bounds import Momentum, Positive
from raydpzv.wire.messages import Embeddings, GradientAndRows, Rows


@dataclass(frozen=True)
class SplitSgdConfig(Batched):
    """Control: synchronous split learning by backpropagation, no privacy."""

    name: Literal["sgd"] = "sgd"
    """The method."""
    lr: Positive = 0.02
    """Step size of the clients."""
    momentum: Momentum = 0.9
    """Momentum of the clients."""


class SgdClient(SplitClient):
    """Embeds the rows it is told and backpropagates the gradient it gets for them."""

    def __init__(
        self,
        client: int,
        model: FlatModel,
        x_train: torch.Tensor,
        x_test: torch.Tensor,
        *,
        lr: float,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(client, model, x_train, x_test)
        self._descent = MomentumDescent(model.flat, lr, momentum)
        self._next_ids: np.ndarray | None = None
        self._embedded: torch.Tensor | None = None

    def apply(self, order: Order) -> None:
        """Descend by the chain rule through the last batch, and note which rows come next."""
        body = order.body
        if isinstance(body, GradientAndRows) and self._embedded is not None:
            parameters = list(self.model.module.parameters())
            gradient_BE = torch.tensor(body.gradient, device=self._embedded.device)
            with torch.enable_grad():
                gradients = torch.autograd.grad(self._embedded, parameters, gradient_BE)
            self._embedded = None
            self._descent.step(gradients)
        if isinstance(body, Rows | GradientAndRows):
            self._next_ids = body.ids

    def work(self) -> Upload:
        """Return the embeddings of the rows the server named."""
        if self._next_ids is None:
            raise RuntimeError("an SGD client works only after an order that names rows")
        with torch.enable_grad():
            self._embedded = self.model.module(self._rows(self._next_ids))
        self._step += 1
        values = self._embedded.detach().cpu().numpy()
        return Upload(self.client, self._step - 1, Embeddings(self._next_ids, values))


class SgdServer(SplitServer):
    """Waits for all clients' embeddings of one batch, then updates its head and answers everybody."""

    def __init__(
        self,
        head: Head,
        batches: Batches,
        labels_train: torch.Tensor,
        labels_test: torch.Tensor,
        *,
        clients: int,
        width: int,
        fixed_batches: bool,
    ) -> None:
        super().__init__(head, labels_train, labels_test, clients=clients)
        self._batches, self._step = batches, 0
        self._upload_bytes = batches.divisor * (4 + width * 4) if fixed_batches else None
        self._waiting: dict[int, Embeddings] = {}

    def first_orders(self) -> Sequence[Order]:
        """Name the first rows."""
        ids = self._batches.draw(0)
        return [Order(m, Rows(ids), upload_bytes=self._upload_bytes) for m in range(self._clients)]

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Collect; when the last client's embeddings are there, step and answer in client order."""
        if not isinstance(upload.body, Embeddings):
            raise TypeError(f"an SGD server cannot serve {type(upload.body).__name__}")
        self._round += 1
        self._waiting[upload.client] = upload.body
        if len(self._waiting) < self._clients:
            return ()
        bodies = [self._waiting.pop(m) for m in range(self._clients)]
        labels_B = self._labels(bodies[0].ids)
        inputs_BME = torch.tensor(np.stack([b.values for b in bodies], 1), device=labels_B.device)
        loss, gradient_BME = self._head.backward(inputs_BME, labels_B, for_embeddings=True)
        assert gradient_BME is not None
        gradient = gradient_BME.cpu().numpy()
        self._step += 1
        ids = self._batches.draw(self._step)
        return [
            Order(
                m,
                GradientAndRows(np.ascontiguousarray(gradient[:, m]), ids),
                self._round,
                upload_bytes=self._upload_bytes,
                loss=loss,
            )
            for m in range(self._clients)
        ]


def _client(parts: ClientParts, config: SplitSgdConfig) -> SgdClient:
    own = (parts.client, parts.model, parts.x_train, parts.x_test)
    return SgdClient(*own, lr=config.lr, momentum=config.momentum)


def _server(parts: ServerParts, config: SplitSgdConfig) -> SgdServer:
    head = gradient_head(parts, config)
    return SgdServer(head, parts.batches(config), parts.labels, parts.labels_test, **sizes(parts, config))


SPLIT_SGD = VerticalMethod(
    config=SplitSgdConfig,
    client=_client,
    server=_server,
    barrier=lambda config, clients: clients,
    control=True,
)
