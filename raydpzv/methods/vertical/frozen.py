"""Control: random bottom models that are never trained, and a head trained on what they send."""

# D rows, B batch, E embedding width

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from raydpzv.data.batches import Batches
from raydpzv.methods.descriptor import ClientParts, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.base import Batched, CachingServer, SplitClient, cache, cached, gradient_head
from raydpzv.models.flat import FlatModel
from raydpzv.wire.messages import Acknowledged, Embeddings


@dataclass(frozen=True)
class FrozenConfig(Batched):
    """Control: random bottoms that are never trained; only the head learns."""

    name: Literal["frozen"] = "frozen"
    """The method."""


class FrozenClient(SplitClient):
    """Uploads the embeddings of its batches; gets nothing back."""

    def __init__(
        self, client: int, model: FlatModel, x_train: torch.Tensor, x_test: torch.Tensor, batches: Batches
    ) -> None:
        super().__init__(client, model, x_train, x_test)
        self._batches = batches

    def apply(self, order: Order) -> None:
        """Nothing changes: the client is frozen."""

    def work(self) -> Upload:
        """Return the next batch's embeddings."""
        ids = self._batches.draw(self._step)
        with torch.no_grad():
            values = self.model.module(self._rows(ids)).cpu().numpy()
        self._step += 1
        return Upload(self.client, self._step - 1, Embeddings(ids, values))


class FrozenServer(CachingServer):
    """Trains its head on every upload and the cached embeddings of the others; sends empty answers."""

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Refresh the table and train the head."""
        body = upload.body
        if not isinstance(body, Embeddings):
            raise TypeError(f"a frozen-control server cannot serve {type(body).__name__}")
        self._round += 1
        cache = self._table.ages(body.ids, self._round, upload.client)
        labels_B = self._labels(body.ids)
        self._table.put(
            upload.client, body.ids, torch.tensor(body.values, device=labels_B.device), self._round
        )
        loss = self._head.train(self._table.get(body.ids), labels_B)
        return [
            Order(
                upload.client,
                Acknowledged(),
                self._round,
                upload_bytes=self._upload_bytes,
                cache=cache,
                loss=loss,
            )
        ]


def _client(parts: ClientParts, config: FrozenConfig) -> FrozenClient:
    return FrozenClient(parts.client, parts.model, parts.x_train, parts.x_test, parts.batches(config))


def _server(parts: ServerParts, config: FrozenConfig) -> FrozenServer:
    head = gradient_head(parts, config)
    return FrozenServer(head, cache(parts), parts.labels, parts.labels_test, **cached(parts, config))


FROZEN = VerticalMethod(config=FrozenConfig, client=_client, server=_server, control=True)
