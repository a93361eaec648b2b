from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.models.bottoms import SlicedMaxPool, cnn, mlp
from raydpzv.models.heads import mlp as mlp_head


@pytest.mark.parametrize(
    "shape", [(2, 3, 8, 8), (1, 1, 7, 5), (3, 2, 1, 1), (2, 1, 1, 6), (2, 4, 9, 2), (1, 2, 2, 3)]
)
def test_sliced_pooling_has_the_values_of_max_pool(shape: tuple[int, ...]) -> None:
    x = torch.from_numpy(Key(0).generator().standard_normal(shape).astype(np.float32))
    assert torch.equal(SlicedMaxPool()(x), functional.max_pool2d(x, 2, ceil_mode=True))
    negative = -x.abs() - 1
    assert torch.equal(SlicedMaxPool()(negative), functional.max_pool2d(negative, 2, ceil_mode=True))


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 7, 5), (2, 1, 1, 6)])
def test_pooling_hands_a_gradient_to_each_windows_largest_pixel(shape: tuple[int, ...]) -> None:
    x = torch.from_numpy(Key(0).generator().standard_normal(shape).astype(np.float32))
    leaf = x.clone().requires_grad_()
    pooled = SlicedMaxPool()(leaf)
    assert torch.equal(pooled, SlicedMaxPool()(x))
    weights = torch.from_numpy(Key(1).generator().standard_normal(pooled.shape).astype(np.float32))
    (found,) = torch.autograd.grad((pooled * weights).sum(), leaf)
    expected = np.zeros(shape, np.float32)
    for b, c, i, j in np.ndindex(*pooled.shape):
        window = x[b, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].numpy()
        row, column = np.unravel_index(window.argmax(), window.shape)
        expected[b, c, 2 * i + row, 2 * j + column] = weights[b, c, i, j]
    np.testing.assert_array_equal(found.numpy(), expected)


def kinds(module: nn.Module) -> list[type[nn.Module]]:
    return [type(layer) for layer in module.children()]


@pytest.mark.parametrize(("shape", "hidden"), [((5,), ()), ((3, 4), (7,)), ((1, 2, 3), (7, 6))])
def test_mlp(shape: tuple[int, ...], hidden: tuple[int, ...]) -> None:
    model = mlp(shape, hidden, 4)
    assert model(torch.zeros(9, *shape)).shape == (9, 4)
    between = [nn.ReLU, nn.Linear] * len(hidden)
    assert kinds(model) == [nn.Flatten, nn.Linear, *between], "ReLU between layers, none at the ends"
    sizes = [int(np.prod(shape)), *hidden, 4]
    linear = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linear] == sizes[:-1]


@pytest.mark.parametrize(
    ("shape", "channels", "parameters"),
    [
        ((1, 8, 8), (4,), 4 * 9 + 4 + 4 * 16 * 3 + 3),
        ((3, 7, 5), (4, 6), (27 * 4 + 4) + (36 * 6 + 6) + (6 * 2 * 2 * 3 + 3)),
        ((2, 3, 4, 4), (5,), 6 * 9 * 5 + 5 + 5 * 4 * 3 + 3),
        ((1, 2, 28), (2, 2, 2), 20 + 38 + 38 + 2 * 1 * 4 * 3 + 3),
    ],
)
def test_cnn(shape: tuple[int, ...], channels: tuple[int, ...], parameters: int) -> None:
    model = cnn(shape, channels, 3)
    assert model(torch.zeros(5, *shape)).shape == (5, 3)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_views_are_folded_into_channels_in_order() -> None:
    model = cnn((2, 3, 4, 4), (5,), 3)
    x = torch.arange(5.0 * 96).view(5, 2, 3, 4, 4)
    flat = cnn((6, 4, 4), (5,), 3)
    flat.load_state_dict(dict(zip(flat.state_dict(), model.state_dict().values(), strict=True)))
    assert torch.equal(model(x), flat(x.view(5, 6, 4, 4)))


def test_a_cnn_needs_images() -> None:
    with pytest.raises(SpecError, match=r"\[12, 3\].*mlp"):
        cnn((12, 3), (4,), 3)


def test_the_head_is_linear_layers_with_relu() -> None:
    assert kinds(mlp_head(12, 512, (256, 100), 40)) == [*[nn.Linear, nn.ReLU] * 2, nn.Linear]
    head = mlp_head(3, 4, (7,), 5)
    assert kinds(head) == [nn.Linear, nn.ReLU, nn.Linear]
    assert head(torch.zeros(6, 12)).shape == (6, 5)
    assert sum(p.numel() for p in head.parameters()) == 12 * 7 + 7 + 7 * 5 + 5
