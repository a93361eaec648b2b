"""DPZV: asynchronous vertical learning with two-point estimates and one noised scalar per update.

Sources: DPZV (preprint) Algorithm 1, (journal) Section IV. Differences from the papers as printed, with reasons:
the clip is two-sided (printed min{δ, C}: unbounded sensitivity), the two-point slope divides by 2λ (as the proofs
do), the divisor is the constant expected batch size.
"""

# M clients, D rows, B batch, E embedding width, P perturbations

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from raydpzv.data.batches import Batches
from raydpzv.errors import Diverged, RunError
from raydpzv.keys import Key, direction_seed
from raydpzv.ledger.entries import Slice
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, UpdateRule, VerticalMethod
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.methods.vertical.base import Batched, CachingServer, SplitClient, cache, cached
from raydpzv.methods.vertical.embedding_cache import EmbeddingCache
from raydpzv.methods.vertical.head import Head, HeadTraining
from raydpzv.models.flat import FlatModel
from raydpzv.privacy.mechanisms import Noise, release_mean
from raydpzv.settings.bounds import Momentum, Perturbations, Positive
from raydpzv.wire.messages import PerturbedEmbeddings, Slopes
from raydpzv.zo.directions import Direction, Law
from raydpzv.zo.estimators import slope
from raydpzv.zo.perturbation import LayerwisePerturbation
from raydpzv.zo.update import Descent, Rule, Step


@dataclass(frozen=True)
class DpzvConfig(Batched):
    """DPZV: two-point estimates, one noised scalar per update (dpzv papers, Algorithm 1)."""

    name: Literal["dpzv"] = "dpzv"
    """The method."""
    lr: Positive = 2e-3
    """Step size of the clients."""
    momentum: Momentum = 0.9
    """Momentum of the clients."""
    smoothing: Positive = 1e-3
    """Smoothing radius λ of the two-point estimate (f(w+λu) - f(w-λu)) / 2λ."""
    perturbations: Perturbations = 1
    """Directions per update, P; each is a release of its own."""
    direction: Law = "sphere"
    """Law of the directions: uniform on the sphere of radius √d, standard normal, or independent signs (fastest)."""
    server: HeadTraining = "sgd"
    """How the head learns: backpropagation, its own two-point step, or not at all."""


@dataclass(frozen=True)
class ZerothOrder:
    """A client's zeroth-order settings: smoothing radius λ, step size η, momentum β, P directions per update."""

    smoothing: float
    lr: float
    momentum: float = 0.0
    perturbations: int = 1
    law: Law = "sphere"


class DpzvClient(SplitClient):
    """Draws rows and directions, uploads h(w ± λu), descends along u by the scalar it gets back."""

    def __init__(
        self,
        client: int,
        model: FlatModel,
        x_train: torch.Tensor,
        x_test: torch.Tensor,
        batches: Batches,
        settings: ZerothOrder,
        key: Key,
    ) -> None:
        super().__init__(client, model, x_train, x_test)
        self._batches, self._settings, self._key = batches, settings, key
        self._perturb = LayerwisePerturbation(model.module, model.offsets)
        self._descent = Descent(model.flat, Rule(settings.law, settings.momentum))

    def apply(self, order: Order) -> None:
        """w_m <- w_m - η_m Δ u (journal Eq. (9)), u made again from its seed."""
        if not isinstance(order.body, Slopes):
            return
        seeds = [u.seed for u in self._directions(self._step - 1)]
        self._descent.apply([Step(seeds, order.body.values, self._settings.lr)])

    def work(self) -> Upload:
        """Return the batch's embeddings at w + λu and w - λu (journal Eq. (6)) for every direction."""
        ids = self._batches.draw(self._step)
        x, radius = self._rows(ids), self._settings.smoothing
        directions = self._directions(self._step)
        plus = np.stack([self._embed(x, u, radius) for u in directions])
        minus = np.stack([self._embed(x, u, -radius) for u in directions])
        self._step += 1
        return Upload(self.client, self._step - 1, PerturbedEmbeddings(ids, plus, minus))

    def restore(self, history: Slice, uploads: int) -> None:
        """Become what it was after so many uploads and the answers in `history`, from nothing else than its key.

        history: this client's updates of the ledger from the first on, one per answer applied. The same steps in the
        same order, so the same bits: parameters, momentum, counter. Raises RunError if this client has worked already
        or the updates are not those of steps 0, 1, ...
        """
        mine = history.of(self.client)
        count, answers = self._settings.perturbations, len(mine) // self._settings.perturbations
        wanted = np.repeat(np.arange(answers), count)
        if self._step or not np.array_equal(mine.step, wanted) or not answers <= uploads <= answers + 1:
            raise RunError(
                f"client {self.client}: wanted updates from step 0 on, {count} entries each, for {uploads} uploads, "
                f"and a client that has made none; got {len(mine)} entries and {self._step} uploads"
            )
        self._descent.apply([Step(seeds, scalars, lr) for seeds, scalars, lr in mine.steps()])
        self._step = uploads

    def _directions(self, step: int) -> list[Direction]:
        return [
            Direction(direction_seed(self._key, self.client, step, p), self.model.size, self._settings.law)
            for p in range(self._settings.perturbations)
        ]

    def _embed(self, x: torch.Tensor, direction: Direction, amount: float) -> np.ndarray:
        with torch.no_grad(), self._perturb.at(direction, amount):
            return self.model.module(x).cpu().numpy()


@dataclass(frozen=True)
class MeanRelease:
    """Clipping threshold C (None: no clip), noise deviation σ on the mean, and the noise's source."""

    clip: float | None
    sigma: float
    noise: Noise


class DpzvServer(CachingServer):
    """Answers every upload with one noised scalar for each direction; B is the divisor of every released mean."""

    def __init__(
        self,
        head: Head,
        table: EmbeddingCache,
        labels_train: torch.Tensor,
        labels_test: torch.Tensor,
        settings: ZerothOrder,
        privacy: MeanRelease,
        **named: Any,
    ) -> None:
        super().__init__(head, table, labels_train, labels_test, sent=2 * settings.perturbations, **named)
        self._smoothing, self._privacy = settings.smoothing, privacy

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Release Δ_p for every direction, refresh the table, train the head (journal Eq. (7), (8))."""
        body = upload.body
        if not isinstance(body, PerturbedEmbeddings):
            raise TypeError(f"a DPZV server cannot serve {type(body).__name__}")
        self._round += 1
        labels_B = self._labels(body.ids)
        device = labels_B.device
        plus_PBE = torch.tensor(body.plus, device=device)
        minus_PBE = torch.tensor(body.minus, device=device)
        batch_BME = self._table.get(body.ids)
        cache = self._table.ages(body.ids, self._round, upload.client)
        slopes_PB = self._slopes(batch_BME, plus_PBE, minus_PBE, labels_B, upload.client)
        releases = tuple(
            self._release(slopes_B, (upload.client, upload.step, p)) for p, slopes_B in enumerate(slopes_PB)
        )
        # (h⁺ + h⁻)/2 equals h up to O(λ²) and costs no extra bytes
        middle_BE = (plus_PBE + minus_PBE).mean(0) / 2
        self._table.put(upload.client, body.ids, middle_BE, self._round)
        batch_BME[:, upload.client] = middle_BE
        loss = self._head.train(batch_BME, labels_B)
        return [
            Order(
                upload.client,
                Slopes(np.array([r.value for r in releases], np.float32)),
                self._round,
                upload_bytes=self._upload_bytes,
                releases=releases,
                cache=cache,
                loss=loss,
            )
        ]

    def _slopes(
        self,
        batch_BME: torch.Tensor,
        plus_PBE: torch.Tensor,
        minus_PBE: torch.Tensor,
        labels_B: torch.Tensor,
        client: int,
    ) -> torch.Tensor:
        """Per-sample slopes along each direction, [P, B]; all 2P batches in one forward call."""
        count, rows = plus_PBE.shape[:2]
        stacked = batch_BME.repeat(2 * count, 1, 1)
        stacked[:, client] = torch.cat((plus_PBE, minus_PBE)).flatten(0, 1)
        losses = self._head.losses(stacked, labels_B.repeat(2 * count)).view(2, count, rows)
        return slope(losses[0], losses[1], self._smoothing)

    def _release(self, slopes_B: torch.Tensor, address: tuple[int, int, int]) -> Release:
        value, receipt = release_mean(
            slopes_B,
            threshold=self._privacy.clip,
            divisor=self._batch,
            sigma=self._privacy.sigma,
            noise=self._privacy.noise,
            address=address,
        )
        if not math.isfinite(value):
            raise Diverged(
                f"a release must be finite, but the one for client {address[0]}, step {address[1]} is {value}: "
                "choose a smaller step size or set a clipping threshold"
            )
        return Release(address[2], value, receipt)


def zeroth_order(config: DpzvConfig) -> ZerothOrder:
    """Return the settings that clients and server share."""
    return ZerothOrder(config.smoothing, config.lr, config.momentum, config.perturbations, config.direction)


def _client(parts: ClientParts, config: DpzvConfig) -> DpzvClient:
    return DpzvClient(
        *(parts.client, parts.model, parts.x_train, parts.x_test),
        parts.batches(config),
        zeroth_order(config),
        parts.key,
    )


def _server(parts: ServerParts, config: DpzvConfig) -> DpzvServer:
    head = Head(
        *(parts.model, config.server, config.server_lr, config.server_momentum),
        smoothing=config.smoothing,
        law=config.direction,
        key=parts.key,
    )
    release = MeanRelease(parts.noise.clip, parts.noise.sigma, parts.noise.of_means())
    return DpzvServer(
        *(head, cache(parts), parts.labels, parts.labels_test),
        zeroth_order(config),
        release,
        **cached(parts, config),
    )


DPZV = VerticalMethod(
    config=DpzvConfig,
    client=_client,
    server=_server,
    noise=lambda c: NoisePlan("mean", per_upload=c.perturbations, hidden=c.server != "frozen", head=c.server),
    rule=lambda c: UpdateRule(Rule(c.direction, c.momentum), c.lr, c.perturbations),
)
