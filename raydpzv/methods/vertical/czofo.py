"""VFL-CZOFO: server and clients backpropagate; only the gradient between them is estimated from
losses.

Source: Wang et al. 2024 (NeurIPS 2023) and the program its authors published. As published, the
server perturbs all embeddings of a batch together and answers with one difference of the mean loss
for each of n perturbations; the client, which derives the same directions, makes the gradient of
them. variant = "per_row" is ours: the server takes a difference for every row and sends the
gradient. The client is VAFL's.
"""

# B batch, E embedding width, n perturbations; c numbers compressed, b bits for each

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import Bottom, BottomTraining, FirstOrder, Top
from raydpzv.errors import Diverged
from raydpzv.keys import Key, direction_seed
from raydpzv.methods.descriptor import ClientParts, NoisePlan, ServerParts, VerticalMethod
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import StepSizesAt, schedule_of
from raydpzv.methods.vertical.base import Batched, CachingServer, ServerSizes, gradient_top, sizes
from raydpzv.methods.vertical.row_release import Calibration, RowPrivacy, row_privacy
from raydpzv.methods.vertical.vafl import StepSizes, VaflClient
from raydpzv.settings.bounds import Bits, Momentum, Perturbations, Positive
from raydpzv.wire.messages import (
    Body,
    CompressedAnswer,
    CompressedEmbeddings,
    Embeddings,
    Gradient,
    LossDifferences,
)
from raydpzv.zo.directions import Direction

if TYPE_CHECKING:
    from raydpzv.settings.sections import Sections

_TINY = np.finfo(np.float64).tiny
_LIMITS = 8
"""Bytes of the two limits, smallest and largest number as float32."""


@dataclass(frozen=True)
class CzofoConfig(Batched):
    """VFL-CZOFO: backpropagation at both ends, the gradient between them estimated from losses
    (Wang et al. 2024).
    """

    name: Literal["czofo"] = "czofo"
    """The method."""
    variant: Literal["published", "per_row"] = "published"
    """n differences of the batch's mean loss, sent as they are; or (ours) n of every row, and the
    gradient is sent.
    """
    lr: Positive = 0.02
    """Step size of the clients."""
    lr_at: StepSizesAt | None = None
    """Step sizes of the clients from later updates on: [[update, lr], ...]; left out: lr
    throughout.
    """
    momentum: Momentum = 0.0
    """Momentum of the clients."""
    smoothing: Positive = 1e-3
    """Smoothing radius λ of the perturbations of an embedding."""
    perturbations: Perturbations = 5
    """Perturbations n of the batch, or of every row; "coordinate" directions have E in their
    place.
    """
    directions: Literal["uniform", "normal", "coordinate"] = "uniform"
    """Of every row: on the unit sphere, standard normal, or along each coordinate, both ways, with
    losses by row.
    """
    upload_bits: Bits | None = None
    """Bits per number of an upload, by uniform scale compression; left out: float32."""
    answer_bits: Bits | None = None
    """Bits per number of an answer, by uniform scale compression; left out: float32."""
    calibration: Calibration = "counted"
    """Noise for the releases one record takes part in, or smaller by the DPZV papers' sampling
    argument.
    """

    @property
    def answers_differences(self) -> bool:
        """The answer to an upload is n loss differences, else a gradient [B, E]."""
        return self.variant == "published" and self.directions != "coordinate"


class SharedDirections:
    """The directions of an upload, which server and client derive from the run's key and send
    nobody.

    They follow from client and step alone. As published every row's own part is drawn: on the unit
    sphere of its E dimensions, where E[v vᵀ] = I/E for a row and 0 between two, or standard normal,
    E[v vᵀ] = I.
    """

    def __init__(self, config: CzofoConfig, key: Key) -> None:
        self._config, self._key = config, key

    def draw(self, client: int, step: int, rows: int, width: int) -> np.ndarray:
        """Return the n directions, float32 [n, B, E], with the same bits on every machine."""
        count = self._config.perturbations
        seed = direction_seed(self._key, client, step)
        drawn_nBE = Direction(seed, count * rows * width).values().reshape(count, rows, width)
        if self._config.directions == "normal":
            return drawn_nBE
        # a running sum adds in the order of the coordinates, whatever the processor
        squares_nB1 = np.cumsum(drawn_nBE.astype(np.float64) ** 2, axis=2)[:, :, -1:]
        # one row of width 1 in 2^32 is zero, and stays it
        return (drawn_nBE / np.sqrt(np.maximum(squares_nB1, _TINY))).astype(np.float32)

    def gradient(
        self, differences_n: np.ndarray, client: int, step: int, rows: int, width: int
    ) -> np.ndarray:
        """Return g_h = (φ/λ) mean_k δ_k v_k, the mean loss's gradient by the embeddings, float32
        [B, E].

        φ undoes E[v vᵀ]: E for uniform directions, 1 for normal ones.
        """
        config, total_BE = self._config, np.zeros((rows, width))
        for difference, v_BE in zip(
            differences_n, self.draw(client, step, rows, width), strict=True
        ):
            total_BE += np.multiply(v_BE, difference, dtype=np.float64)
        factor = width if config.directions == "uniform" else 1
        return (factor / (config.smoothing * config.perturbations) * total_BE).astype(np.float32)


class CzofoClient(VaflClient):
    """Uploads the embeddings of its batch, backpropagates the gradient that it gets or makes of
    loss differences.
    """

    def __init__(
        self,
        client: int,
        bottom: Bottom,
        batches: Batches,
        config: CzofoConfig,
        key: Key,
        privacy: RowPrivacy | None = None,
    ) -> None:
        super().__init__(client, bottom, batches, privacy, StepSizes(schedule_of(config, "lr")))
        self._config, self._directions = config, SharedDirections(config, key)
        self._shape = (0, 0)

    def apply(self, order: Order) -> None:
        """w_m <- w_m - η ∇_w h · g_h."""
        body, config = order.body, self._config
        if isinstance(body, Gradient | LossDifferences):
            values = body.values
        elif isinstance(body, CompressedAnswer) and config.answer_bits is not None:
            shape = (config.perturbations,) if config.answers_differences else self._shape
            values = decompress(body.levels, body.limits, config.answer_bits, shape)
        else:
            return
        if config.answers_differences:
            values = self._directions.gradient(values, self.client, self._step - 1, *self._shape)
        self.descend(values, order)

    def counts(self) -> list[int]:
        """Return uploads, answers to queries, and the shape of the last upload."""
        return [*super().counts(), *self._shape]

    def resume_at(self, counts: Sequence[int]) -> None:
        *of_vafl, rows, width = counts
        super().resume_at(of_vafl)
        self._shape = rows, width

    def work(self) -> Upload:
        """Return the next batch's embeddings: released, then compressed, which is post-processing
        of the release.
        """
        upload, bits = super().work(), self._config.upload_bits
        assert isinstance(upload.body, Embeddings)
        values_BE = upload.body.values
        self._shape = (len(values_BE), values_BE.shape[1])
        if bits is None:
            return upload
        return upload._replace(
            body=CompressedEmbeddings(upload.body.ids, *compress(values_BE, bits))
        )


class CzofoServer(CachingServer):
    """Answers every upload with what its losses at perturbed embeddings say of the gradient; then
    trains its head.
    """

    def __init__(self, top: Top, sizes: ServerSizes, config: CzofoConfig, key: Key) -> None:
        super().__init__(top, sizes)
        self._config, self._key, self._directions = config, key, SharedDirections(config, key)
        if self._upload_bytes is not None:
            self._upload_bytes = traffic(config, self.sizes.batch, self.sizes.width)[0]

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Take all losses under one and the same head, which then takes its step."""
        client, ids, values_BE = upload.client, upload.ids, self._embeddings(upload.body)
        self.begin_round()
        self.top.put(client, ids, values_BE, self._round)
        found = self._found(upload, values_BE)
        if not np.isfinite(found).all():
            what = "a loss difference" if self._config.answers_differences else "a gradient"
            raise Diverged(
                f"{what} must be finite, but one for client {client}, step {upload.step} is not: "
                "choose a smaller step size"
            )
        loss = self.top.train(ids)
        cache = self.top.ages(ids, self._round, client)
        return [self.answer(upload, self._body(found), cache=cache, loss=loss)]

    def _embeddings(self, body: Body) -> np.ndarray:
        bits = self._config.upload_bits
        if isinstance(body, Embeddings) and bits is None:
            return body.values
        if isinstance(body, CompressedEmbeddings) and bits is not None:
            return decompress(body.levels, body.limits, bits, (len(body.ids), self.sizes.width))
        raise TypeError(
            f"a VFL-CZOFO server of {bits or 32}-bit uploads cannot serve {type(body).__name__}"
        )

    def _found(self, upload: Upload, values_BE: np.ndarray) -> np.ndarray:
        """Return the n differences δ_k of the mean loss, or the estimate of its gradient [B, E],
        float32.
        """
        config, ids, rows = self._config, upload.ids, max(1, len(upload.ids))
        if config.variant == "per_row":
            key = self._key / upload.client / upload.step
            gradient_BE = self.top.row_gradients(
                upload.client, ids, config.perturbations, config.smoothing, key
            )
            return gradient_BE / np.float32(rows)
        if config.directions == "coordinate":
            return self._along_coordinates(upload.client, ids, values_BE) / np.float32(rows)
        directions_nBE = self._directions.draw(upload.client, upload.step, *values_BE.shape)
        ahead_nBE = values_BE + np.float32(config.smoothing) * directions_nBE
        return self.top.mean_differences(upload.client, ids, ahead_nBE).astype(np.float32)

    def _along_coordinates(self, client: int, ids: np.ndarray, values_BE: np.ndarray) -> np.ndarray:
        """Return (ℓ_i(h + λe_k) - ℓ_i(h - λe_k)) / 2λ of every row i and coordinate k, float32 [B,
        E].
        """
        slopes_BE, radius = np.empty_like(values_BE), self._config.smoothing
        for k, step_E in enumerate(np.eye(self.sizes.width, dtype=np.float32) * np.float32(radius)):
            slopes_BE[:, k] = self.top.row_slopes(
                client, ids, values_BE + step_E, values_BE - step_E, radius
            )
        return slopes_BE

    def _body(self, found: np.ndarray) -> Body:
        if self._config.answer_bits is not None:
            return CompressedAnswer(*compress(found, self._config.answer_bits))
        return LossDifferences(found) if self._config.answers_differences else Gradient(found)


def traffic(config: CzofoConfig, batch: int, width: int) -> tuple[int, int]:
    """Return the bytes of an upload and of its answer."""
    answered = config.perturbations if config.answers_differences else batch * width
    up = 4 * batch + compressed_bytes(batch * width, config.upload_bits)
    return up, compressed_bytes(answered, config.answer_bits)


def _key(parts: ClientParts | ServerParts) -> Key:
    return parts.key / "embedding directions"


def _client(parts: ClientParts, config: CzofoConfig) -> CzofoClient:
    privacy = row_privacy(parts.noise, "embedding", "embedding")
    training = BottomTraining(descent=FirstOrder(config.lr, config.momentum), clip=privacy.clip)
    return CzofoClient(
        parts.client, parts.bottom(training), parts.batches(config), config, _key(parts), privacy
    )


def _server(parts: ServerParts, config: CzofoConfig) -> CzofoServer:
    return CzofoServer(gradient_top(parts, config), sizes(parts, config), config, _key(parts))


def _contradictions(config: CzofoConfig, sections: Sections) -> Iterator[str]:
    if config.variant == "per_row" and config.directions != "uniform":
        yield (
            'method.directions: wanted "uniform" with variant = "per_row", got '
            f'"{config.directions}"; set variant = "published" or leave directions out'
        )
    if sections.loss == "cox" and not config.answers_differences:
        yield (
            'method.variant: wanted "published" with directions = "uniform" or "normal", which '
            'take the loss of a batch, with survival times (model.loss = "cox"): they have no loss '
            "of a single row"
        )


def compressed_bytes(count: int, bits: int | None) -> int:
    """Return the bytes of so many numbers: ⌈cb / 8⌉ + 8; 4c for float32 (bits None)."""
    return 4 * count if bits is None else -(-count * bits // 8) + _LIMITS


def compress(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the packed levels, uint8 [⌈cb / 8⌉], and the limits, float32 [2], of float32 numbers
    of any shape.

    Levels are spaced evenly from the smallest number to the largest, and a number goes to the
    nearest. This is biased and deterministic, unlike FedCom's quantiser
    (`raydpzv.methods.horizontal.compression.Quantised`), whose coins make its mean right and need
    an address. If a number is not finite, the limits are NaN.
    """
    limits = np.zeros(2, np.float32)
    if values.size:
        limits[:] = values.min(), values.max()
    levels, (low, high) = np.zeros(values.size, np.int64), limits.astype(np.float64)
    if not np.isfinite(limits).all():
        limits[:] = np.nan
    elif high > low:
        share = (values.ravel().astype(np.float64) - low) / (high - low)
        levels = np.rint(share * _top(bits)).astype(np.int64)
    bits_cb = (levels[:, None] >> np.arange(bits)) & 1
    return np.packbits(bits_cb.astype(np.uint8), bitorder="little"), limits


def decompress(
    packed: np.ndarray, limits: np.ndarray, bits: int, shape: Sequence[int]
) -> np.ndarray:
    """Return the numbers that the levels stand for, float32 of this shape. ValueError: levels of
    another count.
    """
    count = math.prod(shape)
    if len(packed) != -(-count * bits // 8):
        raise ValueError(f"wanted {count} levels of {bits} bits, got {len(packed)} bytes")
    bits_cb = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    levels = (bits_cb.astype(np.int64) << np.arange(bits)).sum(1)
    low, high = limits.astype(np.float64)
    return (low + levels * ((high - low) / _top(bits))).astype(np.float32).reshape(shape)


def _top(bits: int) -> int:
    """The highest level."""
    return (1 << bits) - 1


CZOFO = VerticalMethod(
    config=CzofoConfig,
    client=_client,
    server=_server,
    noise=lambda c: NoisePlan(
        "embedding",
        calibration=c.calibration,
        traffic=lambda batch, width: traffic(c, batch, width),
    ),
    contradictions=_contradictions,
)
