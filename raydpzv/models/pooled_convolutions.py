"""Scores of one kind of network at many points, faster than layer by layer: two 5x5 convolutions,
each pooled.

The network: Conv2d(1, C, 5, padding=2), SlicedMaxPool, ReLU, Conv2d(C, D, 5, padding=2),
SlicedMaxPool, ReLU, Flatten, Linear, as DeComFL's for MNIST. It is computed by compiled kernels
(`winograd_kernel`): the first layer tap by tap, the second by Winograd's transforms, 36 products
for 2x2 outputs in place of 100, whose inputs and outputs never leave the cache. The function is the
same, the rounding is not: scores are off by 5.5e-7 of the largest, where layer by layer they are
off by 6.2e-7.

On CPUs, for images of one channel whose sides are multiples of 4; no gradients.
"""

# P points, B records, H x W pixels, C and D channels, K classes

from __future__ import annotations

import torch
from torch import nn

from raydpzv.models.bottoms import SlicedMaxPool
from raydpzv.zo.kernels import Kernel

_scores = Kernel("scores", "raydpzv.models.winograd_kernel")

_RECORDS = 64
"""Records at a time, as many as the cache has room for; a record's bits do not depend on those
beside it.
"""
_LAYERS = (
    nn.Conv2d,
    SlicedMaxPool,
    nn.ReLU,
    nn.Conv2d,
    SlicedMaxPool,
    nn.ReLU,
    nn.Flatten,
    nn.Linear,
)


class PooledConvolutions:
    """Scores of such a network. It keeps nothing between calls, so that others can have the memory
    in the meantime.
    """

    def __init__(self, module: nn.Module) -> None:
        first, second, last = [len(p) for p in module.parameters()][::2]
        self._widths = first, second, last

    @staticmethod
    def match(module: nn.Module, shape: tuple[int, ...]) -> bool:
        """Return whether a network is of this kind, and records of this shape are of a size that
        goes with it.
        """
        layers = list(module.children())
        if type(module) is not nn.Sequential or tuple(map(type, layers)) != _LAYERS:
            return False
        convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
        fits = len(shape) == 3 and shape[0] == 1 and shape[1] % 4 == 0 and shape[2] % 4 == 0
        return fits and all(map(_is_plain, convolutions)) and layers[-1].bias is not None

    def at_points(self, points_Pd: torch.Tensor, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the scores of images, float32 [B, 1, H, W], at each point: float32 [P, B, K]."""
        return torch.cat([self._scores(points_Pd, piece) for piece in x_BCHW.split(_RECORDS)], 1)

    def _scores(self, points_Pd: torch.Tensor, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Some records: [P, B, K]."""
        scores_PBK = points_Pd.new_empty(len(points_Pd), len(x_BCHW), self._widths[-1])
        _scores(
            points_Pd.numpy(), x_BCHW[:, 0].contiguous().numpy(), *self._widths, scores_PBK.numpy()
        )
        return scores_PBK


def _is_plain(layer: nn.Conv2d) -> bool:
    shape = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
    plain = shape == ((5, 5), (1, 1), (2, 2), (1, 1), 1)
    return plain and layer.bias is not None and layer.padding_mode == "zeros"
