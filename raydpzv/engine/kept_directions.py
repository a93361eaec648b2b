"""The directions of a party's last upload, kept until it takes the step along them: each is made
once an update.
"""

# P directions, d parameters, n elements

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydpzv.engine.dense import LAWS
from raydpzv.lazy_import import torch
from raydpzv.zo.directions import Direction
from raydpzv.zo.kernels import Kernel
from raydpzv.zo.update import Descent, Rule, Steps

KEPT_FLOATS = 1 << 23
"""Elements of an upload's directions up to which compiled bottoms keep them for the step: 32 MiB a
client.
"""
TORCH_FLOATS = 1_000_000
"""The same under torch: 4 MB.

CPU time of an update that makes directions anew, by one that keeps them; one thread, batches of 64,
dense layers: 1.34 at 17,808 parameters, 1.17 at 109,072, 1.15 at 319,516, 1.08 at 872,464, 1.03 at
1,267,728, .96 at 1,834,516, .95 at 3,707,472. Larger ones leave the cache, and reading one takes as
long as making it.
"""

_make = Kernel("make_direction", "raydpzv.engine.dense_kernel")
_add_along = Kernel("add_along", "raydpzv.engine.dense_kernel")
_step_along = Kernel("step_along", "raydpzv.engine.dense_kernel")


class KeptDirections:
    """The directions u of a party's last upload before their factors: float32 [P, d] and float64
    [P], by their seeds.

    Of more than `KEPT_FLOATS` elements none is kept: there is room for one at a time.
    """

    def __init__(self, size: int) -> None:
        self._size, self._seeds = size, b""
        self.z, self.factors = np.empty((0, size), np.float32), np.empty(0)

    def made(self, seeds: np.ndarray) -> bool:
        """Return whether these are the ones that are kept."""
        return len(self.z) == len(seeds) and seeds.tobytes() == self._seeds

    def room(self, seeds: np.ndarray) -> np.ndarray:
        """Return where to make these, [P or 1, d]; `factors` has room for theirs."""
        count = len(seeds)
        if len(self.factors) != count:
            keeps = 0 < count * self._size <= KEPT_FLOATS
            self.z, self.factors = (
                np.empty((count if keeps else 0, self._size), np.float32),
                np.empty(count),
            )
        self._seeds = seeds.tobytes()
        return self.z if len(self.z) else np.empty((1, self._size), np.float32)


class TorchDirections:
    """The directions of a party whose models torch computes, and its steps along them, to the bits
    of `Descent`.

    Those of plain descent on a CPU are kept, up to `TORCH_FLOATS` elements; others are made
    whenever they are needed.
    """

    def __init__(self, descent: Descent) -> None:
        rule = descent.rule
        self._descent, self._kept = descent, KeptDirections(len(descent.x))
        plain = rule.law in LAWS and rule == Rule(rule.law, rule.momentum)
        self._plain = plain and descent.x.device.type == "cpu"

    def of(self, seeds: np.ndarray) -> list[Direction]:
        """Return the directions of an upload's seeds, uint64 [P]."""
        kept, directions = self._kept, [self._descent.direction(int(seed)) for seed in seeds]
        if not self._plain or not 0 < len(seeds) * directions[0].size <= TORCH_FLOATS:
            return directions
        if not kept.made(seeds):
            room = kept.room(seeds)
            for p, seed in enumerate(seeds):
                kept.factors[p] = _make(room[p], seed, LAWS[directions[p].law])
        return _kept(directions, kept.z, kept.factors)

    def descend(self, steps: Steps) -> None:
        """Take steps in order."""
        kept, descent = self._kept, self._descent
        if len(steps) != 1 or not kept.made(steps.seeds[0]):
            descent.apply(steps)
            return
        velocity = descent.kept[0].numpy() if descent.kept else np.empty(0, np.float32)
        step = (steps.scalars[0], float(steps.lrs[0]))
        _step_along(
            descent.x.numpy(), velocity, (kept.z, kept.factors), step, float(descent.rule.momentum)
        )


def _kept(
    directions: Sequence[Direction], z_Pd: np.ndarray, factors: np.ndarray
) -> list[Direction]:
    made = zip(directions, z_Pd, factors.tolist(), strict=True)
    return [_Kept(u.seed, u.size, u.law, z=z, factor=factor) for u, z, factor in made]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Kept(Direction):
    """A direction with its elements z before its factor, float32 [d]."""

    z: np.ndarray
    factor: float

    def add_to(
        self, x: torch.Tensor, amount: float, *, start: int = 0, out: torch.Tensor | None = None
    ) -> None:
        out = x if out is None else out
        coefficient = np.float32(amount * self.factor)
        _add_along(out.numpy(), x.numpy(), self.z[start : start + x.numel()], coefficient)
