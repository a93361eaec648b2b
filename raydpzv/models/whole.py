"""Whole models of horizontal learning: from a record's features to the scores of the classes.

mlp          linear layers with ReLU between, of the given hidden widths
logistic     one linear layer
cnn_mnist    28,938 parameters at [1, 28, 28] and 10 outputs: DeComFL's MNIST network (Li et al.,
ICLR 2025) cnn_fashion  1,206,590 parameters at [1, 28, 28] and 62 outputs: DeComFL's Fashion-MNIST
network, whose last
             layer has 62 outputs for 10 classes
cnn_users    21,840 parameters at [1, 28, 28] and 10 outputs: Uldp-FL's MNIST network (Kato et al.
2023) mlp_normed   linear layers of the given hidden widths, each with ReLU and normalisation over a
record's own numbers:
             5,012 parameters at 30 features, widths 30 five times, 2 outputs, Uldp-FL's Creditcard
             network without its dropout (a loss must be a function)

ReLU comes after the pooling: it never decreases, so the values are those of ReLU before it, at a
quarter of its work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from raydpzv.errors import SpecError
from raydpzv.models.bottoms import SlicedMaxPool, mlp
from raydpzv.registry import WHOLE_MODELS

Factory = Callable[[Sequence[int], Sequence[int], int], nn.Module]


def whole(name: str, shape: Sequence[int], hidden: Sequence[int], outputs: int) -> nn.Module:
    """Return the model `name` for records of `shape`: [B, *shape] -> scores [B, outputs].

    hidden: the widths of "mlp"; the other models have fixed widths and do not look at it. Raises
    SpecError for an unknown name and for records that a cnn cannot take.
    """
    make: Factory = WHOLE_MODELS[name]
    return make(shape, hidden, outputs)


def logistic(shape: Sequence[int], hidden: Sequence[int], outputs: int) -> nn.Module:
    """Multinomial logistic regression."""
    return mlp(shape, (), outputs)


def cnn_mnist(shape: Sequence[int], hidden: Sequence[int], outputs: int) -> nn.Module:
    """5x5 convolutions to 16 and 32 channels, each with 2x2 pooling and ReLU, then one linear
    layer.
    """
    channels, height, width = _image("cnn_mnist", shape, least=1)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2),
        SlicedMaxPool(),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        SlicedMaxPool(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * _pooled(_pooled(height)) * _pooled(_pooled(width)), outputs),
    )


def cnn_fashion(shape: Sequence[int], hidden: Sequence[int], outputs: int) -> nn.Module:
    """3x3 convolutions without padding to 32 and 64 channels, 2x2 pooling, then linear layers by
    way of 128.
    """
    channels, height, width = _image("cnn_fashion", shape, least=5)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        SlicedMaxPool(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * _pooled(height - 4) * _pooled(width - 4), 128),
        nn.ReLU(),
        nn.Linear(128, outputs),
    )


def cnn_users(shape: Sequence[int], hidden: Sequence[int], outputs: int) -> nn.Module:
    """5x5 convolutions without padding to 10 and 20 channels, each with 2x2 pooling and ReLU, then
    by way of 50.
    """
    channels, height, width = _image("cnn_users", shape, least=14)
    after = [_pooled(_pooled(pixels - 4) - 4) for pixels in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 10, 5),
        SlicedMaxPool(),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        SlicedMaxPool(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * after[0] * after[1], 50),
        nn.ReLU(),
        nn.Linear(50, outputs),
    )


def mlp_normed(shape: Sequence[int], hidden: Sequence[int], outputs: int) -> nn.Module:
    """Linear layers, each followed by ReLU and GroupNorm of one group, then a linear layer to the
    outputs.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    before = math.prod(shape)
    for width in hidden:
        layers += [nn.Linear(before, width), nn.ReLU(), nn.GroupNorm(1, width)]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, outputs))


def _image(name: str, shape: Sequence[int], *, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise SpecError(
            f'model.kind: "{name}" wants images [channels, height, width] of at least {least} x '
            f'{least} pixels, but a record is {list(shape)}; use "mlp" or "logistic"'
        )
    return shape[0], shape[1], shape[2]


def _pooled(pixels: int) -> int:
    return -(-pixels // 2)
