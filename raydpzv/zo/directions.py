"""Random directions u with E[u uᵀ] = I, addressed by a 64-bit seed.

gaussian   N(0, I_d)
sphere     uniform on the sphere of radius √d, normalised over ALL parameters of the party (DPZV, Section IV-A)
rademacher independent signs: the least variance of a two-point estimate, and many times faster to make
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from raydpzv.lazy_import import torch
from raydpzv.zo import device, kernels
from raydpzv.zo.apply_seeds import Base

Law = Literal["gaussian", "sphere", "rademacher"]
LAWS: tuple[Law, ...] = ("gaussian", "sphere", "rademacher")


@dataclass(frozen=True)
class Direction:
    """One direction over a party's `size` parameters. Nothing of its size is ever stored."""

    seed: int
    size: int
    law: Law = "gaussian"

    @property
    def base(self) -> Base:
        """The generator's law, before `norm_factor`."""
        return "rademacher" if self.law == "rademacher" else "gaussian"

    @cached_property
    def norm_factor(self) -> float:
        """The factor of the generator's elements: 1, or √d / ‖z‖ on the sphere."""
        if self.law != "sphere":
            return 1.0
        return _on_sphere(self.seed, self.size)

    def add_to(
        self, x: torch.Tensor, amount: float, *, start: int = 0, out: torch.Tensor | None = None
    ) -> None:
        """Write x + amount · u[start : start + n] to `out` (default: x itself).

        x, out: contiguous float32 [n]. The coefficient is rounded to float32 once; each element then takes one
        product and one sum, so that every caller that adds the same amount gets the same bits.
        """
        out = x if out is None else out
        coefficient = np.float32(amount * self.norm_factor)
        if x.device.type == "cpu":
            self._add(out.numpy(), x.numpy(), coefficient, start)
            return
        seeds, minus = np.array([self.seed], np.uint64), np.array([-coefficient], np.float32)
        device.subtract(out, x, seeds, minus, start, self.base)

    def values(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return u[start:stop] as float32."""
        stop = self.size if stop is None else stop
        z = np.zeros(stop - start, np.float32)
        self._add(z, z, np.float32(1), start)
        return z * np.float32(self.norm_factor)

    def _add(self, out: np.ndarray, x: np.ndarray, coefficient: np.float32, start: int) -> None:
        add = kernels.add_signs if self.base == "rademacher" else kernels.add_direction
        add(out, x, np.uint64(self.seed), coefficient, start)


@lru_cache(maxsize=1 << 10)
def _on_sphere(seed: int, size: int) -> float:
    """Return √d / ‖z‖, remembered from a party's upload to its step."""
    return math.sqrt(size / kernels.squared_norm(np.uint64(seed), size))
