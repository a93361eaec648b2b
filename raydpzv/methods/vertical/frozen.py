"""Control: random bottom models that are never trained, and a head trained on what they send.

With privacy.mode = "proved" the head learns by DP-SGD; or, against the server, each client clips
every embedding and noises it once, and the head is the linear discriminant of the noised rows, the
noise's covariance taken off.
"""

# D rows, B batch, E embedding width

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining, Metrics, Top
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.methods.vertical.base import (
    Batched,
    CachingServer,
    ServerSizes,
    SplitClient,
    gradient_top,
    sizes,
)
from raydpzv.methods.vertical.row_release import MemoizedRelease
from raydpzv.privacy.mechanisms import GradientRelease
from raydpzv.wire.messages import Acknowledged, ClientState, Embeddings

if TYPE_CHECKING:
    from raydpzv.settings.sections import Sections


@dataclass(frozen=True)
class FrozenConfig(Batched):
    """Control: random bottoms that are never trained; only the head learns."""

    name: Literal["frozen"] = "frozen"
    """The method."""
    server: Literal["sgd", "dp_sgd", "discriminant"] = "sgd"
    """How the head learns: backpropagation; that with every record's gradient cut to privacy.clip
    and noise on the sum (privacy.mode = "proved"); or a linear head in closed form from all rows
    that every client has sent (linear algebra whose last bits differ between machines)."""


class FrozenClient(SplitClient):
    """Uploads the embeddings of its batches; gets nothing back. noise: what is sent of them
    instead.
    """

    def __init__(
        self, client: int, bottom: Bottom, batches: Batches, noise: MemoizedRelease | None = None
    ) -> None:
        super().__init__(client, bottom)
        self._batches, self._noise = batches, noise

    def state(self) -> ClientState:
        """Return what a checkpoint keeps: its count, since the model is the initial one."""
        return ClientState(np.array([self._step], np.int64), np.zeros((0, 0), np.float32))

    def apply(self, order: Order) -> None:
        """Nothing changes: the client is frozen."""

    def work(self) -> Upload:
        """Return the next batch's embeddings."""
        ids = self._batches.draw(self._step)
        values = self.bottom.embed(ids)
        self._step += 1
        if self._noise is None:
            return Upload(self.client, self._step - 1, Embeddings(ids, values))
        sent, releases = self._noise.release(ids, values)
        return Upload(self.client, self._step - 1, Embeddings(ids, sent), releases=releases)


class FrozenServer(CachingServer):
    """Trains its head on every upload and the cached embeddings of the others; sends empty
    answers.
    """

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Refresh the table and train the head."""
        body = upload.body
        if not isinstance(body, Embeddings):
            raise TypeError(f"a frozen-control server cannot serve {type(body).__name__}")
        self.begin_round()
        cache = self.top.ages(body.ids, self._round, upload.client)
        self.top.put(upload.client, body.ids, body.values, self._round)
        return [self._learn(body.ids, self.answer(upload, Acknowledged(), cache=cache))]

    def _learn(self, ids: np.ndarray, answer: Order) -> Order:
        """Train the head on these rows; return the answer with what there is to say of it."""
        return answer._replace(loss=self.top.train(ids))


class PrivateHeadServer(FrozenServer):
    """Moves its head along noised sums of clipped gradients, and computes no training loss.

    Embeddings are functions of a record's own features, so that nothing but these sums depends on
    more than one record.
    """

    def __init__(self, top: Top, sizes: ServerSizes, release: GradientRelease) -> None:
        super().__init__(top, sizes)
        self._release = release

    def _learn(self, ids: np.ndarray, answer: Order) -> Order:
        how = self._release
        self.top.descend_by(how.release(self.top.clipped_gradient(ids, how.clip)))
        return answer._replace(releases=(Release(0, math.nan, how.receipt(len(ids))),))


class DiscriminantServer(FrozenServer):
    """Sets its head to the linear discriminant of what it was sent, when somebody asks for it.

    variance: σ² of the noise on each coordinate of what it is sent.
    """

    def __init__(self, top: Top, sizes: ServerSizes, variance: float) -> None:
        super().__init__(top, sizes)
        self._variance, self._fitted = variance, True

    def state(self) -> dict[str, Any]:
        return super().state() | {"fitted": self._fitted}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._fitted = state["fitted"]

    def evaluate(self, embeddings: Sequence[np.ndarray]) -> Metrics:
        self._fit()
        return super().evaluate(embeddings)

    def parameters(self) -> np.ndarray:
        self._fit()
        return super().parameters()

    def _learn(self, ids: np.ndarray, answer: Order) -> Order:
        """Wait until the head is wanted: it depends on what was sent, not in which order. There is
        no training loss.
        """
        self._fitted = False
        return answer

    def _fit(self) -> None:
        if not self._fitted:
            self.top.fit(self._variance)
            self._fitted = True


def _client(parts: ClientParts, config: FrozenConfig) -> FrozenClient:
    how = parts.noise.integers  # of rows that are noised once
    bottom = parts.bottom(BottomTraining(clip=how.limit if how else None))
    noise = MemoizedRelease(how, parts.rows) if how else None
    return FrozenClient(parts.client, bottom, parts.batches(config), noise)


def _server(parts: ServerParts, config: FrozenConfig) -> FrozenServer:
    top = gradient_top(parts, config)
    if config.server == "sgd":
        return FrozenServer(top, sizes(parts, config))
    if config.server == "dp_sgd":
        assert parts.noise.gradient is not None
        return PrivateHeadServer(top, sizes(parts, config), parts.noise.gradient)
    how = parts.noise.integers
    variance = (how.multiplier * how.limit) ** 2 if how else 0.0
    return DiscriminantServer(top, sizes(parts, config), variance)


def _noise(config: FrozenConfig) -> NoisePlan | None:
    if config.server == "dp_sgd":
        return NoisePlan(
            "mean", hidden=False, head="dp_sgd", proved_heads=("dp_sgd",), proves="head"
        )
    return (
        NoisePlan("embedding", hidden=False, proves="rows")
        if config.server == "discriminant"
        else None
    )


def _contradictions(config: FrozenConfig, sections: Sections) -> Iterator[str]:
    if config.server == "dp_sgd" and sections.privacy.mode != "proved":
        yield 'method.server: "dp_sgd" goes with privacy.mode = "proved"; set that, or use "sgd"'
    if config.server == "discriminant" and sections.model.head != "linear":
        yield (
            'model.head: wanted "linear" with method.server = "discriminant", got '
            f'"{sections.model.head}"'
        )
    if config.server == "discriminant" and sections.loss != "cross_entropy":
        yield (
            'model.loss: wanted "cross_entropy" with method.server = "discriminant", which tells '
            f'classes apart, got "{sections.loss}"; use method.server = "sgd"'
        )


FROZEN = VerticalMethod(
    config=FrozenConfig,
    client=_client,
    server=_server,
    noise=_noise,
    contradictions=_contradictions,
    unrecorded=lambda c: "its noise on the head's gradients" if c.server == "dp_sgd" else None,
    control=True,
)
