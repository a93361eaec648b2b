"""Whole models of dense layers, computed by compiled kernels on the CPU: the objective of
horizontal learning.

Bits depend on the inputs alone (`raydpzv.engine.dense_kernel`).
"""

# M clients, N rows, B batch, P directions, d parameters

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raydpzv.engine.compiled import kernel, scored, shape_of
from raydpzv.engine.dense import LAWS, DenseNetwork
from raydpzv.engine.objective import check_fit
from raydpzv.engine.row_readers import RowReader
from raydpzv.engine.split_model import Metrics
from raydpzv.zo.directions import Direction
from raydpzv.zo.vectors import Vector, as_array

_descend = kernel("descend")
_descents = kernel("descents")
_gradients = kernel("gradients")
_inner_products = kernel("inner_products")
_loss_and_gradient = kernel("loss_and_gradient")
_losses_along = kernel("losses_along")
_losses_at = kernel("losses_at")
_DIRECTION_FLOATS = 1 << 20
"""Numbers of directions that are kept at a time: 4 MiB."""


class CompiledObjective:
    """Losses, gradients and scores of a dense network; see `raydpzv.engine.objective.Objective`.

    Its vectors are arrays; it takes tensors on the CPU as well. Keeps nothing between calls, so
    that any number of
    threads may use it. metrics: the name of the user's, "" for none.
    """

    def __init__(self, network: DenseNetwork, rows: RowReader, metrics: str = "") -> None:
        self._size, self._shape, self.shapes = network.size, shape_of(network), network.shapes
        self._rows, self._metrics = rows, metrics

    @property
    def size(self) -> int:
        return self._size

    def vector(self, values: Vector) -> np.ndarray:
        return np.array(as_array(values), np.float32)

    def twin(self) -> CompiledObjective:
        """Return this objective: threads share it."""
        return self

    def loss(self, at: Vector, rows: np.ndarray) -> float:
        """Return the mean cross-entropy on `rows`."""
        return float(self.losses_at(at, [rows])[0])

    def losses_at(self, at: Vector, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return the mean cross-entropy on each client's rows, float64 [M]."""
        check_fit(self._size, at)
        found = np.empty(len(rows))
        _losses_at(*self._located(np.concatenate(rows)), _ends(rows), self._net(at), found)
        return found

    def losses(
        self, at: Vector, directions: Sequence[Direction], amount: float, rows: Sequence[np.ndarray]
    ) -> np.ndarray:
        return self._along(at, directions, (amount,), rows)[0]

    def central_losses(
        self, at: Vector, directions: Sequence[Direction], radius: float, rows: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both, each direction made once."""
        plus_MP, minus_MP = self._along(at, directions, (radius, -radius), rows)
        return plus_MP, minus_MP

    def gradient(self, at: Vector, rows: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean cross-entropy on `rows` and its gradient, float32 [d]."""
        check_fit(self._size, at)
        gradient = np.empty(self._size, np.float32)
        return float(_loss_and_gradient(*self._located(rows), self._net(at), gradient)), gradient

    def gradients(self, at: Vector, rows: Sequence[np.ndarray]) -> np.ndarray:
        check_fit(self._size, at)
        found, ends = np.empty((len(rows), self._size), np.float32), _ends(rows)
        _gradients(*self._located(np.concatenate(rows)), ends, self._net(at), found)
        return found

    def descents(self, at: Vector, rows: Sequence[Sequence[np.ndarray]], lr: float) -> np.ndarray:
        check_fit(self._size, at)
        steps = [batch for batches in rows for batch in batches]
        found, last = np.empty((len(rows), self._size), np.float32), _ends(rows)
        cuts = (_ends(steps), last)
        _descents(*self._located(np.concatenate(steps)), cuts, self._net(at), float(lr), found)
        return found

    def slopes(
        self, at: Vector, directions: Sequence[Direction], rows: np.ndarray
    ) -> tuple[float, np.ndarray]:
        check_fit(self._size, at, *directions)
        loss, gradient = self.gradient(at, rows)
        found = np.empty(len(directions))
        _inner_products(gradient, *_seeds(directions), found)
        return loss, found

    def descent(self, x: Vector, lr: float, momentum: float = 0.0) -> CompiledDescent:
        return CompiledDescent(x, lr, momentum)

    def evaluate(self, at: Vector, x: Any, y: Any) -> Metrics:
        """Score the rows x [N, ...] with classes y [N], in blocks of 512."""
        check_fit(self._size, at)
        return scored(
            _flat(x), _shared(as_array(y)), slice(0, len(y)), self._net(at), self._metrics
        )

    def _along(
        self,
        at: Vector,
        directions: Sequence[Direction],
        amounts: tuple[float, ...],
        rows: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return `losses` at each of A amounts, float64 [A, M, P]."""
        check_fit(self._size, at, *directions)
        found = np.empty((len(directions), len(amounts), len(rows)))
        batch, ends, net = self._located(np.concatenate(rows)), _ends(rows), self._net(at)
        count = max(1, _DIRECTION_FLOATS // self._size)
        for first in range(0, len(directions), count):
            some = slice(first, first + count)
            along = (*_seeds(directions[some]), np.array(amounts))
            _losses_along(*batch, ends, net, along, found[some])
        return np.ascontiguousarray(found.transpose(1, 2, 0))

    def _located(self, rows: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Return features [N, F], and the kernels' `batch`: labels [N], and where the rows are
        among them.
        """
        x, y, ids = self._rows.located(rows)
        return _flat(x), (_shared(y), ids)

    def _net(self, at: Vector) -> tuple[Any, ...]:
        """Return the kernels' `net` at these parameters."""
        return (as_array(at), *self._shape)


class CompiledDescent:
    """w <- w - ηv with v <- βv + g, each product and sum rounded once."""

    def __init__(self, x: Vector, lr: float, momentum: float) -> None:
        self._x, self._lr, self._momentum = as_array(x), float(lr), float(momentum)
        self._velocity = np.zeros(len(x) if momentum else 0, np.float32)

    def step(self, gradients: Sequence[Vector]) -> None:
        pieces = [as_array(gradient).reshape(-1) for gradient in gradients]
        gradient = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        _descend(self._x, self._velocity, gradient, self._lr, self._momentum)


def _ends(parts: Sequence[Sequence[object] | np.ndarray]) -> np.ndarray:
    """Return where each part ends in all of them one after the other, int64."""
    return np.cumsum([len(part) for part in parts])


def _flat(x: Any) -> np.ndarray:
    """Features [N, ...] as [N, F] in the same memory."""
    return _shared(as_array(x).reshape(len(x), -1))


def _shared(rows: np.ndarray) -> np.ndarray:
    """Return the same memory as an array that counts as writable: of what is not, kernels would be
    compiled anew.

    It may belong to others (Ray's object store); kernels never write to features and labels.
    """
    return rows if rows.flags.writeable else np.asarray(_Shared(rows))


class _Shared:
    def __init__(self, rows: np.ndarray) -> None:
        place = {**rows.__array_interface__, "data": (rows.ctypes.data, False)}
        self.__array_interface__, self._owner = place, rows


def _seeds(directions: Sequence[Direction]) -> tuple[np.ndarray, int]:
    """Return the directions' seeds, uint64 [P], and their law."""
    return np.array([u.seed for u in directions], np.uint64), LAWS[directions[0].law]
