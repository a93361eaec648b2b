"""Forward calls at w + λ u_p for several directions a bᵀ at once, without a copy of a weight matrix.

With W + λ a bᵀ a linear layer's output is W x + λ a (b·x), an embedding's row W_t + λ a_t b. So each layer takes one
product with its own weights for all directions, the first layer one for all of them together. Parameters that are no
such matrix are moved beside the model: biases, norms, convolutions.

torch.func maps the module over the directions, so that a module sees a batch of B records and what it does with its
axes is its own affair. Bits are not those of a forward call at moved weights: sums have another order.
"""

# P directions, B batch

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from raydpzv.zo.directions import Direction, products_at

if TYPE_CHECKING:
    from torch import nn

_MOST_ROWS = 1 << 13
"""Records at once, of all directions together."""
_SMALL = 1 << 14
"""Parameters up to which a moved copy of all of them takes less time."""
_LARGE = 1 << 22
"""Parameters above which directions go one by one: activations of several would take memory, and save little time."""
_MOST_MOVED = 1 << 20
"""Elements that are moved beside the model, of all directions together: 4 MiB."""
_TRIED = 0.1
"""How far along a direction a module is tried."""


class Points(NamedTuple):
    """Points w + λ u_p: λ a_p [P, m] and b_p [P, n] by the names of matrices, other parameters as they are there."""

    products: dict[str, tuple[torch.Tensor, torch.Tensor]]
    moved: dict[str, torch.Tensor]


class JointForward:
    """A module at several points. offsets: parameter name to its place in the flat vector [d], `FlatModel.offsets`."""

    def __init__(self, module: nn.Module, offsets: Mapping[str, int]) -> None:
        self._module, self._offsets = module, offsets
        self._parameters = dict(module.named_parameters())
        self._multiplied: set[str] = set()
        self._now: Mapping[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._size = sum(self._parameters[name].numel() for name in offsets)
        self._works: bool | None = None

    def usable(self, directions: Sequence[Direction], x: torch.Tensor) -> bool:
        """Return whether it helps: not for small models, nor where torch cannot map the module or most is moved.

        x: a batch like those to come; what is tried when first asked is a record of ones, the same in every process.
        """
        if directions[0].law != "rank_one" or self._size <= _SMALL:
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
        try:
            found = self.scores(self.points([direction] * 2, _TRIED), x)[0]
        except (RuntimeError, NotImplementedError):
            return False  # a branch on values, or an operator that torch cannot map, such as an LSTM
        # the check of models tells of large ones
        return self._size > _LARGE or self._agrees(found, direction, x)

    @torch.no_grad()
    def _agrees(self, found: torch.Tensor, direction: Direction, x: torch.Tensor) -> bool:
        """Return whether scores are those at moved weights: a module may read a layer's weights without calling it."""
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
        return max(1, _MOST_MOVED // max(1, self._moved_size(directions[0])))

    @torch.no_grad()
    def points(self, directions: Sequence[Direction], amount: float) -> Points:
        """Return what w + amount · u_p takes beside w."""
        found = Points({}, {})
        for name, start in self._offsets.items():
            weights = self._parameters[name].data
            product = products_at(directions, start, amount) if name in self._multiplied else None
            if product is not None:
                a_Pm, b_Pn = (torch.from_numpy(each).to(weights.device) for each in product)
                found.products[name] = a_Pm, b_Pn
                continue
            moved = weights.new_empty(len(directions), *weights.shape)
            for point, direction in zip(moved, directions, strict=True):
                direction.add_to(weights.view(-1), amount, start=start, out=point.view(-1))
            found.moved[name] = moved
        return found

    @torch.no_grad()
    def scores(self, points: Points, x: torch.Tensor) -> torch.Tensor:
        """Return the module's outputs for a batch x [B, ...] at every point, [P, B, ...].

        Bits may follow the points that are taken together, which depend on the model, on B and on P.
        """

        def at_point(products: Any, moved: Any) -> torch.Tensor:
            self._now = products
            try:
                found: torch.Tensor = torch.func.functional_call(self._module, moved, (x,))
                return found
            finally:
                self._now = {}

        step = 1 if self._size > _LARGE else max(1, _MOST_ROWS // max(1, len(x)))
        several = step < len(next(iter(points.products.values()))[0])
        scores: torch.Tensor = torch.func.vmap(at_point, chunk_size=step if several else None)(*points)
        return scores

    def _moved_size(self, direction: Direction) -> int:
        """Return how many elements are moved beside the model."""
        shapes = {name: self._parameters[name].shape for name in self._offsets}
        return sum(
            math.prod(shape)
            for name, shape in shapes.items()
            if name not in self._multiplied or not direction.span_at(self._offsets[name]).rows
        )

    def _add_product(self, name: str) -> Any:
        def hook(layer: nn.Module, inputs: Any, named: Any, output: torch.Tensor) -> torch.Tensor | None:
            if name not in self._now:
                return None
            x, (a, b) = (inputs[0] if inputs else named["input"]), self._now[name]
            if isinstance(layer, torch.nn.Linear):
                return torch.addcmul(output, (x @ b).unsqueeze(-1), a)
            return torch.addcmul(output, a[x].unsqueeze(-1), b)

        return hook


def _multiplies(layer: nn.Module) -> bool:
    """Return whether a layer multiplies by its weights, or reads rows of them, and does nothing else with them."""
    return type(layer) is torch.nn.Linear or (type(layer) is torch.nn.Embedding and layer.max_norm is None)
