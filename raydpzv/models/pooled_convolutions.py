"""Scores of one kind of network at many points, faster than layer by layer: two 5x5 convolutions, each pooled.

The network: Conv2d(1, C, 5, padding=2), SlicedMaxPool, ReLU, Conv2d(C, D, 5, padding=2), SlicedMaxPool, ReLU, Flatten,
Linear, as DeComFL's for MNIST. The 25 pixels under the first layer's filter are laid out once for all points, and each
point's convolution is one matrix product. The second layer goes by Winograd's transforms (`winograd_kernel`): 36
products for 2x2 outputs in place of 100. The function is the same, the rounding is not: slopes of forward differences
at a radius of 1e-3 were off by 2.6e-5 where layer by layer they were off by 1.7e-5, of 1.2.

On CPUs, for images of one channel whose sides are multiples of 4; no gradients.
"""

# P points, B records, H x W pixels, C and D channels, K classes, n = W/4 · B

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from raydpzv.models.bottoms import SlicedMaxPool
from raydpzv.zo.kernels import Kernel

_pooled = Kernel("pooled", "raydpzv.models.winograd_kernel")
_inputs = Kernel("inputs", "raydpzv.models.winograd_kernel")
_outputs = Kernel("outputs", "raydpzv.models.winograd_kernel")

_ROWS = 2
"""Rows of the first layer's pooled outputs at a time: their places in the pools stay in the cache."""
_LAYERS = (nn.Conv2d, SlicedMaxPool, nn.ReLU, nn.Conv2d, SlicedMaxPool, nn.ReLU, nn.Flatten, nn.Linear)
_G = np.array(
    [
        [1, 0, 0, 0, 0],
        [-1 / 3, -1 / 3, -1 / 3, -1 / 3, -1 / 3],
        [1 / 3, -1 / 3, 1 / 3, -1 / 3, 1 / 3],
        [1 / 15, 2 / 15, 4 / 15, 8 / 15, 16 / 15],
        [-16 / 15, 8 / 15, -4 / 15, 2 / 15, -1 / 15],
        [0, 0, 0, 0, 1],
    ]
)
"""A filter's values at the points 0, 1, -1, 2, -1/2 and infinity, each over the product of its distances."""


class PooledConvolutions:
    """Scores of such a network. It keeps nothing between calls, so that others can have the memory in the meantime."""

    def __init__(self, module: nn.Module) -> None:
        self._shapes = [tuple(p.shape) for p in module.parameters()]
        self._sizes = [p.numel() for p in module.parameters()]
        self._filter = torch.from_numpy(np.kron(_G, _G).astype(np.float32))

    @staticmethod
    def match(module: nn.Module, shape: tuple[int, ...]) -> bool:
        """Tell whether a network is of this kind, and records of this shape are of a size that goes with it."""
        layers = list(module.children())
        if type(module) is not nn.Sequential or tuple(map(type, layers)) != _LAYERS:
            return False
        convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
        fits = len(shape) == 3 and shape[0] == 1 and shape[1] % 4 == 0 and shape[2] % 4 == 0
        return fits and all(map(_is_plain, convolutions))

    def at_points(self, points_Pd: torch.Tensor, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the scores of images, float32 [B, 1, H, W], at each point: float32 [P, B, K]."""
        scratch = _Scratch(x_BCHW, self._shapes[0][0], self._shapes[2][0])
        return torch.stack([self._scores(point_d, scratch) for point_d in points_Pd])

    def _scores(self, point_d: torch.Tensor, scratch: _Scratch) -> torch.Tensor:
        """One point: [B, K]."""
        parts = zip(point_d.split(self._sizes), self._shapes, strict=True)
        first, bias_C, second_DC55, bias_D, linear_KF, bias_K = (part.view(shape) for part, shape in parts)
        scratch.first_layer(first.view(-1, 25), bias_C)
        filters, channels = second_DC55.shape[:2]
        filters_36DC = (self._filter @ second_DC55.view(-1, 25).T).view(36, filters, channels)
        return torch.addmm(bias_K.unsqueeze(1), linear_KF, scratch.second_layer(filters_36DC, bias_D)).T


def _is_plain(layer: nn.Conv2d) -> bool:
    shape = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
    plain = shape == ((5, 5), (1, 1), (2, 2), (1, 1), 1)
    return plain and layer.bias is not None and layer.padding_mode == "zeros"


class _Scratch:
    """The pixels under the first layer's filter, and room for the activations of a batch, records innermost."""

    def __init__(self, x_BCHW: torch.Tensor, channels: int, filters: int) -> None:
        self._batch, _, height, width = x_BCHW.shape
        batch = self._batch
        rows, tiles = height // 2, width // 4  # of the first layer's outputs: rows, and tiles in one of them
        n, padded = tiles * batch, (tiles + 2) * batch
        self._patches = _patches(x_BCHW)
        self._places = torch.empty(channels, _ROWS, 4, 2 * n)
        self._middle = torch.zeros(channels, rows + 4, 2 * padded)
        self._rows, self._sums = torch.empty(6, 2 * padded), torch.empty(12, n)
        self._v, self._m = torch.empty(36, channels, n), torch.empty(36, filters, n)
        self._out = torch.empty(filters, rows // 2, n)

    def first_layer(self, weights_C25: torch.Tensor, bias_C: torch.Tensor) -> None:
        """Convolve, pool, add the bias, and take the positive part, a few rows at a time."""
        channels, rows = len(weights_C25), self._middle.shape[1] - 4
        places, bias, middle = self._places.numpy(), bias_C.numpy(), self._middle.numpy()
        for row, patches in zip(range(0, rows, _ROWS), self._patches.chunk(rows // _ROWS, 1), strict=True):
            torch.mm(weights_C25, patches, out=self._places.view(channels, -1))
            _pooled(places, row, bias, middle)

    def second_layer(self, filters_36DC: torch.Tensor, bias_D: torch.Tensor) -> torch.Tensor:
        """Do the same with the next layer, one row of tiles after the other; return [D · H/4 · W/4, B]."""
        middle, rows, sums = self._middle.numpy(), self._rows.numpy(), self._sums.numpy()
        v, m, out, bias = self._v.numpy(), self._m.numpy(), self._out.numpy(), bias_D.numpy()
        for row in range(self._out.shape[1]):
            _inputs(middle, row, rows, v)
            torch.bmm(filters_36DC, self._v, out=self._m)
            _outputs(m, row, bias, sums, out)
        return self._out.view(-1, self._batch)


def _patches(x_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the 25 pixels under the filter at every output, [25, H · W · B].

    Output (2 i + a, 4 j + 2 q + b) has place (a, b) in its pool, which becomes row i and column 2 j + q: outputs are in
    the order of i, a, b, q, j.
    """
    batch, _, height, width = x_BCHW.shape
    image = x_BCHW.new_zeros(height + 4, width + 4, batch)
    image[2:-2, 2:-2] = x_BCHW[:, 0].permute(1, 2, 0)
    down, right, _ = image.stride()
    steps = (down, right, 2 * down, down, right, 2 * right, 4 * right, 1)
    return image.as_strided((5, 5, height // 2, 2, 2, 2, width // 4, batch), steps).reshape(25, -1)
