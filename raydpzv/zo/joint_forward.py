"""Forward calls at w + λ u_p for several directions a bᵀ at once, without a copy of a weight
matrix.

With W + λ a bᵀ a linear layer's output is W x + λ a (b·x), an embedding's row W_t + λ a_t b. So
each layer takes one product with its own weights for all directions, the first layer one for all of
them together. Parameters that are no such matrix are moved beside the model: biases, norms,
convolutions.

torch.func maps the module over the directions, so that a module sees a batch of B records and what
it does with its axes is its own affair. Bits are not those of a forward call at moved weights: sums
have another order.
"""

# P directions, B batch

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from raydpzv.zo.apply_seeds import drawn
from raydpzv.zo.directions import Direction

if TYPE_CHECKING:
    from torch import nn

_MOST_ROWS = 1 << 13
"""Records or tokens at once, of all directions together."""
_SMALL = 1 << 14
"""Parameters up to which a moved copy of all of them takes less time."""
_ADAPTED = 8
"""Where all parameters are this many times those that move, time goes into frozen layers, and
copies cost nothing.
"""
_LARGE = 1 << 22
"""Parameters above which directions go one by one: activations of several would take memory, and
save little time.
"""
_MOST_NUMBERS = 1 << 20
"""Numbers beside the model, of all directions together: 4 MiB."""
_trying = threading.Lock()
_TRIED = 0.1
"""How far along a direction a module is tried."""


class Points(NamedTuple):
    """Points w + λ u_p: λ a_p [P, m] and b_p [P, n] by the names of matrices, other parameters as
    they are there.
    """

    products: dict[str, tuple[torch.Tensor, torch.Tensor]]
    moved: dict[str, torch.Tensor]


class JointForward:
    """A module at several points. offsets: parameter name to its place in the flat vector [d],
    `FlatModel.offsets`.
    """

    def __init__(self, module: nn.Module, offsets: Mapping[str, int]) -> None:
        self._module, self._offsets = module, offsets
        self._parameters = dict(module.named_parameters())
        self._multiplied: set[str] = set()
        self._now: Mapping[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._size = sum(self._parameters[name].numel() for name in offsets)
        whole = sum(p.numel() for p in self._parameters.values())
        self._small = self._size <= max(_SMALL, min(_LARGE, whole // _ADAPTED))
        self._together = self._mapped = self._size <= _LARGE
        self._works: bool | None = None

    def usable(self, directions: Sequence[Direction], x: torch.Tensor) -> bool:
        """Return whether it helps: not for small models or adapters, nor if torch cannot map it,
        nor if most is moved.

        x: a batch like those to come; what is tried when first asked is a record of ones, the same
        in every process.
        """
        if directions[0].law != "rank_one" or self._small:
            return False
        if self._works is None:
            self._works = self._tried(directions[0], torch.ones_like(x[:1]))
        return self._works

    def _tried(self, direction: Direction, x: torch.Tensor) -> bool:
        names = {id(p): name for name, p in self._parameters.items() if name in self._offsets}
        for layer in self._module.modules():
            if _multiplies(layer) and (name := names.get(id(layer._parameters.get("weight")))):
                self._multiplied.add(name)
                # before other hooks, which see the output at the point
                layer.register_forward_hook(self._add_product(name), prepend=True, with_kwargs=True)
        if 4 * self._moved_size(direction) > self._size:
            return False
        if self._size > _LARGE:
            return True  # the check of models says whether it calls all its layers
        points = self.points([direction] * 2, _TRIED)
        with _mapping_alone():
            try:
                self.scores(points, x)
            except (RuntimeError, NotImplementedError):
                # a branch on values, or an operator that torch cannot map
                self._together = False
        return self._agrees(self.scores(points, x)[0], direction, x)

    @torch.no_grad()
    def _agrees(self, found: torch.Tensor, direction: Direction, x: torch.Tensor) -> bool:
        """Return whether scores are those at moved weights: a module may read a layer's weights
        without calling it.
        """
        moved = {}
        for name, start in self._offsets.items():
            moved[name] = self._parameters[name].data.clone()
            direction.add_to(moved[name].view(-1), _TRIED, start=start)
        wanted = torch.func.functional_call(self._module, moved, (x,))
        far, size = (wanted - self._module(x)).abs().max(), wanted.abs().max()
        return bool((found - wanted).abs().max() <= 1e-2 * far + 1e-4 * size)

    def block(self, directions: Sequence[Direction]) -> int:
        """Return of how many directions to make the numbers at once."""
        if self._size > _LARGE:
            return 1
        return max(1, _MOST_NUMBERS // (_drawn(directions[0]) + self._moved_size(directions[0])))

    @torch.no_grad()
    def points(self, directions: Sequence[Direction], amount: float) -> Points:
        """Return what w + amount · u_p takes beside w."""
        found, count = Points({}, {}), len(directions)
        numbers = drawn(np.array([u.seed for u in directions], np.uint64), 0, _drawn(directions[0]))
        for name, start in self._offsets.items():
            weights, span = self._parameters[name].data, directions[0].span_at(start)
            first, factor = (
                span.drawn + start - span.start,
                float(np.float32(amount * span.smoothing)),
            )
            last = first + (span.rows + span.columns if span.rows else weights.numel())
            z_Pn = torch.from_numpy(numbers[:, first:last]).to(weights.device)
            if not span.rows:
                found.moved[name] = weights + (z_Pn * factor).view(count, *weights.shape)
                continue
            a_Pm, b_Pn = z_Pn[:, : span.rows] * factor, z_Pn[:, span.rows :].contiguous()
            if name in self._multiplied:
                found.products[name] = a_Pm, b_Pn
            else:
                products = a_Pm.unsqueeze(2) * b_Pn.unsqueeze(1)
                found.moved[name] = weights + products.view(count, *weights.shape)
        return found

    @torch.no_grad()
    def scores(self, points: Points, x: torch.Tensor) -> torch.Tensor:
        """Return the module's outputs for a batch x [B, ...] at every point, [P, B, ...].

        Bits may follow the points that are taken together, which depend on the model, on B and on
        P.
        """

        def at_point(products: Any, moved: Any) -> torch.Tensor:
            self._now = products
            try:
                return cast(torch.Tensor, torch.func.functional_call(self._module, moved, (x,)))
            finally:
                self._now = {}

        count = len(next(iter(points.products.values()))[0])
        rows = len(x) if x.is_floating_point() else x.numel()  # of token ids each is a row
        step = max(1, _MOST_ROWS // max(1, rows)) if self._together else 1
        self._mapped = step > 1
        if self._mapped:
            return torch.func.vmap(at_point, chunk_size=step if step < count else None)(*points)
        products = {name: list(zip(*each, strict=True)) for name, each in points.products.items()}
        return torch.stack(
            [
                at_point(
                    {name: each[p] for name, each in products.items()},
                    {name: each[p] for name, each in points.moved.items()},
                )
                for p in range(count)
            ]
        )

    def _moved_size(self, direction: Direction) -> int:
        """Return how many elements are moved beside the model."""
        shapes = {name: self._parameters[name].shape for name in self._offsets}
        return sum(
            math.prod(shape)
            for name, shape in shapes.items()
            if name not in self._multiplied or not direction.span_at(self._offsets[name]).rows
        )

    def _add_product(self, name: str) -> Any:
        def hook(
            layer: nn.Module, inputs: Any, named: Any, output: torch.Tensor
        ) -> torch.Tensor | None:
            if name not in self._now:
                return None
            x, (a, b) = (inputs[0] if inputs else named["input"]), self._now[name]
            factors, along = (x @ b, a) if isinstance(layer, torch.nn.Linear) else (a[x], b)
            if self._mapped:
                return torch.addcmul(output, factors.unsqueeze(-1), along)
            return output.addcmul_(factors.unsqueeze(-1), along)  # nobody else holds it yet

        return hook


def _multiplies(layer: nn.Module) -> bool:
    """Return whether a layer multiplies by its weights, or reads rows of them, and does nothing
    else with them.
    """
    return type(layer) is torch.nn.Linear or (
        type(layer) is torch.nn.Embedding and layer.max_norm is None
    )


def _drawn(direction: Direction) -> int:
    """Return how many of the stream's numbers a direction takes."""
    last = direction.spans[-1]
    return last.drawn + (last.rows + last.columns if last.rows else last.stop - last.start)


@contextmanager
def _mapping_alone() -> Iterator[None]:
    """Let operators that torch.func would compute point by point, with a warning, raise
    RuntimeError.
    """
    functorch: Any = torch._C._functorch  # nothing public says it
    with _trying:
        before = functorch._is_vmap_fallback_enabled()
        functorch._set_vmap_fallback_enabled(False)
        try:
            yield
        finally:
            functorch._set_vmap_fallback_enabled(before)
