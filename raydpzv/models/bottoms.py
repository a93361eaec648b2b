"""Bottom models: from a client's own features to an embedding of width E."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import nn

from raydpzv.errors import SpecError
from raydpzv.registry import BOTTOMS


def mlp(shape: Sequence[int], hidden: Sequence[int], width: int) -> nn.Module:
    """Flatten, then linear layers with ReLU between: [B, *shape] -> [B, width]."""
    sizes = [int(torch.Size(shape).numel()), *hidden, width]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class SlicedMaxPool(nn.Module):
    """2x2 maximum over existing pixels: the values of `max_pool2d` with ceil_mode, by strided
    slices.

    torch's CPU max_pool2d costs more than the convolutions here; slices are several times faster.
    Not so backwards, where each slice becomes a zero-filled image: what needs a gradient goes
    through max_pool2d, in two thirds of the time with channels first and a third with channels
    last.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> [B, C, ceil(H/2), ceil(W/2)]."""
        if torch.is_grad_enabled() and x.requires_grad:
            return nn.functional.max_pool2d(x, 2, ceil_mode=True)
        for dim in (2, 3):
            even, odd = (x[:, :, 0::2], x[:, :, 1::2]) if dim == 2 else (x[..., 0::2], x[..., 1::2])
            paired = odd.shape[dim]
            best = torch.maximum(even.narrow(dim, 0, paired), odd)
            x = (
                best
                if even.shape[dim] == paired
                else torch.cat((best, even.narrow(dim, paired, 1)), dim)
            )
        return x


def cnn(shape: Sequence[int], channels: Sequence[int], width: int) -> nn.Module:
    """3x3 convolutions with 2x2 pooling and ReLU, then one linear layer: [B, C, H, W] -> [B,
    width].

    Views [V, C, H, W] are folded into the channels.
    """
    if len(shape) < 3:
        raise SpecError(
            "model.bottom: a cnn needs image parts [channels, height, width], but the split gives "
            "each client "
            f'{list(shape)}; use bottom = "mlp" or split by rows, patches or views'
        )
    *stacked, height, rows = shape
    before = int(torch.Size(stacked).numel())
    layers: list[nn.Module] = [nn.Flatten(1, -3)] if len(shape) > 3 else []
    for after in channels:
        layers += [nn.Conv2d(before, after, 3, padding=1), SlicedMaxPool(), nn.ReLU()]
        before, height, rows = after, -(-height // 2), -(-rows // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * height * rows, width))


def linear(shape: Sequence[int], hidden: Sequence[int], width: int) -> nn.Module:
    """Flatten, then one linear layer: [B, *shape] -> [B, width]; `hidden` is not looked at (VAFL,
    Section 5).
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.Size(shape).numel()), width))


class LastStep(nn.Module):
    """The last time step of a recurrent layer's outputs."""

    def forward(self, outputs: tuple[torch.Tensor, object]) -> torch.Tensor:
        """([B, T, H], state) -> [B, H]."""
        return outputs[0][:, -1]


class AllSteps(nn.Module):
    """All time steps of a recurrent layer's outputs, for the next one."""

    def forward(self, outputs: tuple[torch.Tensor, object]) -> torch.Tensor:
        """([B, T, H], state) -> [B, T, H]."""
        return outputs[0]


def lstm(shape: Sequence[int], hidden: Sequence[int], width: int) -> nn.Module:
    """LSTM layers, all but the last in both directions, then one linear layer: [B, T, F] -> [B,
    width].

    VAFL, Section G.3.2: a bidirectional layer of 16 units, then a plain one of 16 (hidden = [16,
    16]).
    """
    if len(shape) != 2 or not hidden:
        raise SpecError(
            "model.bottom: an lstm needs time series [steps, variables] and at least one hidden "
            "width, but the split "
            f"gives each client {list(shape)}, with {len(hidden)} hidden widths; use how = "
            '"variables" on a time series'
        )
    before = shape[1]
    layers: list[nn.Module] = []
    for units in hidden[:-1]:
        layers += [nn.LSTM(before, units, batch_first=True, bidirectional=True), AllSteps()]
        before = 2 * units
    layers += [nn.LSTM(before, hidden[-1], batch_first=True), LastStep()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], width))


def bottom(
    name: str,
    shape: Sequence[int],
    hidden: Sequence[int],
    width: int,
    vocabulary: int | None = None,
) -> nn.Module:
    """Return the bottom model `name` for records of `shape`; vocabulary: of data that are token
    ids, else None.

    A model takes token ids if it has a parameter `vocabulary`. Raises SpecError for a model that
    takes the other kind of data.
    """
    make = BOTTOMS[name]
    if _takes_tokens(make) == (vocabulary is not None):
        return cast(
            nn.Module, make(shape, hidden, width, *(() if vocabulary is None else (vocabulary,)))
        )
    kind = "numbers" if vocabulary is None else "token ids, names and no quantities"
    fitting = [
        other for other in BOTTOMS if _takes_tokens(BOTTOMS[other]) == (vocabulary is not None)
    ]
    raise SpecError(
        f'model.bottom: the data are {kind}, which "{name}" does not take: use '
        f"{' or '.join(fitting)}"
    )


def _takes_tokens(make: Callable[..., nn.Module]) -> bool:
    return "vocabulary" in inspect.signature(make).parameters
