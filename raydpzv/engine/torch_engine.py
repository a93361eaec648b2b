"""Models of any kind, computed by torch on any device."""

# M clients, B batch, E embedding width, n perturbations of a row, P directions, R rows

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raydpzv.engine.discriminant import discriminant
from raydpzv.engine.embedding_cache import EmbeddingCache
from raydpzv.engine.head import Head, copied
from raydpzv.engine.kept_directions import TorchDirections
from raydpzv.engine.split_model import (
    Ages,
    BottomTraining,
    LayerNoise,
    Metrics,
    TopRows,
    TwoPointService,
    score_parts,
)
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.momentum import MomentumDescent
from raydpzv.privacy.mechanisms import clip_rows, clip_two_sided
from raydpzv.wire.messages import PerturbedEmbeddings
from raydpzv.zo.directions import Direction
from raydpzv.zo.joint_forward import JointForward
from raydpzv.zo.perturbation import perturbation, slope
from raydpzv.zo.update import Descent, Step, Steps

if TYPE_CHECKING:
    from torch import nn

_EVALUATE_AT_ONCE = 512
"""Held-out rows per forward call: bounds the activations' memory."""


class TorchBottom:
    """A bottom model at its client's features [D, ...] and [N, ...]; see
    `raydpzv.engine.split_model.Bottom`.
    """

    def __init__(
        self,
        model: FlatModel,
        x_train: torch.Tensor,
        x_test: torch.Tensor,
        training: BottomTraining,
    ) -> None:
        self.model = model
        self._x_train, self._x_test, self._training = x_train, x_test, training
        self._embedded: torch.Tensor | None = None
        self._layers: _LayerHooks | None = None
        if training.rule is not None:
            self._perturb = perturbation(model.module, model.flat, model.offsets)
            self._joint = JointForward(model.module, model.offsets)
            self._zeroth_order = Descent(model.flat, training.rule.on(model.shapes))
            self._directions = TorchDirections(self._zeroth_order)
        if training.descent is not None:
            self._first_order = MomentumDescent(
                model.flat, training.descent.lr, training.descent.momentum
            )

    @property
    def size(self) -> int:
        return self.model.size

    @property
    def layout(self) -> str:
        return self.model.layout

    def embed(self, ids: np.ndarray, noise: LayerNoise | None = None) -> np.ndarray:
        with torch.no_grad():
            return self._embedding(self._rows(ids), noise).cpu().numpy()

    def embed_held_out(self, at: np.ndarray | None = None) -> np.ndarray:
        with torch.no_grad(), self.model.at(at):
            blocks = [
                self._embedding(x).cpu().numpy() for x in self._x_test.split(_EVALUATE_AT_ONCE)
            ]
        return np.concatenate(blocks)

    def embed_along(
        self, ids: np.ndarray, seeds: Sequence[int] | np.ndarray, amounts: Sequence[float]
    ) -> np.ndarray:
        x, directions = self._rows(ids), self._directions.of(np.array(seeds, np.uint64))
        with torch.no_grad():
            if self._joint.usable(directions, x):
                found = [self._jointly(x, directions, a) for a in amounts]
            else:
                found = [torch.stack([self._at(x, u, a) for u in directions]) for a in amounts]
            return torch.stack(found).cpu().numpy()

    def forward(self, ids: np.ndarray, noise: LayerNoise | None = None) -> np.ndarray:
        """Return the embeddings and keep their graph."""
        with torch.enable_grad():
            self._embedded = self._embedding(self._rows(ids), noise)
        return self._embedded.detach().cpu().numpy()

    def step_size(self, lr: float) -> None:
        self._first_order.lr = lr

    def backward(self, gradient_BE: np.ndarray, scale: float = 1.0) -> None:
        if self._embedded is None:
            return
        assert self._training.descent is not None
        parameters = self.model.parameters
        gradient = torch.tensor(gradient_BE, device=self._embedded.device)
        # its gradient by the embeddings is the one given; given as `grad_outputs`, torch imports
        # its compiler
        with torch.enable_grad():
            product = torch.vdot(self._embedded.flatten(), gradient.flatten())
            gradients = torch.autograd.grad(product, parameters)
        self._embedded, l2 = None, self._training.descent.l2
        self._first_order.step(
            [g + l2 * p.detach() for g, p in zip(gradients, parameters, strict=True)]
            if l2
            else gradients,
            scale,
        )

    def descend(self, steps: Steps) -> None:
        self._directions.descend(steps)

    def state(self) -> np.ndarray:
        return torch.stack(self._vectors()).detach().cpu().numpy()

    def restore(self, state: np.ndarray) -> None:
        copied(state, self._vectors())

    def _vectors(self) -> list[torch.Tensor]:
        training, flat = self._training, self.model.flat
        if training.rule is not None:
            return [flat, *self._zeroth_order.kept]
        return [flat, *self._first_order.kept] if training.descent is not None else [flat]

    def parameters(self) -> np.ndarray:
        return self.model.flat.detach().cpu().numpy().copy()

    def sha256(self) -> str:
        return self.model.sha256()

    def _rows(self, ids: np.ndarray) -> torch.Tensor:
        return self._x_train[torch.from_numpy(ids).long()]

    def _at(self, x: torch.Tensor, direction: Direction, amount: float) -> torch.Tensor:
        if not amount:
            return self._embedding(x)
        with self._perturb.at(direction, amount):
            return self._embedding(x)

    def _jointly(
        self, x: torch.Tensor, directions: Sequence[Direction], amount: float
    ) -> torch.Tensor:
        """Return embeddings at w + amount · u_p, [P, B, E]."""
        if not amount:
            return torch.stack([self._embedding(x)] * len(directions))
        step, found = self._joint.block(directions), []
        for first in range(0, len(directions), step):
            points = self._joint.points(directions[first : first + step], amount)
            found += [self._clipped(values_BE) for values_BE in self._joint.scores(points, x)]
        return torch.stack(found)

    def _embedding(self, x: torch.Tensor, noise: LayerNoise | None = None) -> torch.Tensor:
        if noise is None:
            return self._clipped(self.model.module(x))
        self._layers = self._layers or _LayerHooks(self.model.module)
        with self._layers.adding(noise):
            return self._clipped(self.model.module(x))

    def _clipped(self, values_BE: torch.Tensor) -> torch.Tensor:
        limit = self._training.clip
        if limit is None:
            return values_BE
        norms_B1 = torch.linalg.vector_norm(values_BE, dim=1, keepdim=True)
        return values_BE * (limit / norms_B1.clamp(min=limit))


def inner_layers(module: nn.Module) -> list[nn.Module]:
    """Return a model's layers but the last: the modules with parameters of their own."""
    return [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None][:-1]


class _LayerHooks:
    """Noise on what every layer but the last puts out, before its activation."""

    def __init__(self, module: nn.Module) -> None:
        self._noise: LayerNoise | None = None
        for layer, owner in enumerate(inner_layers(module)):
            owner.register_forward_hook(self._add(layer))

    @contextmanager
    def adding(self, noise: LayerNoise) -> Iterator[None]:
        """Forward calls inside are perturbed."""
        self._noise = noise
        try:
            yield
        finally:
            self._noise = None

    def _add(self, layer: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if self._noise is None:
                return output
            if isinstance(output, tuple):  # a recurrent layer's outputs come with its last state
                return (self._perturbed(output[0], layer), *output[1:])
            return self._perturbed(output, layer)

        return hook

    def _perturbed(self, output: torch.Tensor, layer: int) -> torch.Tensor:
        assert self._noise is not None
        noise = torch.from_numpy(self._noise(layer, output.numel()))
        return output + noise.view(output.shape).to(output.device)


class TorchTop:
    """The head with labels and, where one is used, the cache; see
    `raydpzv.engine.split_model.Top`.
    """

    def __init__(self, head: Head, rows: TopRows) -> None:
        self.head, device = head, head.model.flat.device
        self._labels_train = torch.tensor(rows.labels_train, device=device)
        self._labels_test = torch.tensor(rows.labels_test, device=device)
        self._clients, self._width, self._validated = rows.clients, rows.width, rows.validated
        self._metrics = rows.metrics

    @cached_property
    def table(self) -> EmbeddingCache:
        """The newest embeddings; made when the first are stored."""
        return EmbeddingCache(
            len(self._labels_train), self._clients, self._width, self._labels_train.device
        )

    def step_size(self, lr: float) -> None:
        self.head.step_size(lr)

    def put(self, client: int, ids: np.ndarray, values_BE: np.ndarray, round: int) -> None:
        self.table.put(client, ids, self._tensor(values_BE), round)

    def ages(self, ids: np.ndarray, round: int, serving: int) -> Ages:
        return self.table.ages(ids, round, serving)

    def older(self, ids: np.ndarray, round: int, limit: int, serving: int) -> dict[int, np.ndarray]:
        return self.table.older(ids, round, limit, serving)

    def two_point(
        self, client: int, body: PerturbedEmbeddings, round: int, *, smoothing: float, clip: float
    ) -> TwoPointService:
        ids, labels_B = body.ids, self._labels(body.ids)
        plus, minus = self._tensor(body.plus), self._tensor(body.minus)
        batch_BME, cache = self.table.get(ids), self.table.ages(ids, round, client)
        slopes_PB = self._slopes(batch_BME, plus, minus, labels_B, client, smoothing)
        clipped = [clip_two_sided(slopes_B, clip) for slopes_B in slopes_PB]
        # (h⁺ + h⁻)/2 equals h up to O(λ²) and costs no extra bytes
        middle_BE = (plus + minus).mean(0) / 2
        self.table.put(client, ids, middle_BE, round)
        batch_BME[:, client] = middle_BE
        loss = self.head.train(batch_BME, labels_B)
        return TwoPointService(
            [float(c.sum()) for c, _ in clipped], [bad for _, bad in clipped], cache, loss
        )

    def train(self, ids: np.ndarray) -> float:
        return self.head.train(self.table.get(ids), self._labels(ids))

    def backward(self, ids: np.ndarray, scale: float = 1.0) -> tuple[float, np.ndarray]:
        inputs_RME = self.table.get(ids)
        return (
            self._stepped(inputs_RME, ids, scale)
            if len(ids)
            else (math.nan, inputs_RME.cpu().numpy())
        )

    def gradient(self, ids: np.ndarray) -> np.ndarray:
        """Backpropagate on cached embeddings to them alone."""
        inputs_RME = self.table.get(ids)
        if len(ids):
            inputs_RME = self.head.embedding_gradient(inputs_RME, self._labels(ids))
        return inputs_RME.cpu().numpy()

    def backward_on(self, values_BME: np.ndarray, ids: np.ndarray) -> tuple[float, np.ndarray]:
        return self._stepped(self._tensor(values_BME), ids)

    def mean_differences(self, client: int, ids: np.ndarray, ahead_nBE: np.ndarray) -> np.ndarray:
        """Return the mean differences of losses, rows subtracted first; all n batches in one
        forward call.
        """
        count = len(ahead_nBE)
        if len(ids) == 0:
            return np.zeros(count)
        here_BME, labels_B = self.table.get(ids), self._labels(ids)
        stacked = here_BME.repeat(count, 1, 1)
        stacked[:, client] = self._tensor(ahead_nBE).flatten(0, 1)
        ahead_nB = self.head.losses(stacked, labels_B, count).view(count, -1)
        return (ahead_nB - self.head.losses(here_BME, labels_B)).double().mean(1).cpu().numpy()

    def row_slopes(
        self,
        client: int,
        ids: np.ndarray,
        plus_BE: np.ndarray,
        minus_BE: np.ndarray,
        smoothing: float,
        along: int | None = None,
    ) -> np.ndarray:
        labels_B, batch_BME = self._labels(ids), self.table.get(ids)
        if along is None:
            plus_1BE, minus_1BE = self._tensor(plus_BE)[None], self._tensor(minus_BE)[None]
            return (
                self._slopes(batch_BME, plus_1BE, minus_1BE, labels_B, client, smoothing)[0]
                .cpu()
                .numpy()
            )
        losses: list[torch.Tensor] = []
        for values_BE, amount in ((plus_BE, smoothing), (minus_BE, -smoothing)):
            batch_BME[:, client] = self._tensor(values_BE)
            losses.append(self.head.losses_along(batch_BME, labels_B, along, amount))
        return slope(losses[0], losses[1], smoothing).cpu().numpy()

    def descend(self, step: Step) -> None:
        self.head.descend(step)

    def clipped_gradient(self, ids: np.ndarray, clip: float) -> np.ndarray:
        if len(ids) == 0:
            return np.zeros(self.head.model.size)
        gradients_Bd = self.head.row_gradients(self.table.get(ids), self._labels(ids))
        clipped, _ = clip_rows(gradients_Bd, clip)
        return clipped.sum(0)

    def descend_by(self, gradient: np.ndarray) -> None:
        self.head.descend_by(self._tensor(gradient.astype(np.float32)))

    def row_gradients(
        self, client: int, ids: np.ndarray, count: int, smoothing: float, key: Key
    ) -> np.ndarray:
        inputs_BME = self.table.get(ids)
        directions_nBE = unit_rows(count, len(ids), self._width, key).to(inputs_BME.device)
        found_BE = row_gradients(
            self.head, inputs_BME, self._labels(ids), client, directions_nBE, smoothing
        )
        return found_BE.cpu().numpy()

    def fit(self, variance: float) -> None:
        ids = self.table.complete()
        rows_NF = self.table.get(ids).flatten(1).cpu().numpy()
        flat = self.head.model.flat
        classes = flat.numel() // (rows_NF.shape[1] + 1)
        if found := discriminant(rows_NF, self._labels(ids).cpu().numpy(), classes, variance):
            with torch.no_grad():
                flat.copy_(torch.from_numpy(np.concatenate([part.ravel() for part in found])))

    def evaluate(
        self, embeddings_MNE: Sequence[np.ndarray], at: np.ndarray | None = None
    ) -> Metrics:
        with torch.no_grad(), self.head.model.at(at):
            return score_parts(
                lambda part: self.head.evaluate(
                    [e[part] for e in embeddings_MNE], self._labels_test[part], self._metrics
                ),
                len(self._labels_test),
                self._validated,
            )

    def state(self) -> dict[str, Any]:
        return self.head.state() | (self.table.state() if "table" in vars(self) else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        self.head.restore(state)
        if "embeddings" in state:
            self.table.restore(state)

    def parameters(self) -> np.ndarray:
        return self.head.model.flat.detach().cpu().numpy().copy()

    def sha256(self) -> str:
        return self.head.model.sha256()

    def _stepped(
        self, inputs_RME: torch.Tensor, ids: np.ndarray, scale: float = 1.0
    ) -> tuple[float, np.ndarray]:
        labels_R = self._labels(ids)
        loss, gradient_RME = self.head.backward(
            inputs_RME, labels_R, for_embeddings=True, scale=scale
        )
        assert gradient_RME is not None
        return loss, gradient_RME.cpu().numpy()

    def _slopes(
        self,
        batch_BME: torch.Tensor,
        plus_PBE: torch.Tensor,
        minus_PBE: torch.Tensor,
        labels_B: torch.Tensor,
        client: int,
        smoothing: float,
    ) -> torch.Tensor:
        """Per-sample slopes along each direction, [P, B]; all 2P batches in one forward call."""
        count, rows = plus_PBE.shape[:2]
        stacked = batch_BME.repeat(2 * count, 1, 1)
        stacked[:, client] = torch.cat((plus_PBE, minus_PBE)).flatten(0, 1)
        losses = self.head.losses(stacked, labels_B, 2 * count).view(2, count, rows)
        return slope(losses[0], losses[1], smoothing)

    def _labels(self, ids: np.ndarray) -> torch.Tensor:
        return self._labels_train[torch.from_numpy(ids).long()]

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, device=self._labels_train.device)


def unit_rows(count: int, rows: int, width: int, key: Key) -> torch.Tensor:
    """Return `count` vectors on the unit sphere for every row, drawn at the key, float32 [n, B,
    E].
    """
    draws = key.generator().standard_normal((count, rows, width))
    draws /= np.linalg.norm(draws, axis=2, keepdims=True)
    return torch.from_numpy(draws.astype(np.float32))


def row_gradients(
    head: Head,
    inputs_BME: torch.Tensor,
    labels_B: torch.Tensor,
    client: int,
    directions_nBE: torch.Tensor,
    smoothing: float,
) -> torch.Tensor:
    """Return g_h = (E/λ) mean_n (ℓ(h + λv) - ℓ(h)) v for every row's own loss, [B, E]; v on the
    unit sphere.

    E[v vᵀ] = I/E there, which the factor E undoes.
    """
    count, _, width = directions_nBE.shape
    base_B = head.losses(inputs_BME, labels_B)
    moved = inputs_BME.repeat(count, 1, 1)
    moved[:, client] += smoothing * directions_nBE.flatten(0, 1)
    moved_nB = head.losses(moved, labels_B, count).view(count, -1)
    return (width / smoothing) * ((moved_nB - base_B)[:, :, None] * directions_nBE).mean(0)
