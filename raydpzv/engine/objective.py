"""The model that all clients of a horizontal method train, under any engine: an `Objective`.

The training objective is the mean loss at any flat parameter vector: of classes cross-entropy, of
survival times Cox's partial likelihood, over a batch's records (`raydpzv.models.losses`).
Parameters are vectors of the objective's own kind (arrays under compiled kernels, tensors under
torch: `vector`), which the caller keeps and an objective never writes to, but for the one that it
is given to descend on.
"""

# M clients, N rows, B batch, n batches or sequences of them, P directions, d parameters

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from raydpzv.engine.split_model import Metrics
from raydpzv.errors import InputError
from raydpzv.zo.directions import Direction
from raydpzv.zo.spans import Shapes
from raydpzv.zo.vectors import Vector, is_vector


class FirstOrderDescent(Protocol):
    """Steps w <- w - ηv with v <- βv + g, on parameters that are changed in place."""

    def step(self, gradients: Sequence[Vector]) -> None:
        """Take one step along the gradient, whole or in the pieces of the flat vector."""
        ...


class Objective(Protocol):
    """Losses, gradients and scores of one model on one table. One thread at a time may use it."""

    @property
    def size(self) -> int:
        """Number of parameters, d."""
        ...

    @property
    def shapes(self) -> Shapes:
        """Their names and shapes, in order."""
        ...

    def vector(self, values: Vector) -> Vector:
        """Return a copy of these numbers, float32 [d], array or vector, as the objective computes
        with them.
        """
        ...

    def twin(self) -> Objective:
        """Return an objective on the same rows for another thread."""
        ...

    def loss(self, at: Vector, rows: np.ndarray) -> float:
        """Return the mean loss on `rows` (whole numbers [B]); nan or inf where the scores are."""
        ...

    def losses_at(self, at: Vector, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return what `loss` does on each client's rows, float64 [M]."""
        ...

    def losses(
        self, at: Vector, directions: Sequence[Direction], amount: float, rows: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return the mean loss at `at + amount · u_p` on each client's rows, float64 [M, P].

        A client's losses have the same bits whichever other clients are here; with one direction
        they are those of `loss` at the perturbed vector, but under torch along a law of products
        (`raydpzv.zo.joint_forward`).
        """
        ...

    def central_losses(
        self, at: Vector, directions: Sequence[Direction], radius: float, rows: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what `losses` does at `radius` and at `-radius`."""
        ...

    def gradient(self, at: Vector, rows: np.ndarray) -> tuple[float, Vector]:
        """Return the mean loss on `rows` and its gradient, float32 [d]."""
        ...

    def gradients(self, at: Vector, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return the gradient of the mean loss on each batch, float32 [n, d]."""
        ...

    def descents(self, at: Vector, rows: Sequence[Sequence[np.ndarray]], lr: float) -> np.ndarray:
        """Return what SGD from `at` changes by each sequence of batches, float32 [n, d].

        As with `gradients`, the bits of a row follow from its own batches, whichever others are
        here.
        """
        ...

    def slopes(
        self, at: Vector, directions: Sequence[Direction], rows: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the mean loss on `rows` and <∇f, u_p> of each direction, float64 [P]."""
        ...

    def descent(self, x: Vector, lr: float, momentum: float = 0.0) -> FirstOrderDescent:
        """Return a descent that changes x, float32 [d], in place."""
        ...

    def evaluate(self, at: Vector, x: Any, y: Any) -> Metrics:
        """Score the rows x [N, ...] with classes y [N], or times and events y [N, 2], of the
        objective's kind.
        """
        ...


def check_fit(size: int, at: Vector, *directions: Direction) -> None:
    """Refuse what compiled kernels would take at its word: parameters and directions of another
    model.
    """
    if not is_vector(at) or len(at) != size:
        raise InputError(
            f"the model wants {size} contiguous float32 parameters, but got {at.dtype} of shape "
            f"{tuple(at.shape)}: give the vector that belongs to it"
        )
    if wrong := [u.size for u in directions if u.size != size]:
        raise InputError(
            f"the model has {size} parameters, but a direction has {wrong[0]}: make it of the "
            "model's size"
        )
