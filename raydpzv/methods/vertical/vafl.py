"""VAFL: asynchronous vertical learning by backpropagation through stale embeddings, with perturbed
local embeddings.

Source: VAFL (Chen, Jin, Sun, Yin 2020), Algorithms 1 and 2, Section 4. Differences from the paper
as printed, with
reasons: an embedding can be clipped before its noise (the paper bounds no sensitivity, and without
that no ε follows); the noise can be on the gradient sent down in place of the embedding sent up
(DPZV's threat model).
"""

# M clients, D rows, B batch, E embedding width, N rows of a group of uploads together

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining, FirstOrder, Top
from raydpzv.errors import Diverged, SpecError
from raydpzv.keys import Key
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.methods.schedule import Schedule, StepSizesAt, schedule_of
from raydpzv.methods.vertical.base import (
    Batched,
    CachingServer,
    ServerSizes,
    SplitClient,
    gradient_top,
    sizes,
)
from raydpzv.methods.vertical.row_release import (
    Calibration,
    EmbeddingRelease,
    LayerLaw,
    RowPrivacy,
    row_privacy,
)
from raydpzv.privacy.mechanisms import release_rows
from raydpzv.settings.bounds import Bounds, Count, Momentum, NotNegative, Positive
from raydpzv.wire.messages import (
    Acknowledged,
    Embeddings,
    EmbeddingsAndMore,
    FreshEmbeddings,
    Gradient,
    GradientRequest,
    Query,
)

if TYPE_CHECKING:
    from raydpzv.settings.sections import Sections

REQUEST_BYTES = 8
"""On the wire, of a client's request: the number of the upload that it is about."""
UPLOAD, QUERY = 0, 2
"""Places of an upload's and of a query's noise among the draws of one client's step."""


@dataclass(frozen=True)
class VaflConfig(Batched):
    """VAFL: asynchronous backpropagation through stale embeddings, perturbed local embeddings (Chen
    et al. 2020).
    """

    name: Literal["vafl"] = "vafl"
    """The method."""
    lr: Positive = 0.02
    """Step size of the clients."""
    lr_at: StepSizesAt | None = None
    """Step sizes of the clients from later updates on: [[update, lr], ...]; left out: lr
    throughout.
    """
    momentum: Momentum = 0.0
    """Momentum of the clients (the paper has none)."""
    lr_decay: Count | None = None
    """K_0: step sizes of clients and head are lr · K_0 / (K_0 + k) after k rounds; left out:
    constant.
    """
    l2: NotNegative = 0.0
    """Regulariser of the clients' parameters, l2 ‖w‖² / 2."""
    synchrony: Literal["asynchronous", "t-synchronous", "synchronous"] = "asynchronous"
    """A step for every upload; for every wait_for uploads; or for all clients' on the same rows
    (block SGD).
    """
    wait_for: Annotated[int, Bounds(ge=2)] | None = None
    """t of "t-synchronous": uploads of different clients that the server waits for; all of them are
    answered.
    """
    max_delay: Count | None = None
    """D: cached embeddings older than so many rounds are queried afresh before a step; left out: no
    bound.
    """
    query_first: bool = False
    """Steps 6, 7, 4, 5 of Algorithm 1: an activation begins by asking for the gradient of the last
    upload, by the head and the embeddings of then, and uploads after that step; false: 4, 5, 6,
    7."""
    also_send: Count | None = None
    """Rows beside its batch whose embeddings an upload refreshes in the server's cache; left out:
    none.
    """
    noise_on: Literal["embedding", "gradient"] = "embedding"
    """Noise of [privacy] on what goes up (against the server) or on what comes down (against the
    clients).
    """
    layer_noise: tuple[NotNegative, ...] = ()
    """Deviations c_l of noise inside the layers, from the first on; the last number holds for the
    rest.
    """
    layer_law: LayerLaw = "uniform"
    """That noise's law: uniform on ±√3 c_l, or normal (the paper's LSTMs)."""
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling
    argument.
    """


def step_scale(lr_decay: int | None, round: int) -> float:
    """Return K_0 / (K_0 + k) for server round k + 1, the step sizes of VAFL's Theorems 2 and 4 over
    their first.
    """
    return 1.0 if lr_decay is None else lr_decay / (lr_decay + round - 1)


@dataclass(frozen=True)
class OtherRows:
    """Rows whose embeddings a client sends beside its batch: `count` of the D rows, drawn anew at
    every step.
    """

    count: int
    rows: int
    key: Key

    def draw(self, step: int, selected: np.ndarray) -> np.ndarray:
        """Return the numbers of rows that are not selected, int32 [R], all of them if there are no
        more.
        """
        left = np.setdiff1d(np.arange(self.rows, dtype=np.int32), selected)
        return (self.key / step).generator().choice(left, min(self.count, len(left)), replace=False)


class StepSizes(NamedTuple):
    """A client's step sizes by the update that answers it, and their decay, K_0 of `step_scale`."""

    lr: Schedule | None = None
    decay: int | None = None


class VaflClient(SplitClient):
    """Uploads the embeddings of its batch and backpropagates the gradient that it gets for them."""

    answers_queries = False

    def __init__(
        self,
        client: int,
        bottom: Bottom,
        batches: Batches,
        privacy: RowPrivacy | None = None,
        steps: StepSizes = StepSizes(),  # noqa: B008  (a tuple)
        others: OtherRows | None = None,
    ) -> None:
        super().__init__(client, bottom, steps.lr)
        self._batches, self._others, self._lr_decay = batches, others, steps.decay
        self._release = EmbeddingRelease(privacy or RowPrivacy())
        self._queries = 0

    def apply(self, order: Order) -> None:
        """w_m <- w_m - η (∇_w h · ∇_h ℓ + ∇r(w_m)). VAFL Eq. (4a)."""
        if isinstance(order.body, Gradient):
            self.descend(order.body.values, order, step_scale(self._lr_decay, order.round))

    def counts(self) -> list[int]:
        """Return uploads and answers to queries."""
        return [self._step, self._queries]

    def resume_at(self, counts: Sequence[int]) -> None:
        """Continue from another client's counts: the last upload's answer needs its `forward`
        again.
        """
        self._step, self._queries = counts
        if self._step:
            self._forward(self._step - 1)

    def _forward(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a step's rows, int32 [B], and their embeddings [B, E], for which a gradient may
        come.
        """
        ids = self._batches.draw(step)
        return ids, self.bottom.forward(ids, self._release.layer_noise((self.client, step, UPLOAD)))

    def work(self) -> Upload:
        """Return the next batch's embeddings, and those of other rows if wanted (Algorithm 1, lines
        4 and 5).
        """
        step, address = self._step, (self.client, self._step, UPLOAD)
        ids, embedded_BE = self._forward(step)
        sent_BE, releases = self._release.release(embedded_BE, address)
        self._step += 1
        body = Embeddings(ids, sent_BE)
        if self._others is not None:
            others = self._others.draw(step, ids)
            body = EmbeddingsAndMore(ids, sent_BE, others, self.bottom.embed(others))
        return Upload(self.client, step, body, releases=releases)


class QueriedClient(VaflClient):
    """Answers queries for fresh embeddings, too."""

    answers_queries = True

    def process(self, order: Order) -> Upload:
        """Apply the order and return the next upload; a query or an evaluation changes nothing."""
        if isinstance(order.body, Query):
            return self._fresh(order.body.ids)
        return super().process(order)

    def _fresh(self, ids: np.ndarray) -> Upload:
        """Return these rows' embeddings by the model as it is: noised anew, which is a release of
        its own.
        """
        address = (self.client, self._queries, QUERY)
        self._queries += 1
        embedded_BE = self.bottom.embed(ids, self._release.layer_noise(address))
        sent_BE, releases = self._release.release(embedded_BE, address)
        return Upload(
            self.client, self._step, FreshEmbeddings(ids, sent_BE), releases=releases, is_query=True
        )


class QueryFirstClient(VaflClient):
    """Asks for the gradient of its last upload when it wakes, learns from it, and uploads then
    (steps 6, 7, 4, 5).
    """

    _asks = False

    def counts(self) -> list[int]:
        """Return uploads, answers to queries, and whether the next activation begins with a
        request.
        """
        return [*super().counts(), int(self._asks)]

    def resume_at(self, counts: Sequence[int]) -> None:
        *of_all, asks = counts
        super().resume_at(of_all)
        self._asks = bool(asks)

    def apply(self, order: Order) -> None:
        """Take in an answer; whether the next activation begins with a request is the order's
        word.
        """
        super().apply(order)
        self._asks = order.asks

    def work(self) -> Upload:
        """Return the request, or the next batch's embeddings by the model that the answer to it
        made.
        """
        if not self._asks:
            return super().work()
        return Upload(
            self.client,
            self._step,
            GradientRequest(np.array([self._step - 1], np.int64)),
            is_query=True,
        )


@dataclass(frozen=True)
class Synchrony:
    """When the server steps: on every upload (wait_for = 1), or on those of t clients together
    (Algorithm 2).

    same_rows: all clients draw the same rows, so that with t = M a step is one of block SGD, in any
    order of arrival.
    max_delay: D, a cached embedding older than that many rounds is queried afresh first.
    """

    wait_for: int = 1
    same_rows: bool = False
    max_delay: int | None = None


Numbered = tuple[int, Upload]
"""An upload and the round it was accepted in."""


class VaflServer(CachingServer):
    """Keeps labels, head and the table of newest embeddings; answers uploads with the gradient by
    them.

    privacy: noise on the gradients, if any. also_sent: rows beside the batch in every upload of
    fixed size. A round is an upload accepted; where a query is open, uploads that come meanwhile
    wait and are served in their order, so that an upload's round stays what its cached rows' ages
    refer to.
    """

    def __init__(
        self,
        top: Top,
        sizes: ServerSizes,
        synchrony: Synchrony,
        privacy: RowPrivacy | None = None,
        *,
        lr_decay: int | None = None,
        also_sent: int = 0,
    ) -> None:
        super().__init__(top, sizes)
        if self._upload_bytes is not None:
            self._upload_bytes += also_sent * (4 + 4 * self.sizes.width)
        self._lr_decay = lr_decay
        self._synchrony, self._privacy = synchrony, privacy or RowPrivacy()
        self._held: deque[Numbered] = deque()
        self._asked: set[int] = set()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: uploads that wait, too, and who was asked."""
        return super().state() | {"held": list(self._held), "asked": sorted(self._asked)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._held = deque((round, upload) for round, upload in state["held"])
        self._asked = set(state["asked"])

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Take an upload or the answer to a query; return the answers and queries that it leads
        to.
        """
        body = upload.body
        if isinstance(body, FreshEmbeddings):
            self._asked.discard(upload.client)
            self._put((self._held[0][0], upload))
        elif isinstance(body, Embeddings):
            self.begin_round()
            self._held.append((self._round, upload))
        else:
            raise TypeError(f"a VAFL server cannot serve {type(body).__name__}")
        orders: list[Order] = []
        while len(self._held) >= self._synchrony.wait_for and not self._asked:
            if queries := self._queries(*self._held[0]):
                return [*orders, *queries]
            orders += self._serve([self._held.popleft() for _ in range(self._synchrony.wait_for)])
        return orders

    def _queries(self, round: int, upload: Upload) -> list[Order]:
        """Ask for what is older than D (Section 2.3, bounded delay)."""
        if self._synchrony.max_delay is None:
            return []
        old = self.top.older(upload.ids, round, self._synchrony.max_delay, upload.client)
        self._asked = set(old)
        return [
            Order(
                m,
                Query(ids.astype(np.int32)),
                round,
                is_query=True,
                upload_bytes=len(ids) * (4 + self.sizes.width * 4),
            )
            for m, ids in old.items()
        ]

    def _serve(self, group: Sequence[Numbered]) -> list[Order]:
        """Step the head on the group's rows and answer each of its clients (Algorithm 1 and 2,
        lines 8 to 13).
        """
        for numbered in group:
            self._put(numbered)
        same = self._synchrony.same_rows
        own = [upload.ids for _, upload in group]
        ids = own[0] if same or len(own) == 1 else np.concatenate(own)
        ends = accumulate(map(len, own))
        spans = [
            slice(0, len(ids)) if same else slice(end - len(rows), end)
            for end, rows in zip(ends, own, strict=True)
        ]
        loss, gradients = self._learn(ids, group, spans)
        alone, round = len(group) == 1, self._round
        return [
            self._answer(upload, gradient_BE, loss, own if alone else round)
            for (own, upload), gradient_BE in zip(group, gradients, strict=True)
        ]

    def _learn(
        self, ids: np.ndarray, group: Sequence[Numbered], spans: Sequence[slice]
    ) -> tuple[float, list[np.ndarray]]:
        """Step the head; return the mean loss before it, and each client's gradient of its own
        rows' mean loss.

        Both gradients are taken at the same head and embeddings (VAFL Eq. (2a), (2b)).
        """
        loss, gradient_NME = self.top.backward(ids, step_scale(self._lr_decay, group[-1][0]))
        shares = [np.float32(len(ids) / max(1, span.stop - span.start)) for span in spans]
        return loss, [
            gradient_NME[span, upload.client] * share
            for (_, upload), span, share in zip(group, spans, shares, strict=True)
        ]

    def _answer(self, upload: Upload, gradient_BE: np.ndarray, loss: float, round: int) -> Order:
        values_BE, releases = self._released(gradient_BE, upload)
        if not np.isfinite(values_BE).all():
            raise Diverged(
                f"a gradient must be finite, but the one for client {upload.client}, step "
                f"{upload.step} is not: choose a smaller step size"
            )
        cache = self.top.ages(upload.ids, round, upload.client)
        body = Gradient(values_BE)
        return self.answer(upload, body, round=round, releases=releases, cache=cache, loss=loss)

    def _released(
        self, gradient_BE: np.ndarray, upload: Upload
    ) -> tuple[np.ndarray, tuple[Release, ...]]:
        """Clip and noise each row's own gradient, B times its part in the mean loss's, if noise is
        on it.
        """
        privacy, rows = self._privacy, len(gradient_BE)
        if privacy.noise is None:
            return np.ascontiguousarray(gradient_BE), ()
        noised_BE, receipt = release_rows(
            gradient_BE * np.float32(rows),
            threshold=privacy.clip,
            sigma=privacy.sigma,
            noise=privacy.noise,
            address=(upload.client, upload.step, UPLOAD),
        )
        release = Release(0, math.nan, receipt, upload.step, upload.ids)
        return (noised_BE / np.float32(max(rows, 1))).astype(np.float32), (release,)

    def _put(self, numbered: Numbered) -> None:
        round, upload = numbered
        assert isinstance(upload.body, Embeddings | FreshEmbeddings)
        self.top.put(upload.client, upload.ids, upload.body.values, round)
        if isinstance(upload.body, EmbeddingsAndMore):
            self.top.put(upload.client, upload.body.more_ids, upload.body.more_values, round)


class QueryFirstServer(VaflServer):
    """Steps the head on every upload, and answers it when its client asks: by the head and the
    cache of then.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._last: dict[int, Upload] = {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: uploads whose clients will ask, too."""
        return super().state() | {"last": [self._last[client] for client in sorted(self._last)]}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._last = {upload.client: upload for upload in state["last"]}

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Take an upload, or answer a request (Algorithm 1, lines 8 to 10 and 11 to 13)."""
        if not isinstance(upload.body, GradientRequest):
            return super().receive(upload)
        last = self._last.pop(upload.client)
        gradient_BE = self.top.gradient(last.ids)[:, last.client]
        return [self._answer(last, gradient_BE, math.nan, self._round)]

    def _serve(self, group: Sequence[Numbered]) -> list[Order]:
        """Step the head on the upload's rows; its client asks at its next activation."""
        ((round, upload),) = group
        self._put((round, upload))
        self._last[upload.client] = upload
        loss, _ = self.top.backward(upload.ids, step_scale(self._lr_decay, round))
        return [
            self.answer(
                upload,
                Acknowledged(),
                loss=loss,
                round=round,
                upload_bytes=REQUEST_BYTES,
                asks=True,
            )
        ]


def make_client(parts: ClientParts, config: VaflConfig) -> VaflClient:
    """Return a client that backpropagates what it gets."""
    privacy = row_privacy(
        parts.noise, "embedding", config.noise_on, config.layer_noise, config.layer_law
    )
    descent = FirstOrder(config.lr, config.momentum, config.l2)
    bottom = parts.bottom(BottomTraining(descent=descent, clip=privacy.clip))
    batches = parts.batches(config, shared=config.synchrony == "synchronous")
    steps = StepSizes(schedule_of(config, "lr"), config.lr_decay)
    kind = VaflClient if config.max_delay is None else QueriedClient
    if config.query_first:
        kind = QueryFirstClient
    return kind(parts.client, bottom, batches, privacy, steps, _other_rows(parts, config))


def _other_rows(parts: ClientParts, config: VaflConfig) -> OtherRows | None:
    if config.also_send is None:
        return None
    left = parts.rows - int(config.batch)
    if config.also_send > left and config.batches != "poisson":
        raise SpecError(
            f"method.also_send: wanted at most {left} (training rows beside the batch), got "
            f"{config.also_send}"
        )
    return OtherRows(config.also_send, parts.rows, parts.coins / "other rows" / parts.client)


def _server(parts: ServerParts, config: VaflConfig) -> VaflServer:
    return (QueryFirstServer if config.query_first else VaflServer)(
        gradient_top(parts, config),
        sizes(parts, config),
        _synchrony(config, parts.clients),
        row_privacy(parts.noise, "gradient", config.noise_on),
        lr_decay=config.lr_decay,
        also_sent=config.also_send or 0,
    )


def _synchrony(config: VaflConfig, clients: int) -> Synchrony:
    if config.synchrony == "synchronous":
        return Synchrony(wait_for=clients, same_rows=True)
    return Synchrony(wait_for=config.wait_for or 1, max_delay=config.max_delay)


def _contradictions(config: VaflConfig, sections: Sections) -> Iterator[str]:
    clients, privacy = sections.split.clients, sections.privacy
    queries = config.max_delay is not None
    if (config.synchrony == "t-synchronous") != (config.wait_for is not None):
        yield 'method.wait_for: goes with synchrony = "t-synchronous", which needs it'
    if config.wait_for is not None and config.wait_for > clients:
        yield f"method.wait_for: wanted at most {clients} (split.clients), got {config.wait_for}"
    if queries and config.synchrony != "asynchronous":
        yield 'method.max_delay: goes with synchrony = "asynchronous"'
    if config.query_first and (config.synchrony != "asynchronous" or queries):
        yield (
            'method.query_first: goes with synchrony = "asynchronous" and without method.max_delay'
        )
    if config.layer_noise and privacy.mode == "none":
        yield (
            'method.layer_noise: has no meaning with privacy.mode = "none"; set mode = "paper" or'
            " leave it out"
        )
    if config.layer_law != "uniform" and not config.layer_noise:
        yield "method.layer_law: goes with method.layer_noise, whose law it is"
    if config.layer_noise and config.noise_on == "gradient":
        yield 'method.layer_noise: goes with method.noise_on = "embedding"'
    if config.also_send is not None and privacy.mode != "none" and config.noise_on == "embedding":
        yield (
            "method.also_send: embeddings of further rows would be releases that no account plans; "
            "use "
            'privacy.mode = "none", or method.noise_on = "gradient"'
        )
    if queries and privacy.epsilon is not None and config.noise_on == "embedding":
        yield (
            "privacy.epsilon: queries (method.max_delay) add releases that no plan counts; give "
            "privacy.sigma"
        )
    if sections.budget.epsilon is None or config.noise_on != "gradient":
        return
    if config.synchrony != "asynchronous":
        yield (
            'budget.epsilon: with method.noise_on = "gradient" goes with synchrony = "asynchronous"'
        )
    if queries or config.query_first:
        yield (
            'budget.epsilon: with method.noise_on = "gradient" goes without method.max_delay and'
            " method.query_first"
        )


def _fits(config: VaflConfig, inner: int) -> None:
    if len(config.layer_noise) > inner:
        raise SpecError(
            f"method.layer_noise: wanted at most {inner} numbers, one for each layer of the bottom "
            f"model before its last, got {len(config.layer_noise)}"
        )


def _unreplayable(config: VaflConfig) -> str | None:
    if config.max_delay is None and not config.query_first:
        return None
    setting = "method.query_first" if config.query_first else "method.max_delay"
    return (
        f"what its queries were answered with ({setting}) depends on the times of its messages, "
        "which a replay does not have; with the virtual clock the same scenario runs to the same "
        "bits"
    )


VAFL = VerticalMethod(
    config=VaflConfig,
    client=make_client,
    server=_server,
    noise=lambda c: NoisePlan(
        c.noise_on,
        queries=c.max_delay is not None,
        even_shares=c.synchrony == "synchronous",
        calibration=c.calibration,
    ),
    barrier=lambda c, clients: clients if c.synchrony == "synchronous" else c.wait_for or 1,
    contradictions=_contradictions,
    fits=_fits,
    unreplayable=_unreplayable,
)
