import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.whole import whole
from raydpzv.registry import WHOLE_MODELS
from tests.helpers.loading import refusal


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "hidden", "outputs", "parameters"),
    [
        ("mlp", (64,), (32,), 10, 2_410),
        ("mlp", (1, 28, 28), (256, 128), 10, 235_146),
        ("logistic", (1, 28, 28), (256, 128), 10, 7_850),
        ("cnn_mnist", (1, 28, 28), (), 10, 28_938),
        (
            "cnn_mnist",
            (3, 32, 32),
            (),
            10,
            (75 * 16 + 16) + (400 * 32 + 32) + (32 * 8 * 8 * 10 + 10),
        ),
        ("cnn_fashion", (1, 28, 28), (), 62, 1_206_590),
        ("cnn_fashion", (1, 28, 28), (), 10, 1_206_590 - 52 * 129),
        ("cnn_users", (1, 28, 28), (), 10, 21_840),
        ("mlp_normed", (30,), (30,) * 5, 2, 5_012),
    ],
)
def test_parameter_counts(
    name: str, shape: Sequence[int], hidden: Sequence[int], outputs: int, parameters: int
) -> None:
    assert parameters_of(whole(name, shape, hidden, outputs)) == parameters


def mnist_reference(channels: int, last: int) -> nn.Module:
    """The network as published: ReLU before the pooling, torch's own pooling."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(last, 10),
    )


def fashion_reference(channels: int, last: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(last, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@pytest.mark.parametrize(
    ("name", "shape", "reference"),
    [
        ("cnn_mnist", (1, 28, 28), mnist_reference(1, 1568)),
        ("cnn_mnist", (3, 15, 9), mnist_reference(3, 32 * 4 * 3)),
        ("cnn_mnist", (1, 1, 1), mnist_reference(1, 32)),
        ("cnn_fashion", (1, 28, 28), fashion_reference(1, 9216)),
        ("cnn_fashion", (2, 5, 8), fashion_reference(2, 64 * 2)),
    ],
)
def test_cnns_are_the_published_networks(
    name: str, shape: tuple[int, ...], reference: nn.Module
) -> None:
    model = FlatModel(lambda: whole(name, shape, (), 10), Key(0))
    x = torch.from_numpy(Key(1).generator().standard_normal((4, *shape)).astype(np.float32))
    nn.utils.vector_to_parameters(model.flat.clone(), reference.parameters())
    with torch.no_grad():
        torch.testing.assert_close(model.module(x), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cnn_mnist", "cnn_fashion"])
def test_relu_after_pooling_changes_no_bit_on_odd_and_even_sizes(name: str) -> None:
    for side in (5, 8):
        model = FlatModel(lambda side=side: whole(name, (1, side, side), (), 3), Key(0)).module
        layers = list(model.children())
        first = next(i for i, layer in enumerate(layers) if type(layer).__name__ == "SlicedMaxPool")
        assert isinstance(layers[first + 1], nn.ReLU)
        swapped = nn.Sequential(
            *layers[:first], layers[first + 1], layers[first], *layers[first + 2 :]
        )
        x = torch.from_numpy(
            Key(2).generator().standard_normal((3, 1, side, side)).astype(np.float32)
        )
        with torch.no_grad():
            assert torch.equal(model(x), swapped(x))


def test_logistic_is_one_linear_layer() -> None:
    model = FlatModel(lambda: whole("logistic", (2, 3), (9,), 4), Key(0))
    x = torch.ones(5, 2, 3)
    weight, bias = model.flat[:24].view(4, 6), model.flat[24:]
    torch.testing.assert_close(model.module(x), x.flatten(1) @ weight.T + bias)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn_mnist", (64,)),
        ("cnn_mnist", (2, 1, 28, 28)),
        ("cnn_fashion", (1, 4, 28)),
        ("cnn_fashion", (1, 28, 4)),
    ],
)
def test_records_that_do_not_fit_are_refused_with_their_shape(
    name: str, shape: tuple[int, ...]
) -> None:
    with refusal(SpecError, re.escape(str(list(shape))), name):
        whole(name, shape, (), 10)


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r'unknown model "cnn_mnits". Did you mean "cnn_mnist"'):
        whole("cnn_mnits", (1, 28, 28), (), 10)
    assert set(WHOLE_MODELS) == {
        "mlp",
        "logistic",
        "cnn_mnist",
        "cnn_fashion",
        "cnn_users",
        "mlp_normed",
    }
