"""The residual network of 18 layers (He, Zhang, Ren, Sun 2016) as a bottom, with group
normalisation.

Batch normalisation would make a record's embedding depend on the other records of its batch: no
slope would be one record's own, so that clipping it bounds nothing, and the statistics would differ
between w + λu and w - λu. Groups of 16 channels (Wu, He 2018) have as many parameters and look at
one record alone.
"""

# B batch, C channels

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from raydpzv.errors import SpecError

_GROUP = 16
"""Channels of a group; a number of channels that it does not divide is one group."""
_SMALL = 64
"""Pixels of the smaller side up to which an image is small."""
_STAGES = 4


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(before, after, 3, stride), nn.ReLU(), *_convolution(after, after, 3, 1)
        )
        same = before == after and stride == 1
        self.shortcut = (
            nn.Sequential() if same else nn.Sequential(*_convolution(before, after, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> [B, C', H / stride, W / stride], rounded up."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18(shape: Sequence[int], channels: Sequence[int], width: int) -> nn.Module:
    """A first convolution, four stages of two blocks, the pixels' mean, a linear layer: [B, C, H,
    W] -> [B, width].

    channels: of the four stages, [64, 128, 256, 512] in the paper. Small images (a side of at most
    64 pixels) begin with a 3x3 convolution; larger ones with the paper's 7x7 of stride 2 and
    pooling. Views [V, C, H, W] are folded into the channels. Raises SpecError.
    """
    if len(shape) < 3 or len(channels) != _STAGES or min(channels) < 2:
        raise SpecError(
            f"model.bottom: a resnet18 needs image parts [channels, height, width] and {_STAGES} "
            f"hidden widths from 2, but the split gives each client {list(shape)}, with hidden = "
            f"{list(channels)}; split by views, rows or patches and use such as [64, 128, 256, "
            "512]"
        )
    *stacked, height, across = shape
    before = int(torch.Size(stacked).numel())
    layers: list[nn.Module] = [nn.Flatten(1, -3)] if len(shape) > 3 else []
    layers += _stem(before, channels[0], small=min(height, across) <= _SMALL)
    before = channels[0]
    for stage, after in enumerate(channels):
        layers += [Block(before, after, stride=2 if stage else 1), Block(after, after, stride=1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, width))


def _stem(before: int, after: int, *, small: bool) -> list[nn.Module]:
    if small:
        return [*_convolution(before, after, 3, 1), nn.ReLU()]
    return [*_convolution(before, after, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]


def _convolution(before: int, after: int, side: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """A convolution and its normalisation, which has a bias of its own."""
    return (
        nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False),
        nn.GroupNorm(after // _GROUP if after % _GROUP == 0 else 1, after),
    )
