"""Steps along seeded directions: the one place where a zeroth-order update changes parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from raydpzv.zo import kernels
from raydpzv.zo.apply_seeds import Base, in_pieces
from raydpzv.zo.apply_seeds import replay as subtract
from raydpzv.zo.directions import Direction, Law

_PIECE = 1 << 16
"""Elements whose parameters and velocity (512 KiB) stay in the second cache while many steps are replayed."""


@dataclass(frozen=True)
class Rule:
    """How (seed, scalar) pairs move a model: the law of the directions, the momentum β, and its form.

    v <- βv + g, or, damped, v <- βv + (1-β)g (DeComFL Eq. (8)); w <- w - ηv.
    """

    law: Law = "gaussian"
    momentum: float = 0.0
    damped: bool = False


@dataclass(frozen=True)
class Step:
    """One descent step: g = mean_p Δ_p u_p with seeds uint64 [P] and scalars [P], and its step size η."""

    seeds: Sequence[int] | np.ndarray
    scalars: Sequence[float] | np.ndarray
    lr: float


class Descent:
    """w <- w - η v with v <- βv + mean_p Δ_p u_p (momentum β; without momentum, w <- w - (η/P) Σ_p Δ_p u_p).

    DPZV (journal) Eq. (9), DeComFL Eq. (7) to (9). Each term is applied in order, one product and one sum per
    element, so that whoever applies the same pairs holds the same bits, however many steps are taken in one call.
    x: contiguous float32 [d], changed in place; velocity likewise (None without momentum).
    """

    def __init__(self, x: torch.Tensor, rule: Rule, *, threads: int = 1) -> None:
        self.x, self.rule = x, rule
        self.velocity = torch.zeros_like(x) if rule.momentum else None
        self._threads = threads

    def copy(self) -> Descent:
        """Return a descent that goes on from here on its own."""
        twin = Descent(self.x.clone(), self.rule, threads=self._threads)
        twin.velocity = None if self.velocity is None else self.velocity.clone()
        return twin

    def apply(self, steps: Iterable[Step]) -> None:
        """Apply steps in order."""
        found = [_Terms.of(step, self.rule, self.x.numel()) for step in steps]
        if not found:
            return
        base: Base = "rademacher" if self.rule.law == "rademacher" else "gaussian"
        if self.velocity is None:
            seeds = np.concatenate([terms.seeds for terms in found])
            amounts = np.concatenate([terms.amounts for terms in found])
            subtract(self.x, seeds, amounts, law=base, threads=self._threads)
        elif self.x.device.type == "cpu":
            work = partial(_with_momentum, self.x, self.velocity, found, np.float32(self.rule.momentum), base)
            in_pieces(self.x.numel(), 0, _PIECE, self._threads, _cut_small(work))
        else:
            for terms in found:
                self.velocity.mul_(self.rule.momentum)
                subtract(self.velocity, terms.seeds, terms.amounts, law=base)
                self.x.add_(self.velocity, alpha=-terms.lr)


@dataclass(frozen=True)
class _Terms:
    """What one step takes from each element: amount_p · z_p from x, or without a step size from the velocity."""

    seeds: np.ndarray
    amounts: np.ndarray
    lr: float

    @classmethod
    def of(cls, step: Step, rule: Rule, size: int) -> _Terms:
        scalars = np.asarray(step.scalars, np.float64)
        seeds = np.asarray(step.seeds, np.uint64)
        count = len(scalars)
        amounts = step.lr * scalars / count if not rule.momentum else -scalars / count
        if rule.momentum and rule.damped:
            amounts = amounts * (1 - rule.momentum)
        if rule.law == "sphere":
            factors = [Direction(int(seed), size, "sphere").norm_factor for seed in seeds]
            amounts = amounts * np.array(factors)
        return cls(seeds, amounts, step.lr)


def _with_momentum(
    x: torch.Tensor,
    velocity: torch.Tensor,
    steps: Sequence[_Terms],
    momentum: np.float32,
    base: Base,
    first: int,
    last: int,
) -> None:
    """Take all steps on one piece of the parameters."""
    x_piece, v_piece = x.numpy()[first:last], velocity.numpy()[first:last]
    for terms in steps:
        v_piece *= momentum
        subtract(v_piece, terms.seeds, terms.amounts, start=first, law=base)
        kernels.add_scaled(x_piece, v_piece, np.float32(-terms.lr))


def _cut_small(work: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def body(first: int, last: int) -> None:
        for start in range(first, last, _PIECE):
            work(start, min(start + _PIECE, last))

    return body
