"""DPZV: asynchronous vertical learning with two-point estimates and one noised scalar per update.

Sources: DPZV (preprint) Algorithm 1, (journal) Section IV. Differences from the papers as printed, with reasons:
the clip is two-sided (printed min{δ, C}: unbounded sensitivity), the two-point slope divides by 2λ (as the proofs
do), the divisor is the constant expected batch size. With privacy.mode = "sound" another server releases integers, and
nothing un-noised persists there (docs/privacy.md).
"""

# M clients, D rows, B batch, E embedding width, P perturbations

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining, HeadSettings, Top
from raydpzv.errors import Diverged, RunError
from raydpzv.keys import Key, direction_seed
from raydpzv.ledger.entries import Slice
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, UpdateRule, VerticalMethod
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.methods.vertical.base import Batched, CachingServer, SplitClient, cached
from raydpzv.privacy.integer_release import ClipOver, IntegerNoise, IntegerRelease, integer_sum
from raydpzv.privacy.mechanisms import Noise, release_sum
from raydpzv.settings.bounds import Momentum, Perturbations, Positive
from raydpzv.wire.messages import PerturbedEmbeddings, Slopes
from raydpzv.zo.directions import Law
from raydpzv.zo.update import Rule, Step

if TYPE_CHECKING:
    from raydpzv.settings.sections import Sections


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
    server: Literal["sgd", "zo", "frozen"] = "sgd"
    """How the head learns: backpropagation, its own two-point step, or not at all."""
    clip_over: ClipOver | None = None
    """What privacy.clip = C bounds: each slope ("scalar"), or a record's vector of P slopes, at C√P ("vector", which is
    privacy.mode = "sound" alone and what it does where nothing is said)."""


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
        bottom: Bottom,
        batches: Batches,
        settings: ZerothOrder,
        key: Key,
    ) -> None:
        super().__init__(client, bottom)
        self._batches, self._settings, self._key = batches, settings, key

    def apply(self, order: Order) -> None:
        """w_m <- w_m - η_m Δ u (journal Eq. (9)), u made again from its seed."""
        if not isinstance(order.body, Slopes):
            return
        seeds = self._seeds(self._step - 1)
        self.bottom.descend([Step(seeds, order.body.values, self._settings.lr)])

    def work(self) -> Upload:
        """Return the batch's embeddings at w + λu and w - λu (journal Eq. (6)) for every direction."""
        ids = self._batches.draw(self._step)
        radius = self._settings.smoothing
        plus, minus = self.bottom.embed_along(ids, self._seeds(self._step), (radius, -radius))
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
        self.bottom.descend([Step(seeds, scalars, lr) for seeds, scalars, lr in mine.steps()])
        self._step = uploads

    def _seeds(self, step: int) -> list[int]:
        return [direction_seed(self._key, self.client, step, p) for p in range(self._settings.perturbations)]


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
        top: Top,
        settings: ZerothOrder,
        privacy: MeanRelease,
        **named: Any,
    ) -> None:
        super().__init__(top, sent=2 * settings.perturbations, **named)
        self._smoothing, self._privacy = settings.smoothing, privacy

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Release Δ_p for every direction, refresh the table, train the head (journal Eq. (7), (8))."""
        body = upload.body
        if not isinstance(body, PerturbedEmbeddings):
            raise TypeError(f"a DPZV server cannot serve {type(body).__name__}")
        self._round += 1
        clip = self._privacy.clip
        served = self.top.two_point(
            *(upload.client, body.ids, body.plus, body.minus, self._round),
            smoothing=self._smoothing,
            clip=math.inf if clip is None else clip,
        )
        releases = tuple(
            self._release(p, total, bad, upload)
            for p, (total, bad) in enumerate(zip(served.sums, served.nonfinite, strict=True))
        )
        return [
            Order(
                upload.client,
                Slopes(np.array([r.value for r in releases], np.float32)),
                self._round,
                upload_bytes=self._upload_bytes,
                releases=releases,
                cache=served.cache,
                loss=served.loss,
            )
        ]

    def _release(self, perturbation: int, total: float, nonfinite: int, upload: Upload) -> Release:
        value, receipt = release_sum(
            total,
            batch=len(upload.ids),
            nonfinite=nonfinite,
            threshold=self._privacy.clip,
            divisor=self._batch,
            sigma=self._privacy.sigma,
            noise=self._privacy.noise,
            address=(upload.client, upload.step, perturbation),
        )
        if not math.isfinite(value):
            raise Diverged(
                f"a release must be finite, but the one for client {upload.client}, step {upload.step} is {value}: "
                "choose a smaller step size or set a clipping threshold"
            )
        return Release(perturbation, value, receipt)


class SoundServer(CachingServer):
    """Answers every upload with released integers; all that it keeps of the labels' making is a function of them.

    Its state beside the labels: cached embeddings, which are functions of a record's own features and of the clients'
    models. No loss is computed, and no sum leaves without noise.
    """

    def __init__(
        self,
        top: Top,
        settings: ZerothOrder,
        release: IntegerRelease,
        noise: IntegerNoise,
        **named: Any,
    ) -> None:
        super().__init__(top, sent=2 * settings.perturbations, **named)
        self._smoothing, self._how, self._noise = settings.smoothing, release, noise

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Release R_p for every direction and refresh the table."""
        client, body = upload.client, upload.body
        if not isinstance(body, PerturbedEmbeddings):
            raise TypeError(f"a DPZV server cannot serve {type(body).__name__}")
        self._round += 1
        slopes_PB = np.stack(
            [
                self.top.row_slopes(client, body.ids, plus_BE, minus_BE, self._smoothing)
                for plus_BE, minus_BE in zip(body.plus, body.minus, strict=True)
            ]
        )
        sums_P, nonfinite = integer_sum(slopes_PB, limit=self._how.limit, over=self._how.over)
        cache = self.top.ages(body.ids, self._round, client)
        self.top.put(client, body.ids, (body.plus + body.minus).mean(0) / np.float32(2), self._round)
        released_P, receipt = self._noise.release(
            sums_P, self._how, (client, upload.step), batch=len(body.ids), nonfinite=nonfinite
        )
        releases = tuple(Release(p, float(value), receipt) for p, value in enumerate(released_P))
        return [
            Order(
                *(client, Slopes(released_P), self._round),
                upload_bytes=self._upload_bytes,
                releases=releases,
                cache=cache,
            )
        ]


def zeroth_order(config: DpzvConfig, unit: float = 1.0) -> ZerothOrder:
    """Return the settings that clients and server share; unit: what a released number is worth."""
    lr = config.lr * unit
    return ZerothOrder(config.smoothing, lr, config.momentum, config.perturbations, config.direction)


def _client(parts: ClientParts, config: DpzvConfig) -> DpzvClient:
    rule = Rule(config.direction, config.momentum)
    return DpzvClient(
        *(parts.client, parts.bottom(BottomTraining(rule))),
        parts.batches(config),
        zeroth_order(config, parts.noise.unit),
        parts.key,
    )


def two_point_head(config: Any) -> HeadSettings:
    """Return how the head of a zeroth-order method learns: its own two-point step is like the clients'."""
    return HeadSettings(
        *(config.server, config.server_lr, config.server_momentum), config.smoothing, config.direction
    )


def _server(parts: ServerParts, config: DpzvConfig) -> DpzvServer | SoundServer:
    top = parts.top(two_point_head(config))
    if parts.noise.integers is not None:
        how, noise = parts.noise.integers, parts.noise.of_integers()
        return SoundServer(top, zeroth_order(config), how, noise, **cached(parts, config))
    release = MeanRelease(parts.noise.clip, parts.noise.sigma, parts.noise.of_means())
    return DpzvServer(top, zeroth_order(config), release, **cached(parts, config))


def _noise(config: DpzvConfig) -> NoisePlan:
    return NoisePlan(
        "mean",
        per_upload=config.perturbations,
        hidden=config.server in ("sgd", "zo"),
        head=config.server,
        sound_heads=("frozen",),
        clip_over=config.clip_over,
    )


def _contradictions(config: DpzvConfig, sections: Sections) -> Iterator[str]:
    if config.clip_over == "vector" and sections.privacy.mode != "sound":
        yield 'method.clip_over: "vector" goes with privacy.mode = "sound"; set that, or leave it out'


DPZV = VerticalMethod(
    config=DpzvConfig,
    client=_client,
    server=_server,
    noise=_noise,
    contradictions=_contradictions,
    rule=lambda c: UpdateRule(Rule(c.direction, c.momentum), c.lr, c.perturbations),
)
