"""Random directions u with E[u uᵀ] = I, addressed by a 64-bit seed.

gaussian   N(0, I_d)
sphere     uniform on the sphere of radius √d, normalised over ALL parameters of the party (DPZV,
Section IV-A)
rademacher independent signs: the least variance of a two-point estimate, and many times faster to
make rank_one   a bᵀ for each weight matrix, a and b normal, else N(0, 1): no matrix of normals is
ever made (`zo.spans`)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal

import numpy as np

from raydpzv.errors import InputError
from raydpzv.lazy_import import torch
from raydpzv.zo import device, kernels
from raydpzv.zo.apply_seeds import Base, replay_products
from raydpzv.zo.spans import Span, overlaps
from raydpzv.zo.vectors import Vector

Law = Literal["gaussian", "sphere", "rademacher", "rank_one"]
LAWS: tuple[Law, ...] = ("gaussian", "sphere", "rademacher")
"""The laws that need no shapes of parameters."""


_WHOLE = Span(0, 0, 0)
"""One law for all elements, of which there may be any number."""


@dataclass(frozen=True)
class Direction:
    """One direction over a party's `size` parameters. Nothing of its size is ever stored.

    spans: what it is on each parameter (`raydpzv.zo.spans`), where the law is rank_one or groups
    have smoothing radii of their own, which are part of it; (): one law for all elements.
    """

    seed: int
    size: int
    law: Law = "gaussian"
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        if self.law == "rank_one" and not self.spans:
            raise InputError(
                'the law "rank_one" needs the shapes of the parameters: give spans_of(law, groups, '
                "shapes)"
            )

    @property
    def base(self) -> Base:
        """The generator's law, before `norm_factor`."""
        return base_of(self.law)

    @cached_property
    def norm_factor(self) -> float:
        """The factor of the generator's elements: 1, or √d / ‖z‖ on the sphere."""
        return self.factor_for(None)

    def factor_for(self, x: Vector | None) -> float:
        """Return `norm_factor`, made where the parameters x live; x: float32 of any size."""
        if self.law != "sphere":
            return 1.0
        return _on_sphere(
            self.seed, self.size, "" if x is None or not device.makes(x) else str(x.device)
        )

    def add_to(
        self, x: torch.Tensor, amount: float, *, start: int = 0, out: torch.Tensor | None = None
    ) -> None:
        """Write x + amount · u[start : start + n] to `out` (default: x itself).

        x, out: contiguous float32 [n]. The coefficient is rounded to float32 once; each element
        then takes one product (of a matrix a bᵀ two) and one sum, so that every caller that adds
        the same amount gets the same bits.
        """
        out, here, factor = x if out is None else out, x.device.type == "cpu", self.factor_for(x)
        for span, first, last in self._spans(start, len(x)):
            coefficient = np.float32(amount * factor * span.smoothing)
            place = start + first - span.start
            to, of = out[first:last], x[first:last]
            if span.rows:
                to.copy_(of)  # nothing where they are one
                replay_products(to, self._seed, [float(-coefficient)], span, start=place)
            elif here:
                self._add(to.numpy(), of.numpy(), coefficient, span.drawn + place)
            else:
                minus = np.array([-coefficient], np.float32)
                device.subtract(to, of, self._seed, minus, span.drawn + place, self.base)

    def add_both_ways(
        self, x: torch.Tensor, amount: float, plus: torch.Tensor, minus: torch.Tensor
    ) -> None:
        """Write x + amount · u to `plus` and x - amount · u to `minus`, float32 [d], to the bits of
        `add_to`.
        """
        here = x.device.type == "cpu"
        if self.spans or self.base != "gaussian" or not (here or device.makes(x)):
            self.add_to(x, amount, out=plus)
            self.add_to(x, -amount, out=minus)
            return
        coefficient, seed = np.float32(amount * self.factor_for(x)), np.uint64(self.seed)
        if here:
            kernels.add_both_ways(plus.numpy(), minus.numpy(), x.numpy(), seed, coefficient)
        else:
            device.triton().add_both_ways(plus, minus, x, seed, float(coefficient))

    def values(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return u[start:stop] as float32."""
        z = np.zeros((self.size if stop is None else stop) - start, np.float32)
        for span, first, last in self._spans(start, len(z)):
            place = start + first - span.start
            if span.rows:
                replay_products(z[first:last], self._seed, [-1.0], span, start=place)
            else:
                self._add(z[first:last], z[first:last], np.float32(1), span.drawn + place)
            z[first:last] *= np.float32(self.norm_factor * span.smoothing)
        return z

    def span_at(self, start: int) -> Span:
        """Return the span of an element."""
        return next(self._spans(start, 1))[0]

    @property
    def _seed(self) -> np.ndarray:
        return np.array([self.seed], np.uint64)

    def _spans(self, start: int, count: int) -> Iterator[tuple[Span, int, int]]:
        return (
            overlaps(self.spans, start, start + count)
            if self.spans
            else iter(((_WHOLE, 0, count),))
        )

    def _add(self, out: np.ndarray, x: np.ndarray, coefficient: np.float32, start: int) -> None:
        add = kernels.add_signs if self.base == "rademacher" else kernels.add_direction
        add(out, x, np.uint64(self.seed), coefficient, start)


def base_of(law: Law) -> Base:
    """Return what the generator makes for a law."""
    return "rademacher" if law == "rademacher" else "gaussian"


@lru_cache(maxsize=1 << 10)
def _on_sphere(seed: int, size: int, where: str) -> float:
    """Return √d / ‖z‖, remembered from a party's upload to its step; where: the accelerator that
    makes z, or "".
    """
    make = partial(device.triton().squared_norm, where) if where else kernels.squared_norm
    return math.sqrt(size / make(np.uint64(seed), size))
