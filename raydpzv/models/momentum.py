"""Gradient descent with momentum on a flat parameter vector.

Written out because importing `torch.optim` pulls in torch's compiler: 1.4 CPU seconds and 70 MB in every actor.
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
        """Take one step, `scale` times as long; the gradients in the order of the flat vector's parameters."""
        gradient = gradients[0] if len(gradients) == 1 else torch.cat([g.reshape(-1) for g in gradients])
        if self._velocity is not None:
            gradient = self._velocity.mul_(self._momentum).add_(gradient)
        self._x.add_(gradient, alpha=-self.lr * scale)
