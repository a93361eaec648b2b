"""Random directions u with E[u uᵀ] = I, addressed by a 64-bit seed.

gaussian   N(0, I_d)
sphere     uniform on the sphere of radius √d, normalised over ALL parameters of the party (DPZV, Section IV-A)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from raydpzv.zo import kernel

Law = Literal["gaussian", "sphere"]
LAWS: tuple[Law, ...] = ("gaussian", "sphere")
_COPY = 1 << 22
"""Elements made at a time on the CPU for parameters that live on another device: 16 MiB."""


@dataclass(frozen=True)
class Direction:
    """One direction over a party's `size` parameters. Nothing of its size is ever stored."""

    seed: int
    size: int
    law: Law = "gaussian"

    @cached_property
    def norm_factor(self) -> float:
        """What the standard normals are multiplied by: 1, or √d / ‖z‖ on the sphere."""
        if self.law == "gaussian":
            return 1.0
        return math.sqrt(self.size / kernel.squared_norm(np.uint64(self.seed), self.size))

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
            kernel.add_direction(out.numpy(), x.numpy(), np.uint64(self.seed), coefficient, start)
            return
        for first in range(0, x.numel(), _COPY):
            last = min(first + _COPY, x.numel())
            z = torch.from_numpy(self._normals(start + first, start + last)).to(x.device)
            torch.add(x[first:last], z.mul_(float(coefficient)), out=out[first:last])

    def values(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return u[start:stop] as float32."""
        stop = self.size if stop is None else stop
        return self._normals(start, stop) * np.float32(self.norm_factor)

    def _normals(self, start: int, stop: int) -> np.ndarray:
        z = np.zeros(stop - start, np.float32)
        kernel.add_direction(z, z, np.uint64(self.seed), np.float32(1), start)
        return z
