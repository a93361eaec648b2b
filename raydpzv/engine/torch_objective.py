"""Whole models of any kind, computed by torch on any device: the objective of horizontal learning.

A finite difference (f(x + λu) - f(x)) / λ divides rounding noise by λ, and a ledger replays what
clients measured, so two things matter here: the loss is taken in float64 from the float32 scores,
and its bits depend on the model, the points, the client's own rows and the number of torch's
threads alone, never on the other clients of a call, on earlier calls or on the thread. Each client
gets a forward call of its own shape.

Stacks of linear layers and ReLU are evaluated at several points by one batched product per layer: 3
times as fast as one by one at 2,410 parameters and 5 points, 5 times at 25 points, 1.1 times at
235,146 and 10 points. Two pooled 5x5 convolutions have a way of their own
(`raydpzv.models.pooled_convolutions`): half the time that torch takes. Other models run once per
point. Which it is, is a property of the model and of a record's shape. Gradients of stacks go
without autograd (`StackGradient`), to the same bits.
"""

# M clients, N rows, B batch, P points, d parameters, F features, K classes

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import nn

from raydpzv.engine.objective import check_fit
from raydpzv.engine.row_readers import RowReader
from raydpzv.engine.scores import measured, with_own
from raydpzv.engine.split_model import Metrics
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.losses import Loss
from raydpzv.models.momentum import MomentumDescent
from raydpzv.models.pooled_convolutions import PooledConvolutions
from raydpzv.registry import LOSSES
from raydpzv.zo.directions import Direction
from raydpzv.zo.joint_forward import JointForward
from raydpzv.zo.perturbation import LayerwisePerturbation
from raydpzv.zo.vectors import Vector

_EVALUATION_ROWS = 512
_STACK_FLOATS = (
    1 << 20
)  # 4 MiB of points stay in the cache: 235,146 parameters take a third longer with 64
_FLOATS_ON_GPU = 1 << 24
"""The same on an accelerator, and the parameters of a small model there: 64 MiB; launches are what
it waits for.
"""
_POOLED_POINTS = 8  # all 25 at once take 2 MB more memory and no less time
_KEPT_BYTES = 31 << 20
_LARGE = 1 << 22
"""Parameters (16 MiB) above which memory counts more than drawing each layer's direction for every
client.
"""
_DOT = 1 << 20
"""Elements of an inner product at a time."""
_ops = torch.ops.aten
_loss_of = _ops.nll_loss_forward.default
_gradient_of_loss = _ops.nll_loss_backward.default
_gradient_of_softmax = _ops._log_softmax_backward_data.default
_gradient_of_relu = _ops.threshold_backward.default
_MEAN, _NO_CLASS = 1, -100
"""How the loss is reduced, and the class that counts as none (torch's own defaults)."""


class TorchObjective:
    """Losses, gradients and scores of one model on the rows of all clients; see
    `raydpzv.engine.objective.Objective`.

    loss: one of `raydpzv.registry.LOSSES`; metrics: the name of the user's, "" for none.

    Owns one scratch model of d floats, and where points are evaluated together min(P, 2^20 / d)
    vectors more (4 MiB at most; of pooled convolutions 8), so that `at` is never written to and
    nothing drifts. Central differences take twice as many. A model above 2^22 parameters, on a GPU
    2^24, has none of these: it reads the vector that it last got, and is perturbed layer by layer.
    One thread at a time may use it. It computes on the device of its rows.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        rows: RowReader,
        loss: str = "cross_entropy",
        metrics: str = "",
    ) -> None:
        _keep_freed_memory()
        self._loss: Loss = LOSSES[loss]
        self._on_gpu = rows.device.type != "cpu"
        self._large = _FLOATS_ON_GPU if self._on_gpu else _LARGE
        self._make, self._rows, self._device, self._named = make, rows, rows.device, (loss, metrics)
        self._model = FlatModel(make, Key(0), rows.device)
        self._parameters = self._model.parameters
        self._convolves = any(
            isinstance(layer, nn.Conv2d) for layer in self._model.module.modules()
        )
        self._stacks = _is_stack(self._model.module)
        pooled = not self._on_gpu and PooledConvolutions.match(self._model.module, rows.shape)
        self._pooled = PooledConvolutions(self._model.module) if pooled else None
        by_hand = self._stacks and not self._on_gpu and loss == "cross_entropy"
        self._stack_gradient = StackGradient(self._model.module) if by_hand else None
        self._size, self._layout, self.shapes = (
            self._model.size,
            self._model.layout,
            self._model.shapes,
        )
        self._layers: LayerwisePerturbation | None = None
        self._joint = JointForward(self._model.module, self._model.offsets)
        if self._size > self._large and not self._stacks and self._pooled is None:
            self._layers = LayerwisePerturbation(self._model.module, self._model.offsets)
            self._model.flat = self._model.flat.new_empty(0)
            for p in self._parameters:
                p.data = self._model.flat
        self._points_Pd = self._model.flat.unsqueeze(0)
        self._other_1d: torch.Tensor | None = None

    def vector(self, values: Vector) -> torch.Tensor:
        """Return a copy of these numbers, float32 [d], on the device of the rows."""
        if isinstance(values, torch.Tensor):
            return values.detach().to(self._device, copy=True)
        return torch.tensor(values, device=self._device)

    def twin(self) -> TorchObjective:
        return TorchObjective(self._make, self._rows, *self._named)

    @property
    def size(self) -> int:
        return self._size

    @property
    def layout(self) -> str:
        """Digest of the parameters' names and shapes."""
        return self._layout

    @torch.no_grad()
    def initial(self, key: Key) -> torch.Tensor:
        """Return the parameters that `key` stands for, float32 [d]: those of `FlatModel(make,
        key)`.
        """
        if self._layers:
            return FlatModel(self._make, key, self._device).flat
        self._model.draw(key)
        return self._model.flat.clone()

    @torch.no_grad()
    def loss(self, at: torch.Tensor, rows: np.ndarray) -> float:
        check_fit(self.size, at)
        if self._layers:
            self._read(at)
            return float(self._losses(self._points_Pd, rows))
        points_1d = self._room(1)
        points_1d[0].copy_(at)
        return float(self._losses(points_1d, rows))

    def losses_at(self, at: torch.Tensor, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([self.loss(at, batch) for batch in rows])

    @torch.no_grad()
    def losses(
        self,
        at: torch.Tensor,
        directions: Sequence[Direction],
        amount: float,
        rows: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return the mean loss at `at + amount · u_p` on each client's rows, float64 [M, P].

        at: float32 [d]; rows: each client's batch. A client's losses have the same bits whichever
        other clients are here; with one direction they are those of `loss` at the perturbed vector.
        A stack's last bits may follow P (seen for batches of one row).
        """
        check_fit(self.size, at, *directions)
        if (
            directions[0].law == "rank_one"
            and (found := self._jointly(at, directions, amount, rows)) is not None
        ):
            return found
        losses_PM = torch.empty(
            len(directions), len(rows), dtype=torch.float64, device=self._device
        )
        if self._layers:
            self._read(at)
            for losses_M, direction in zip(losses_PM, directions, strict=True):
                for loss, batch in zip(losses_M.split(1), rows, strict=True):
                    with self._layers.at(direction, amount):
                        loss.copy_(self._losses(self._points_Pd, batch))
            return losses_PM.T.cpu().numpy()
        step = self._together(len(directions))
        for first in range(0, len(directions), step):
            chunk = directions[first : first + step]
            points_Pd = self._room(len(chunk))
            for point_d, direction in zip(points_Pd, chunk, strict=True):
                direction.add_to(at, amount, out=point_d)
            for client, batch in enumerate(rows):
                losses_PM[first : first + len(chunk), client] = self._losses(points_Pd, batch)
        return losses_PM.T.cpu().numpy()

    @torch.no_grad()
    def central_losses(
        self,
        at: torch.Tensor,
        directions: Sequence[Direction],
        radius: float,
        rows: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both, each direction made once where there is room for both points."""
        if self._layers or directions[0].law == "rank_one" or self._size > self._large:
            return self.losses(at, directions, radius, rows), self.losses(
                at, directions, -radius, rows
            )
        check_fit(self.size, at, *directions)
        found_2MP = torch.empty(
            2, len(rows), len(directions), dtype=torch.float64, device=self._device
        )
        step = self._together(len(directions))
        for first in range(0, len(directions), step):
            chunk = directions[first : first + step]
            sides = self._sides(len(chunk))
            for direction, plus_d, minus_d in zip(chunk, *sides, strict=True):
                direction.add_both_ways(at, radius, plus_d, minus_d)
            if self._stacks and self._on_gpu:
                both_Pd = self._room(2 * len(chunk))
                for client, batch in enumerate(rows):
                    losses_2P = self._losses(both_Pd, batch).view(2, -1)
                    found_2MP[:, client, first : first + len(chunk)] = losses_2P
                continue
            for points_Pd, losses_MP in zip(sides, found_2MP, strict=True):
                if points_Pd is self._other_1d:
                    self._model.flat.copy_(points_Pd[0])
                for losses_P, batch in zip(losses_MP, rows, strict=True):
                    losses_P[first : first + len(chunk)] = self._losses(points_Pd, batch)
        plus_MP, minus_MP = found_2MP.cpu().numpy()
        return plus_MP, minus_MP

    def _jointly(
        self,
        at: torch.Tensor,
        directions: Sequence[Direction],
        amount: float,
        rows: Sequence[np.ndarray],
    ) -> np.ndarray | None:
        """Return `losses` along directions a bᵀ without a copy of the weights; None where that does
        not help.

        With one direction the bits are not those of `loss`.
        """
        if self._pooled:
            return None
        self._read(at)
        if not self._joint.usable(directions, self._batch(rows[0])[0]):
            return None
        losses_MP = np.empty((len(rows), len(directions)))
        step = self._joint.block(directions)
        for first in range(0, len(directions), step):
            points = self._joint.points(directions[first : first + step], amount)
            for client, batch in enumerate(rows):
                x_BF, y_B = self._batch(batch)
                losses_P = self._loss.at_points(self._joint.scores(points, x_BF), y_B).mean(-1)
                losses_MP[client, first : first + step] = losses_P.cpu()
        return losses_MP

    @torch.no_grad()
    def gradient(self, at: torch.Tensor, rows: np.ndarray) -> tuple[float, torch.Tensor]:
        check_fit(self.size, at)
        self._read(at)
        x_BF, y_B = self._batch(rows)
        if self._stack_gradient and len(y_B) > 1:  # of one record autograd transposes some products
            return self._stack_gradient.at(x_BF, y_B)
        with torch.enable_grad():
            loss = self._loss.mean(self._model.module(x_BF), y_B)
            gradients = torch.autograd.grad(loss, self._parameters)
        return float(loss), torch.cat([gradient.reshape(-1) for gradient in gradients])

    def gradients(self, at: torch.Tensor, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([self.gradient(at, batch)[1].cpu().numpy() for batch in rows])

    def descents(
        self, at: torch.Tensor, rows: Sequence[Sequence[np.ndarray]], lr: float
    ) -> np.ndarray:
        return np.stack([self._descended(at, batches, lr) for batches in rows])

    def _descended(self, at: torch.Tensor, batches: Sequence[np.ndarray], lr: float) -> np.ndarray:
        x = at.clone()
        descent = self.descent(x, lr)
        for batch in batches:
            descent.step([self.gradient(x, batch)[1]])
        return (x - at).cpu().numpy()

    def slopes(
        self, at: torch.Tensor, directions: Sequence[Direction], rows: np.ndarray
    ) -> tuple[float, np.ndarray]:
        loss, gradient = self.gradient(at, rows)
        return loss, np.array([_inner(gradient, direction) for direction in directions])

    def descent(self, x: torch.Tensor, lr: float, momentum: float = 0.0) -> MomentumDescent:
        return MomentumDescent(x, lr, momentum)

    @torch.no_grad()
    def evaluate(self, at: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Metrics:
        """Score the rows x [N, ...] with labels y [N] or [N, T], in blocks of 512."""
        check_fit(self.size, at)
        self._read(at)
        loss, blocks = 0.0, []
        for x_BF, y_B in zip(x.split(_EVALUATION_ROWS), y.split(_EVALUATION_ROWS), strict=True):
            scores_BK = self._scores(x_BF.to(self._device))
            if self._loss.by_record:
                loss += float(self._loss.at_points(scores_BK, y_B.to(self._device)).sum())
            blocks.append(scores_BK.cpu())
        scores_NK, y = torch.cat(blocks), y.cpu()
        mean = loss / len(y) if self._loss.by_record else float(self._loss.mean(scores_NK, y))
        return with_own(measured(scores_NK, y, self._loss, mean), self._named[1], scores_NK, y)

    def _read(self, at: torch.Tensor) -> None:
        """Compute at these parameters, float32 [d]: at a copy, or at the vector itself where the
        model is large.
        """
        if not self._layers:
            self._model.flat.copy_(at)
            return
        starts = self._model.offsets.values()
        for p, start, (_, shape) in zip(self._parameters, starts, self.shapes, strict=True):
            p.data = at[start : start + math.prod(shape)].view(shape)

    def _scores(self, x_BF: torch.Tensor) -> torch.Tensor:
        """Scores at the scratch model's parameters, float32 [B, K]."""
        if self._pooled:
            return self._pooled.at_points(self._model.flat.unsqueeze(0), x_BF)[0]
        return cast(torch.Tensor, self._model.module(self._ordered(x_BF)))

    def _losses(self, points_Pd: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """Mean loss at every point, float64 [P]."""
        x_BF, y_B = self._batch(rows)
        if self._pooled:
            return self._loss.at_points(self._pooled.at_points(points_Pd, x_BF), y_B).mean(-1)
        if not self._moves:
            return self._loss.at_points(self._model.module(x_BF), y_B).mean(-1, keepdim=True)
        return self._loss.at_points(_stacked(self._model, points_Pd, x_BF), y_B).mean(-1)

    def _batch(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features, float32 [B, ...], and labels, [B] or [B, T], of some rows."""
        x_BF, y_B = self._rows.read(rows)
        return self._ordered(x_BF), y_B

    def _ordered(self, x_BF: torch.Tensor) -> torch.Tensor:
        """Return features as the model is fastest with them: convolutions want channels next to one
        another.

        They keep the order of what they get. In this one a forward pass with 1,206,590 parameters
        takes .6 times as long as with channels first, a gradient with 28,938 half as long.
        """
        images = self._convolves and x_BF.dim() == 4
        return x_BF.to(memory_format=torch.channels_last) if images else x_BF

    def _together(self, points: int) -> int:
        """Return the points to evaluate at once. Bits may follow it, so model and number of points
        alone decide.
        """
        if self._pooled:
            return min(points, _POOLED_POINTS)
        room = _FLOATS_ON_GPU if self._on_gpu else _STACK_FLOATS
        return max(1, min(points, room // self.size)) if self._stacks else 1

    @property
    def _moves(self) -> bool:
        """Whether points are evaluated where they are; else where the module's own parameters
        are.
        """
        return self._stacks or self._pooled is not None

    def _sides(self, points: int) -> Sequence[torch.Tensor]:
        """Return scratch for as many points on either side, twice [points, d]."""
        if self._moves:
            return self._room(2 * points).split(points)
        if self._other_1d is None:
            self._other_1d = torch.empty_like(self._points_Pd)
        return self._points_Pd, self._other_1d

    def _room(self, points: int) -> torch.Tensor:
        """Scratch for some parameter vectors, [points, d]; the first are the scratch model's
        own.
        """
        if points > len(self._points_Pd):
            self._points_Pd = self._model.flat.new_empty(points, self.size)
        return self._points_Pd[:points]


def _inner(gradient: torch.Tensor, direction: Direction) -> float:
    """<∇f, u> in float64, a piece of u at a time."""
    flat = gradient.cpu().numpy()
    return sum(
        float(
            np.dot(
                flat[i : i + _DOT].astype(np.float64),
                direction.values(i, min(i + _DOT, direction.size)),
            )
        )
        for i in range(0, direction.size, _DOT)
    )


def _keep_freed_memory() -> None:
    """Give one large block back: glibc learns from it to keep later ones up to its size, and no
    bits change.

    Else a CNN's activations are mapped from the system and unmapped again in every layer: 2,754
    page faults and a third of the time of a forward call with 1,206,590 parameters and 32 images.
    The block itself is never touched.
    """
    torch.empty(_KEPT_BYTES, dtype=torch.uint8)


def _is_stack(module: nn.Module) -> bool:
    """Whether the model is Flatten, then linear layers with biases and ReLU, and nothing else."""
    if type(module) is not nn.Sequential:
        return False
    first, *rest = module.children()
    linear = [layer for layer in rest if type(layer) is nn.Linear and layer.bias is not None]
    relus = [layer for layer in rest if type(layer) is nn.ReLU]
    return type(first) is nn.Flatten and len(linear) + len(relus) == len(rest)


def _stacked(model: FlatModel, points_Pd: torch.Tensor, x_BF: torch.Tensor) -> torch.Tensor:
    """Return the scores of a stack at every point, [P, B, K]: one batched product per linear
    layer.
    """
    points = len(points_Pd)
    h_PBF = x_BF.flatten(1).expand(points, -1, -1)
    for name, layer in model.module.named_children():
        if isinstance(layer, nn.Linear):
            start, inputs, outputs = (
                model.offsets[f"{name}.weight"],
                layer.in_features,
                layer.out_features,
            )
            weights = points_Pd[:, start : start + inputs * outputs].view(points, outputs, inputs)
            start = model.offsets[f"{name}.bias"]
            biases = points_Pd[:, start : start + outputs].unsqueeze(1)
            h_PBF = torch.baddbmm(biases, h_PBF, weights.transpose(1, 2))
        elif isinstance(layer, nn.ReLU):
            h_PBF = h_PBF.relu()
    return h_PBF


class StackGradient:
    """The mean cross-entropy of Flatten, then linear layers and ReLU, and its gradient without
    autograd, on CPUs.

    The operators are autograd's, and so the bits. What autograd notes down and looks up takes
    longer than a small network's products: a gradient of 25,450 parameters on 32 records takes half
    the time this way.
    module: such a network; its parameters may change in place.
    """

    def __init__(self, module: nn.Module) -> None:
        self._one = torch.ones(())
        self._layers = [_weights(layer) for layer in list(module.children())[1:]]

    @torch.no_grad()
    def at(self, x_BF: torch.Tensor, y_B: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Return the loss and its gradient, float32 [d], of several records and their classes."""
        h, inputs = x_BF.flatten(1), []
        for layer in self._layers:
            inputs.append(h)
            h = torch.addmm(layer[1], h, layer[0].t()) if layer else h.relu()
        log_BK = h.log_softmax(1)
        loss, total = _loss_of(log_BK, y_B, None, _MEAN, _NO_CLASS)
        slope = _gradient_of_loss(self._one, log_BK, y_B, None, _MEAN, _NO_CLASS, total)
        slope = _gradient_of_softmax(slope, log_BK, 1, torch.float32)
        found: list[torch.Tensor] = []
        for layer, given in zip(reversed(self._layers), reversed(inputs), strict=True):
            if not layer:
                slope = _gradient_of_relu(slope, given, 0)
                continue
            found += [slope.sum(0), slope.t().mm(given).view(-1)]
            if given is not inputs[0]:
                slope = slope.mm(layer[0])
        return float(loss), torch.cat(found[::-1])


def _weights(layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Weights and biases of a linear layer, None of ReLU."""
    return (layer.weight.detach(), layer.bias.detach()) if isinstance(layer, nn.Linear) else None
