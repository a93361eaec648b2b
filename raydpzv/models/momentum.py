"""Gradient descent with momentum on a flat parameter vector.

Written out because importing `torch.optim` pulls in torch's compiler: 1.4 CPU seconds and 70 MB in
every actor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class MomentumDescent:
    """w <- w - η v with v <- βv + g; lr: η, which may be changed between steps."""

    def __init__(self, x: torch.Tensor, lr: float, momentum: float = 0.0) -> None:
        self._x, self.lr, self._momentum = x, lr, momentum
        self._velocity = torch.zeros_like(x) if momentum else None

    @property
    def kept(self) -> list[torch.Tensor]:
        """The vectors kept beside the parameters: [v] with momentum."""
        return [] if self._velocity is None else [self._velocity]

    def step(self, gradients: Sequence[torch.Tensor], scale: float = 1.0) -> None:
        """Take one step, `scale` times as long; the gradients in the order of the flat vector's
        parameters.
        """
        if self._velocity is not None:
            self._velocity.mul_(self._momentum)
            _add(self._velocity, gradients, 1.0)
            gradients = [self._velocity]
        _add(self._x, gradients, -self.lr * scale)


def _add(x: torch.Tensor, pieces: Sequence[torch.Tensor], alpha: float) -> None:
    """x += alpha · (pieces, one after the other), without a copy of them all; on a GPU in few
    launches.
    """
    parts = x.split([piece.numel() for piece in pieces])
    torch._foreach_add_(parts, [piece.reshape(-1) for piece in pieces], alpha=alpha)
