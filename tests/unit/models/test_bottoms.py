import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.models.bottoms import SlicedMaxPool, cnn, linear, lstm, mlp
from raydpzv.models.flat import FlatModel
from raydpzv.models.heads import mlp as mlp_head
from raydpzv.registry import BOTTOMS, HEADS
from raydpzv.zo.directions import Direction
from raydpzv.zo.perturbation import LayerwisePerturbation


@pytest.mark.parametrize(
    "shape", [(2, 3, 8, 8), (1, 1, 7, 5), (3, 2, 1, 1), (2, 1, 1, 6), (2, 4, 9, 2), (1, 2, 2, 3)]
)
def test_sliced_pooling_has_the_values_of_max_pool(shape: tuple[int, ...]) -> None:
    x = torch.from_numpy(Key(0).generator().standard_normal(shape).astype(np.float32))
    assert torch.equal(SlicedMaxPool()(x), functional.max_pool2d(x, 2, ceil_mode=True))
    negative = -x.abs() - 1
    assert torch.equal(
        SlicedMaxPool()(negative), functional.max_pool2d(negative, 2, ceil_mode=True)
    )


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
    assert kinds(model) == [nn.Flatten, nn.Linear, *between], (
        "ReLU between layers, none at the ends"
    )
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


# Bottoms and heads of the baselines: linear, LSTM, one layer, sum.


def test_a_linear_bottom_is_one_matrix_and_a_bias() -> None:
    model = FlatModel(lambda: linear((2, 3), (), 4), Key(1))
    x = torch.from_numpy((Key(2) / "x").generator().standard_normal((5, 2, 3)).astype(np.float32))
    weight, bias = model.flat[:24].view(4, 6), model.flat[24:]
    assert torch.allclose(model.module(x), x.flatten(1) @ weight.T + bias, atol=1e-6)


def test_the_lstm_bottom_is_torchs_bidirectional_layer_then_a_plain_one() -> None:
    """Against two nn.LSTM of the same weights, called by hand."""
    model = FlatModel(lambda: lstm((6, 3), (4, 5), 2), Key(1))
    first, last, top = (
        nn.LSTM(3, 4, batch_first=True, bidirectional=True),
        nn.LSTM(8, 5, batch_first=True),
        nn.Linear(5, 2),
    )
    nn.utils.vector_to_parameters(
        model.flat, [p for m in (first, last, top) for p in m.parameters()]
    )
    x = torch.from_numpy((Key(2) / "x").generator().standard_normal((7, 6, 3)).astype(np.float32))
    steps, _ = last(first(x)[0])
    assert torch.allclose(model.module(x), top(steps[:, -1]), atol=1e-6)
    assert model.size == sum(p.numel() for m in (first, last, top) for p in m.parameters())
    # a change of the flat vector is a change of the recurrent layers
    before = model.module(x)
    model.flat[0] += 1.0
    assert not torch.equal(model.module(x), before)
    # the first layer looks both ways: the last output depends on the first step and on its own
    # reading of all steps
    live = x.clone().requires_grad_()
    model.module(live).sum().backward()
    assert (live.grad.abs().sum((0, 2)) > 0).all()


def test_an_lstm_can_be_perturbed_without_touching_it() -> None:
    model = FlatModel(lambda: lstm((6, 3), (4, 5), 2), Key(1))
    x = torch.ones(2, 6, 3)
    before, direction = model.flat.clone(), Direction(9, model.size, "gaussian")
    perturb = LayerwisePerturbation(model.module, model.offsets)
    with torch.no_grad(), perturb.at(direction, 0.1):
        moved = model.module(x)
    assert torch.equal(model.flat, before)
    model.flat += 0.1 * torch.from_numpy(direction.values())
    assert torch.allclose(model.module(x), moved, atol=1e-6)


def test_an_lstm_needs_a_series() -> None:
    for shape, hidden in (((4,), (8,)), ((1, 8, 8), (8,)), ((6, 3), ())):
        with pytest.raises(SpecError, match="an lstm needs time series"):
            BOTTOMS["lstm"](shape, hidden, 2)


def test_heads_sum_or_mix() -> None:
    x = torch.arange(24.0).view(2, 12)
    summed = FlatModel(lambda: HEADS["sum"](3, 4, (99,), 4), Key(1))
    assert summed.flat.tolist() == [0.0] * 4
    summed.flat.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert torch.equal(summed.module(x), x.view(2, 3, 4).sum(1) + summed.flat)
    assert FlatModel(lambda: HEADS["linear"](3, 4, (99,), 5), Key(1)).size == 12 * 5 + 5
