"""Evaluate a model at w + amount · u without touching w, and the slope that two such values give.

In place (+λ, -2λ, +λ) drifts: after 6 perturbations 76 % of float32 parameters have changed. Here
each module that owns parameters gets perturbed copies for the time of its own forward call, in one
buffer as large as the largest such module (plus the owners it is nested in). Of an embedding only
the rows that the batch reads are copied. A large direction is made again from its seed, so neither
w nor u is ever copied whole. The parameters of a small model are perturbed all at once, in a buffer
as large as they are: the same bits, without a call for each parameter of each forward call, which
takes a sixth of an update of a transformer with 101,008 parameters. A model with an embedding is
small up to 2^14 elements, so that rows that no batch reads are not perturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from raydpzv.errors import InputError
from raydpzv.zo.directions import Direction

if TYPE_CHECKING:
    from torch import nn

_SMALL = 1 << 19
"""Elements up to which a model is small: 2 MiB beside a process of a hundred MB."""
_SMALL_ON_GPU = 1 << 24
"""The same on an accelerator, 64 MiB: there a launch for each parameter costs more than the pass
over all of them.
"""
_SMALL_WITH_ROWS = 1 << 14
"""The same of a model of whose embedding a batch reads some rows."""


def perturbation(
    module: nn.Module, flat: torch.Tensor, offsets: Mapping[str, int]
) -> WholePerturbation | LayerwisePerturbation:
    """Return what perturbs a module whose parameters are views of `flat`: those of a small one all
    at once.
    """
    most = _SMALL if flat.device.type == "cpu" else _SMALL_ON_GPU
    most = _SMALL_WITH_ROWS if any(map(_by_row, module.modules())) else most
    if 0 < flat.numel() <= most:
        return WholePerturbation(module, flat, offsets)
    return LayerwisePerturbation(module, offsets)


class WholePerturbation:
    """A perturbed copy of the flat parameter vector [d], which a module's parameters view while
    `at(...)` is open.
    """

    def __init__(self, module: nn.Module, flat: torch.Tensor, offsets: Mapping[str, int]) -> None:
        self._flat, self._moved = flat, torch.empty_like(flat)
        self._views = [
            (p, p.data, self._moved[offsets[name] : offsets[name] + p.numel()].view(p.shape))
            for name, p in module.named_parameters()
            if p.requires_grad
        ]

    @contextmanager
    def at(self, direction: Direction, amount: float) -> Iterator[None]:
        """Forward calls inside see w + amount · u."""
        direction.add_to(self._flat, amount, out=self._moved)
        try:
            for parameter, _, moved in self._views:
                parameter.data = moved
            yield
        finally:
            for parameter, original, _ in self._views:
                parameter.data = original


class LayerwisePerturbation:
    """Hooks on a module's parameter owners that swap in perturbed weights while `at(...)` is open.

    offsets: parameter name to its place in the flat parameter vector (`FlatModel.offsets`).
    """

    def __init__(self, module: nn.Module, offsets: Mapping[str, int]) -> None:
        place = {id(p): offsets[name] for name, p in module.named_parameters() if p.requires_grad}
        if not place:
            raise InputError(
                "a model without parameters cannot be perturbed: give it at least one layer"
            )
        self._owned = {
            name: [(p, place[id(p)]) for p in found] for name, found in owners(module) if found
        }
        first = next(p for p in module.parameters() if p.requires_grad)
        self._buffer = torch.empty(_deepest(module), dtype=first.dtype, device=first.device)
        self._used = 0
        self._saved: list[tuple[nn.Parameter, torch.Tensor, int]] = []
        self._visited: set[str] = set()
        self._point: tuple[Direction, float] | None = None
        for name, owner in module.named_modules():
            if name in self._owned:
                # first of all: a weight norm of the layer's own hook is then of the perturbed
                # weights
                owner.register_forward_pre_hook(self._enter(name), prepend=True)
                owner.register_forward_hook(self._leave(name))

    @contextmanager
    def at(self, direction: Direction, amount: float) -> Iterator[None]:
        """Forward calls inside see w + amount · u; a layer whose forward was never called is an
        error.
        """
        self._point = (direction, amount)
        self._visited.clear()
        try:
            yield
        finally:
            self._point = None
            self._used = 0
            for parameter, original, _ in reversed(self._saved):
                parameter.data = original
            self._saved.clear()
        if missed := sorted(self._owned.keys() - self._visited):
            raise InputError(
                f"the forward pass never called {', '.join(map(repr, missed))}, so their "
                "parameters were not perturbed: call sub-modules instead of reading their weights"
            )

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> Any:
            if self._point is None:
                return None
            direction, amount = self._point
            self._visited.add(name)
            for parameter, start in self._owned[name]:
                original, count = parameter.data, parameter.numel()
                if any(
                    parameter is moved for moved, _, _ in self._saved
                ):  # tied to one of an outer module
                    self._saved.append((parameter, original, 0))
                    continue
                if _by_row(module) and inputs and (read := _Rows.of(module, inputs[0])):
                    self._saved.append((parameter, original, 0))
                    parameter.data = read.moved(original, start, *self._point)
                    return read.places, *inputs[1:]
                copy = self._buffer[self._used : self._used + count]
                if copy.numel() < count and _by_row(module):  # ids that came by name
                    copy = original.new_empty(count)
                if copy.numel() < count:  # the compiled kernel would write past the buffer's end
                    raise InputError(
                        f"{name!r} was called from a module that does not contain it, which the "
                        "perturbation buffer has no room for: register it inside its caller"
                    )
                direction.add_to(original.view(-1), amount, start=start, out=copy)
                self._saved.append((parameter, original, count))
                self._used += count
                parameter.data = copy.view(original.shape)
            return None

        return hook

    def _leave(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self._point is None:
                return
            for _ in self._owned[name]:
                parameter, original, count = self._saved.pop()
                self._used -= count
                parameter.data = original

        return hook


@dataclass(frozen=True)
class _Rows:
    """The rows of an embedding that a batch reads: their ids, sorted, and each token's place among
    them.

    many: rows of the small table; at least as many as the padding row's number asks for.
    """

    ids: list[int]
    places: torch.Tensor
    many: int

    @classmethod
    def of(cls, embedding: nn.Module, tokens: torch.Tensor) -> _Rows | None:
        """Return the rows; None for tokens that torch refuses."""
        found, places = tokens.unique(return_inverse=True)
        ids = found.tolist()
        if ids and not 0 <= ids[0] <= ids[-1] < embedding.num_embeddings:
            return None
        padding = embedding.padding_idx
        return cls(ids, places, max(len(ids), 1 if padding is None else int(padding) + 1))  # type: ignore[arg-type]

    def moved(
        self, table: torch.Tensor, start: int, direction: Direction, amount: float
    ) -> torch.Tensor:
        """Return these rows of w + amount · u, where the table [N, W] is at w[start:]."""
        moved = table.new_zeros(self.many, table.shape[1])
        for row, number in enumerate(self.ids):
            at = start + number * table.shape[1]
            direction.add_to(table[number], amount, start=at, out=moved[row])
        return moved


def _by_row(module: nn.Module) -> bool:
    """Return whether a module only reads rows of its weights, which are then perturbed alone: on
    CPUs.
    """
    plain = type(module) is torch.nn.Embedding and module.max_norm is None
    return plain and module.weight.requires_grad and module.weight.device.type == "cpu"  # type: ignore[return-value]


def owners(module: nn.Module) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """Yield each module's name and the trained parameters that its forward call reads itself."""
    inside = ""
    for name, owner in module.named_modules():
        if inside and name.startswith(inside):
            continue
        yield name, _own(owner)
        inside = f"{name}." if _reads_children(owner) else ""


def _own(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters(recurse=_reads_children(module)) if p.requires_grad]


def _reads_children(module: nn.Module) -> bool:
    """Return whether a module reads its children's weights without calling them."""
    return isinstance(module, torch.nn.MultiheadAttention)


def _deepest(module: nn.Module) -> int:
    """Elements that can be perturbed at one time: a module's own and those of one chain of its
    descendants.
    """
    own = 0 if _by_row(module) else sum(p.numel() for p in _own(module))
    return (
        own if _reads_children(module) else own + max(map(_deepest, module.children()), default=0)
    )


def slope(plus: torch.Tensor, minus: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return the two-point slope along u, (f(w + λu) - f(w - λu)) / (2λ), elementwise.

    DPZV (preprint) Eq. (3). Eq. (7) prints λ in place of 2λ; the proofs use 2λ, and so do we: the
    printed form is this one with the step size doubled and the clipping threshold halved.
    """
    return (plus - minus) / (2 * smoothing)
