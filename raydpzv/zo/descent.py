"""Steps along seeded directions: the one place where a zeroth-order update changes parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from raydpzv.zo import kernel
from raydpzv.zo.directions import Direction
from raydpzv.zo.replay import replay


class Descent:
    """w <- w - η v with v <- βv + mean_p Δ_p u_p (momentum β; without momentum, w <- w - (η/P) Σ_p Δ_p u_p).

    DPZV (journal) Eq. (9). Each term is applied in order, one product and one sum per element, so that whoever
    applies the same (seed, scalar) pairs holds the same bits.
    """

    def __init__(self, x: torch.Tensor, lr: float, momentum: float = 0.0) -> None:
        self._x = x
        self._lr, self._momentum = lr, momentum
        self._velocity = torch.zeros_like(x) if momentum else None

    def step(self, terms: Sequence[tuple[Direction, float]]) -> None:
        """Apply the (direction, scalar) pairs of one update."""
        if self._velocity is None:
            _subtract(self._x, [(u, self._lr * scalar / len(terms)) for u, scalar in terms])
            return
        self._velocity.mul_(self._momentum)
        _subtract(self._velocity, [(u, -scalar / len(terms)) for u, scalar in terms])
        if self._x.device.type == "cpu":
            kernel.add_scaled(self._x.numpy(), self._velocity.numpy(), np.float32(-self._lr))
        else:
            self._x.add_(self._velocity, alpha=-self._lr)


def _subtract(x: torch.Tensor, terms: Sequence[tuple[Direction, float]]) -> None:
    """x <- x - Σ amount · u, term by term in order; the terms of one generator in one pass over x."""
    for base, of_one in groupby(terms, key=lambda term: term[0].base):
        run = list(of_one)
        replay(x, [u.seed for u, _ in run], [amount * u.norm_factor for u, amount in run], law=base)
