"""Bases of vertical clients (features, bottom model, evaluation) and servers (labels, head,
table).
"""

# B batch, E embedding width, N held-out rows

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raydpzv.engine.split_model import Bottom, HeadSettings, Top
from raydpzv.files import sha256
from raydpzv.methods.descriptor import MethodConfig, ServerParts
from raydpzv.methods.roles import Metrics, Order, Upload, VerticalServer
from raydpzv.methods.schedule import Schedule, StepSizesAt, schedule_of
from raydpzv.settings.bounds import Count, Momentum, Positive
from raydpzv.wire.messages import (
    Acknowledged,
    Body,
    ClientState,
    Evaluate,
    SaveState,
    Start,
    TestEmbeddings,
)


@dataclass(frozen=True)
class Batched(MethodConfig):
    """Settings that all vertical methods share: batches, and a head that learns."""

    batch: Count | Literal["all"] = 64
    """Rows per upload, B, or "all" training rows."""
    batches: Literal["shuffle", "uniform", "poisson"] = "shuffle"
    """Permuted epochs, without replacement within a batch, or one coin per row with probability
    B/D.
    """
    coins: Literal["seed", "system"] = "seed"
    """Where the coins of "poisson" come from: the run's seed, or a secret of the operating
    system's, kept in the operator's file of the run folder. Only a secret amplifies an outsider's
    ε."""
    server_lr: Positive = 0.02
    """Step size of the head; its own two-point step (server = "zo") wants a tenth of this."""
    server_lr_at: StepSizesAt | None = None
    """Step sizes of the head from later updates on: [[update, server_lr], ...]; left out: server_lr
    throughout.
    """
    server_momentum: Momentum = 0.9
    """Momentum of the head."""


class SplitClient:
    """A vertical party: a bottom model at rows x features of its own, and a count of its uploads.

    A client with more than these to continue from extends `counts` and `resume_at`; one that is
    rebuilt from a ledger has a `restore` (`raydpzv.methods.roles.Rebuildable`). lr: the step size,
    of one that learns by gradients.
    """

    def __init__(self, client: int, bottom: Bottom, lr: Schedule | None = None) -> None:
        self.client, self.bottom = client, bottom
        self._step, self._lr = 0, lr

    def process(self, order: Order) -> Upload:
        """Apply the order and return the next upload; an `Evaluate` order changes nothing."""
        body = order.body
        if isinstance(body, Evaluate):
            return self.evaluate()
        if isinstance(body, SaveState):
            return Upload(self.client, self._step, self.state())
        if isinstance(body, ClientState):
            if len(body.vectors):
                self.bottom.restore(body.vectors)
            self.resume_at([int(count) for count in body.counts])
            return Upload(self.client, self._step, Acknowledged())
        self.apply(order)
        return self.work()

    def apply(self, order: Order) -> None:
        raise NotImplementedError

    def descend(self, gradient_BE: np.ndarray, order: Order, scale: float = 1.0) -> None:
        """Step along a gradient of the last upload's embeddings, by the step size of the update
        that answers it.
        """
        if self._lr and self._lr.changes:
            self.bottom.step_size(self._lr.at(order.round))
        self.bottom.backward(gradient_BE, scale)

    def work(self) -> Upload:
        raise NotImplementedError

    def state(self) -> ClientState:
        """Return what a checkpoint keeps of a client that no ledger can rebuild."""
        return ClientState(np.array(self.counts(), np.int64), self.bottom.state())

    def counts(self) -> list[int]:
        """Return the whole numbers that, with its model, say where the client is: its uploads
        first.
        """
        return [self._step]

    def resume_at(self, counts: Sequence[int]) -> None:
        """Continue from another client's counts; the model is there already."""
        (self._step,) = counts

    def evaluate(self) -> Upload:
        return Upload(self.client, self._step, TestEmbeddings(self.bottom.embed_held_out()))

    def sha256(self) -> str:
        return sha256(self.parameters())

    def parameters(self) -> np.ndarray:
        return self.bottom.parameters()


def composed(server: VerticalServer, uploads: Sequence[Upload]) -> Metrics:
    """Score the composed model on the held-out rows; `uploads` hold every client's embeddings, in
    client order.
    """
    return server.evaluate([u.body.values for u in uploads if isinstance(u.body, TestEmbeddings)])


@dataclass(frozen=True)
class ServerSizes:
    """Sizes of uploads: M clients, width E, expected batch B; and its head's step size `lr`.

    fixed_batches: every batch has exactly B rows, so that an upload's size is known before it is
    made.
    """

    clients: int
    width: int
    batch: int
    fixed_batches: bool = True
    lr: Schedule | None = None

    def upload_bytes(self, sent: int = 1) -> int | None:
        """Return the bytes of an upload with `sent` embeddings for each row, beside the row's
        number.
        """
        return self.batch * (4 + sent * self.width * 4) if self.fixed_batches else None


class SplitServer:
    """The party with labels and a top model; `round` counts the uploads it has served.

    sent: embeddings that an upload holds for each row.
    """

    answers = True

    def __init__(self, top: Top, sizes: ServerSizes, *, sent: int = 1) -> None:
        self.top, self.sizes = top, sizes
        self._round, self._upload_bytes = 0, sizes.upload_bytes(sent)

    @property
    def updates(self) -> int:
        """Uploads served so far."""
        return self._round

    def begin_round(self) -> None:
        """Count an upload; the head learns by the step size of then."""
        self._round += 1
        lr = self.sizes.lr
        if lr and lr.changes:
            self.top.step_size(lr.at(self._round))

    def state(self) -> dict[str, Any]:
        """Return the checkpoint: a tree of plain values, arrays and messages
        (`raydpzv.records.checkpoint_codec`).

        A server that keeps more than its top model and its round extends this and `restore`.
        """
        return {"round": self._round, "top": self.top.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._round = state["round"]
        self.top.restore(state["top"])

    def evaluate(self, embeddings: Sequence[np.ndarray]) -> Metrics:
        return self.top.evaluate(embeddings)

    def sha256(self) -> str:
        """Return the digest of what `parameters` returns."""
        return sha256(self.parameters())

    def parameters(self) -> np.ndarray:
        return self.top.parameters()


class CachingServer(SplitServer):
    """A split server that keeps the table of newest embeddings and answers uploads of any
    client.
    """

    def answer(self, upload: Upload, body: Body, **facts: Any) -> Order:
        """Return the answer to an upload, of this round if nothing else is said; facts: further
        fields of the order.
        """
        given = {"round": self._round, "upload_bytes": self._upload_bytes, **facts}
        return Order(upload.client, body, **given)

    def first_orders(self) -> Sequence[Order]:
        """Send every client its first order."""
        return [
            Order(m, Start(), upload_bytes=self._upload_bytes) for m in range(self.sizes.clients)
        ]


def gradient_top(parts: ServerParts, config: Batched) -> Top:
    """Return the top model whose w_0 is trained by backpropagation."""
    return parts.top(HeadSettings("sgd", config.server_lr, config.server_momentum))


def sizes(parts: ServerParts, config: Batched) -> ServerSizes:
    """Return what a split server knows of uploads, and its head's step size."""
    lr, fixed = schedule_of(config, "server_lr"), config.batches != "poisson"
    return ServerSizes(parts.clients, parts.width, int(config.batch), fixed, lr)
