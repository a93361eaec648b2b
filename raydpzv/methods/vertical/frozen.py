"""Control: random bottom models that are never trained, and a head trained on what they send."""

# D rows, B batch, E embedding width

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining
from raydpzv.methods.descriptor import ClientParts, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.base import Batched, CachingServer, SplitClient, cached, gradient_top
from raydpzv.wire.messages import Acknowledged, Embeddings


@dataclass(frozen=True)
class FrozenConfig(Batched):
    """Control: random bottoms that are never trained; only the head learns."""

    name: Literal["frozen"] = "frozen"
    """The method."""


class FrozenClient(SplitClient):
    """Uploads the embeddings of its batches; gets nothing back."""

    def __init__(self, client: int, bottom: Bottom, batches: Batches) -> None:
        super().__init__(client, bottom)
        self._batches = batches

    def apply(self, order: Order) -> None:
        """Nothing changes: the client is frozen."""

    def work(self) -> Upload:
        """Return the next batch's embeddings."""
        ids = self._batches.draw(self._step)
        values = self.bottom.embed(ids)
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
        cache = self.top.ages(body.ids, self._round, upload.client)
        self.top.put(upload.client, body.ids, body.values, self._round)
        loss = self.top.train(body.ids)
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
    return FrozenClient(parts.client, parts.bottom(BottomTraining()), parts.batches(config))


def _server(parts: ServerParts, config: FrozenConfig) -> FrozenServer:
    return FrozenServer(gradient_top(parts, config), **cached(parts, config))


FROZEN = VerticalMethod(config=FrozenConfig, client=_client, server=_server, control=True)
