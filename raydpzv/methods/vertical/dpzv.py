"""DPZV: asynchronous vertical learning with two-point estimates and one noised scalar per update.

Sources: DPZV (preprint) Algorithm 1, (journal) Section IV. Differences from the papers as printed,
with reasons: the clip is two-sided (printed min{δ, C}: unbounded sensitivity), the two-point slope
divides by 2λ (as the proofs do), the divisor is the constant expected batch size. With privacy.mode
= "proved" another server releases integers, and nothing un-noised persists there (docs/privacy.md).
"""

# M clients, D rows, B batch, E embedding width, P perturbations

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining, HeadSettings, HeadTraining, Top
from raydpzv.errors import Diverged, RunError
from raydpzv.keys import DirectionSeeds, Key
from raydpzv.ledger.entries import Slice
from raydpzv.methods.descriptor import (
    ClientParts,
    NoisePlan,
    ServerParts,
    UpdateRule,
    VerticalMethod,
)
from raydpzv.methods.model_averaging import ModelAverage, tail_begin
from raydpzv.methods.roles import Metrics, Order, Release, Upload
from raydpzv.methods.schedule import Schedule, StepSizesAt, schedule_of
from raydpzv.methods.vertical.base import Batched, CachingServer, ServerSizes, SplitClient, sizes
from raydpzv.privacy.integer_release import (
    ClipOver,
    IntegerNoise,
    IntegerRelease,
    Integers,
    integer_sum,
)
from raydpzv.privacy.mechanisms import ClippedSum, GradientRelease, MeanRelease
from raydpzv.settings.bounds import Count, Momentum, Perturbations, Positive, Share
from raydpzv.wire.messages import (
    Acknowledged,
    LedgerHistory,
    PerturbedEmbeddings,
    Slopes,
    TestEmbeddings,
)
from raydpzv.zo.directions import Law
from raydpzv.zo.spans import Group, groups_of
from raydpzv.zo.update import Rule, Step, Steps

if TYPE_CHECKING:
    from raydpzv.settings.sections import Sections


@dataclass(frozen=True)
class DpzvConfig(Batched):
    """DPZV: two-point estimates, one noised scalar per update (dpzv papers, Algorithm 1)."""

    name: Literal["dpzv"] = "dpzv"
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
    """Smoothing radius λ of the two-point estimate (f(w+λu) - f(w-λu)) / 2λ."""
    perturbations: Perturbations = 1
    """Directions per update, P; each is a release of its own."""
    direction: Law = "sphere"
    """Law of the directions: uniform on the sphere of radius √d, standard normal, independent signs
    (fastest), or a product a bᵀ for each weight matrix ("rank_one")."""
    groups: dict[str, Group] | None = None
    """Factors of the clients' parameters whose names match a pattern, {"1.*" = {lr = 2.0, smoothing
    = 0.5}}: of the step size and of the smoothing radius, 1 where nothing is said."""
    server: HeadTraining = "sgd"
    """How the head learns: backpropagation, its own two-point step, or not at all; with
    privacy.mode = "proved" not at all, by the clients' released scalars along directions of its own
    ("joint"), or by noised gradients ("dp_sgd")."""
    gather: Count = 1
    """Uploads that go into one release, Q, for batches too large for one message (privacy.mode =
    "proved"): must divide the batches of a pass."""
    clip_over: ClipOver | None = None
    """What privacy.clip = C bounds: each slope ("scalar"), or a record's vector of P slopes, at C√P
    ("vector", which is privacy.mode = "proved" alone and what it does where nothing is said)."""
    average: Share | None = None
    """Share of the releases that budget.updates makes, the last ones, the mean of whose models is
    what is evaluated, kept and published, of clients and head alike (privacy.mode = "proved"); left
    out: the newest model. Before the last share begins evaluations score the newest model, in it
    the mean so far."""


@dataclass(frozen=True)
class ZerothOrder:
    """A client's zeroth-order settings: smoothing radius λ, step size η, momentum β, P directions
    per update.

    gather: uploads along the same directions, whose answer comes with the last of them, Q. tail:
    the ledger's update after which models go into the mean that is shown, None where the newest
    model is.
    """

    smoothing: float
    lr: Schedule
    momentum: float = 0.0
    perturbations: int = 1
    law: Law = "sphere"
    gather: int = 1
    tail: int | None = None


class DpzvClient(SplitClient):
    """Draws rows and directions, uploads h(w ± λu), descends along u by the scalar it gets back."""

    def __init__(
        self, client: int, bottom: Bottom, batches: Batches, settings: ZerothOrder, key: Key
    ) -> None:
        super().__init__(client, bottom)
        self._batches, self._settings = batches, settings
        self._seeds = DirectionSeeds(key, settings.perturbations)
        self._tail = ModelAverage(settings.tail)

    def process(self, order: Order) -> Upload:
        """Apply the order and return the next upload; or continue from the ledger's updates."""
        body = order.body
        if not isinstance(body, LedgerHistory):
            return super().process(order)
        first, last, uploads = (int(number) for number in body.place)
        self.restore(Slice(first, last, *body.arrays()[1:]), uploads)
        return Upload(self.client, self._step, Acknowledged())

    def apply(self, order: Order) -> None:
        """w_m <- w_m - η_m Δ u (journal Eq. (9)), u made again from its seed."""
        if not isinstance(order.body, Slopes):
            return
        seeds = self._seeds.of(self.client, (self._step - 1) // self._settings.gather)
        step = Step(seeds, order.body.values, self._settings.lr.at(order.round))
        self._descend(Steps.of(step), [order.version])

    def work(self) -> Upload:
        """Return the batch's embeddings at w + λu and w - λu (journal Eq. (6)) for every
        direction.
        """
        ids = self._batches.draw(self._step)
        seeds = self._seeds.of(self.client, self._step // self._settings.gather)
        radius = self._settings.smoothing
        plus, minus = self.bottom.embed_along(ids, seeds, (radius, -radius))
        self._step += 1
        return Upload(self.client, self._step - 1, PerturbedEmbeddings(ids, plus, minus))

    def restore(self, history: Slice, uploads: int) -> None:
        """Become what it was after so many uploads and the answers in `history`, from nothing else
        than its key.

        history: this client's updates of the ledger from the first on, one per answer applied. The
        same steps in the
        same order, so the same bits: parameters, momentum, counter. Raises RunError if this client
        has worked already or the updates are not those of steps 0, 1, ...
        """
        mine, gather = history.of(self.client), self._settings.gather
        count, answers = self._settings.perturbations, len(mine) // self._settings.perturbations
        wanted = np.repeat(np.arange(answers), count)
        fits = answers * gather <= uploads <= (answers + 1) * gather
        if self._step or not np.array_equal(mine.step, wanted) or not fits:
            raise RunError(
                f"client {self.client}: wanted updates from step 0 on, {count} entries each, for "
                f"{uploads} uploads, and a client that has made none; got {len(mine)} entries and "
                f"{self._step} uploads"
            )
        scalars = mine.scalar.astype(np.float64)
        steps = Steps(
            np.array(mine.seed).reshape(-1, count),
            scalars.reshape(-1, count),
            np.array(mine.lr[::count]),
        )
        self._descend(steps, mine.round[::count].tolist())
        self._step = uploads

    def evaluate(self) -> Upload:
        """Return the embeddings of the held-out rows by the model that `parameters` returns."""
        return Upload(
            self.client, self._step, TestEmbeddings(self.bottom.embed_held_out(self._tail.mean()))
        )

    def parameters(self) -> np.ndarray:
        """Return the mean of the tail's models, or a copy of the newest before there are any,
        float32 [d].
        """
        mean = self._tail.mean()
        return self.bottom.parameters() if mean is None else mean

    def _descend(self, steps: Steps, versions: Sequence[int]) -> None:
        """Take steps, each by an answer that carried this update of the ledger."""
        before = self._tail.before(versions)
        if before:
            self.bottom.descend(steps[:before])
        for n in range(before, len(steps)):
            self.bottom.descend(steps[n : n + 1])
            self._tail.add(self.bottom.parameters())


class DpzvServer(CachingServer):
    """Answers every upload with one noised scalar for each direction."""

    def __init__(
        self, top: Top, sizes: ServerSizes, settings: ZerothOrder, privacy: MeanRelease
    ) -> None:
        super().__init__(top, sizes, sent=2 * settings.perturbations)
        self._smoothing, self._privacy = settings.smoothing, privacy

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Release Δ_p for every direction, refresh the table, train the head (journal Eq. (7),
        (8)).
        """
        body = upload.body
        if not isinstance(body, PerturbedEmbeddings):
            raise TypeError(f"a DPZV server cannot serve {type(body).__name__}")
        self.begin_round()
        served = self.top.two_point(
            upload.client, body, self._round, smoothing=self._smoothing, clip=self._privacy.bound
        )
        releases = tuple(
            self._release(p, ClippedSum(total, len(upload.ids), bad), upload)
            for p, (total, bad) in enumerate(zip(served.sums, served.nonfinite, strict=True))
        )
        slopes = Slopes(np.array([r.value for r in releases], np.float32))
        return [
            self.answer(upload, slopes, releases=releases, cache=served.cache, loss=served.loss)
        ]

    def _release(self, perturbation: int, summed: ClippedSum, upload: Upload) -> Release:
        value, receipt = self._privacy.release(summed, (upload.client, upload.step, perturbation))
        if not math.isfinite(value):
            raise Diverged(
                f"a release must be finite, but the one for client {upload.client}, step "
                f"{upload.step} is {value}: choose a smaller step size or set a clipping threshold"
            )
        return Release(perturbation, value, receipt)


@dataclass
class _Gathered:
    """The sums of a client's uploads of one release so far: Σ k_i, int64 [P], rows, records that
    counted as 0.
    """

    sums: Integers
    ids: list[np.ndarray]
    nonfinite: int = 0


@dataclass(frozen=True)
class IntegerServerNoise:
    """Releases of integers and, with "dp_sgd", of the head's gradients; gather: uploads a release,
    Q.
    """

    how: IntegerRelease
    noise: IntegerNoise
    gather: int = 1
    head: GradientRelease | None = None


class IntegerServer(CachingServer):
    """Answers uploads with released integers; all that it keeps of the labels' making is a function
    of releases.

    Beside the labels its state is the cache of embeddings, which are functions of a record's own
    features and of the clients' models; the sums of releases under way; and w_0, moved by released
    values alone: along its part v_p of a joint direction by the same scalars ("joint"), or along
    gradients with noise of their own ("dp_sgd"). No training loss is computed.
    """

    def __init__(
        self,
        top: Top,
        sizes: ServerSizes,
        settings: ZerothOrder,
        head: HeadSettings,
        release: IntegerServerNoise,
        key: Key,
    ) -> None:
        super().__init__(top, sizes, sent=2 * settings.perturbations)
        self._settings, self._head, self._release = settings, head, release
        assert sizes.lr is not None
        self._head_lr = sizes.lr.times(
            release.how.unit
        )  # of "joint", whose scalars are whole numbers
        self._seeds = DirectionSeeds(key / "head", settings.perturbations)
        self._gathered: dict[int, _Gathered] = {}
        self._tail, self._releases = ModelAverage(settings.tail), 0

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Add the upload's integers to its client's release and, if it is the last of Q, release
        R_p and move w_0.
        """
        client, body, count = upload.client, upload.body, self._settings.perturbations
        if not isinstance(body, PerturbedEmbeddings):
            raise TypeError(f"a DPZV server cannot serve {type(body).__name__}")
        self.begin_round()
        number, place = divmod(upload.step, self._release.gather)
        if place == 0:
            self._gathered[client] = _Gathered(np.zeros(count, np.int64), [])
        held = self._gathered[client]
        # the head's part of a release's directions, the same for all its uploads
        seeds = self._seeds.of(client, number).tolist() if self._head.training == "joint" else None
        sums_P, nonfinite = integer_sum(
            self._slopes(client, body, seeds),
            limit=self._release.how.limit,
            over=self._release.how.over,
        )
        held.sums, held.nonfinite = held.sums + sums_P, held.nonfinite + nonfinite
        held.ids.append(body.ids)
        cache = self.top.ages(body.ids, self._round, client)
        self.top.put(
            client, body.ids, (body.plus + body.minus).mean(0) / np.float32(2), self._round
        )
        answer = self.answer(upload, Acknowledged(), cache=cache)
        if place + 1 < self._release.gather:
            return [answer]
        released_P, releases = self._released(client, number, self._gathered.pop(client))
        if seeds is not None:
            self.top.descend(Step(seeds, released_P, self._head_lr.at(self._round)))
        self._releases += 1
        if self._tail.covers(self._releases):
            self._tail.add(self.top.parameters())
        return [answer._replace(body=Slopes(released_P), releases=releases, version=self._releases)]

    def state(self) -> dict[str, Any]:
        gathered = [
            (client, held.sums, list(held.ids), held.nonfinite)
            for client, held in sorted(self._gathered.items())
        ]
        own = {"gathered": gathered, "tail": self._tail.state(), "releases": self._releases}
        return super().state() | own

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._gathered = {client: _Gathered(*held) for client, *held in state["gathered"]}
        self._tail.restore(state["tail"])
        self._releases = state["releases"]

    def evaluate(self, embeddings: Sequence[np.ndarray]) -> Metrics:
        """Score held-out rows by the head that `parameters` returns."""
        return self.top.evaluate(embeddings, self._tail.mean())

    def parameters(self) -> np.ndarray:
        """Return the mean of the tail's heads, or a copy of the newest before there are any,
        float32 [d_0].
        """
        mean = self._tail.mean()
        return self.top.parameters() if mean is None else mean

    def _slopes(
        self, client: int, body: PerturbedEmbeddings, seeds: Sequence[int] | None
    ) -> np.ndarray:
        """Per-sample slopes along every direction, float32 [P, B]."""
        along: Sequence[int | None] = seeds or [None] * len(body.plus)
        return np.stack(
            [
                self.top.row_slopes(
                    client, body.ids, plus_BE, minus_BE, self._settings.smoothing, seed
                )
                for plus_BE, minus_BE, seed in zip(body.plus, body.minus, along, strict=True)
            ]
        )

    def _released(
        self, client: int, number: int, held: _Gathered
    ) -> tuple[np.ndarray, tuple[Release, ...]]:
        """Add the noise; release the head's gradient on the same rows, too, if that is how it
        learns.
        """
        ids, given = np.concatenate(held.ids), self._release
        released_P, receipt = given.noise.release(
            held.sums, given.how, (client, number), batch=len(ids), nonfinite=held.nonfinite
        )
        if given.head is not None:
            self.top.descend_by(given.head.release(self.top.clipped_gradient(ids, given.head.clip)))
        return released_P, tuple(
            Release(p, float(value), receipt, step=number, ids=ids)
            for p, value in enumerate(released_P)
        )


def zeroth_order(config: DpzvConfig, updates: int | None, unit: float = 1.0) -> ZerothOrder:
    """Return the settings that clients and server share; updates: planned; unit: what a released
    number is worth.
    """
    return ZerothOrder(
        config.smoothing,
        schedule_of(config, "lr").times(unit),
        config.momentum,
        config.perturbations,
        config.direction,
        config.gather,
        tail_begin(config.average, updates, config.gather),
    )


def _rule(config: DpzvConfig) -> Rule:
    return Rule(config.direction, config.momentum, groups=groups_of(config.groups))


def _client(parts: ClientParts, config: DpzvConfig) -> DpzvClient:
    return DpzvClient(
        parts.client,
        parts.bottom(BottomTraining(_rule(config))),
        parts.batches(config),
        zeroth_order(config, parts.updates, parts.noise.unit),
        parts.key,
    )


def _server(parts: ServerParts, config: DpzvConfig) -> DpzvServer | IntegerServer:
    # the head's own two-point step is like the clients'
    head = HeadSettings(
        config.server, config.server_lr, config.server_momentum, config.smoothing, config.direction
    )
    if parts.noise.integers is not None:
        return _integer_server(parts, config, head)
    noise, known = parts.noise, sizes(parts, config)
    release = MeanRelease(noise.clip, noise.sigma, noise.of_means(), known.batch)
    return DpzvServer(parts.top(head), known, zeroth_order(config, parts.updates), release)


def _integer_server(parts: ServerParts, config: DpzvConfig, head: HeadSettings) -> IntegerServer:
    noise = parts.noise
    assert noise.integers is not None
    release = IntegerServerNoise(noise.integers, noise.of_integers(), config.gather, noise.gradient)
    settings = zeroth_order(config, parts.updates)
    return IntegerServer(parts.top(head), sizes(parts, config), settings, head, release, parts.key)


def _noise(config: DpzvConfig) -> NoisePlan:
    return NoisePlan(
        "mean",
        per_upload=config.perturbations,
        hidden=config.server in ("sgd", "zo"),
        head=config.server,
        proved_heads=("frozen", "joint", "dp_sgd"),
        clip_over=config.clip_over,
        gathered=config.gather,
    )


def _contradictions(config: DpzvConfig, sections: Sections) -> Iterator[str]:
    if config.clip_over == "vector" and sections.privacy.mode != "proved":
        yield (
            'method.clip_over: "vector" goes with privacy.mode = "proved"; set that, or leave'
            " it out"
        )
    if config.server in ("joint", "dp_sgd") and sections.privacy.mode != "proved":
        yield (
            f'method.server: "{config.server}" goes with privacy.mode = "proved"; set that, or use '
            '"zo" or "sgd"'
        )
    if config.gather > 1 and sections.privacy.mode != "proved":
        yield 'method.gather: goes with privacy.mode = "proved"; set that, or leave it out'
    if config.average is not None:
        yield from _of_average(config.average, config.gather, sections)


def _of_average(share: float, gather: int, sections: Sections) -> Iterator[str]:
    updates = sections.budget.updates
    begin = tail_begin(share, updates, gather)
    if sections.privacy.mode != "proved":
        yield 'method.average: goes with privacy.mode = "proved"; set that, or leave it out'
    elif updates is None or begin is None:
        yield (
            "method.average: wanted with budget.updates, whose last share it is; give that and one "
            "of privacy.epsilon and privacy.noise_multiplier"
        )
    elif (planned := updates // gather) - begin < 2:
        yield (
            f"method.average: {share:g} of {planned} releases is {planned - begin}, and a mean "
            "wants at least 2; use a larger share, up to 1, or leave it out for the newest model"
        )


DPZV = VerticalMethod(
    config=DpzvConfig,
    client=_client,
    server=_server,
    noise=_noise,
    contradictions=_contradictions,
    rule=lambda c: UpdateRule(
        _rule(c), schedule_of(c, "lr"), c.perturbations, gathered=c.gather, average=c.average
    ),
    unrecorded=lambda c: "its noise on the head's gradients" if c.server == "dp_sgd" else None,
)
