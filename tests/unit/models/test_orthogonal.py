"""Orthonormal weights against a QR decomposition, and the same under both engines."""

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.engine.dense import dense_bottom
from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.models.bottoms import mlp
from raydpzv.models.flat import FlatModel
from raydpzv.models.orthogonal import orthonormal

KEY = Key(6)


@pytest.mark.parametrize("shape", [(3, 8), (8, 8), (8, 3)])
def test_rows_or_columns_are_orthonormal_and_span_what_was_given(shape: tuple[int, int]) -> None:
    given = KEY.generator().standard_normal(shape).astype(np.float32)
    found = orthonormal(given)
    wide = shape[0] <= shape[1]
    product = found @ found.T if wide else found.T @ found
    assert product == pytest.approx(np.eye(min(shape)), abs=1e-6)
    q, r = np.linalg.qr((given.T if wide else given).astype(np.float64))
    assert (found.T if wide else found) == pytest.approx(q * np.sign(np.diag(r)), abs=1e-5)
    assert found.dtype == np.float32


@pytest.mark.parametrize("hidden", [(), (7,)])
def test_both_engines_begin_with_the_same_bits(hidden: tuple[int, ...]) -> None:
    model = FlatModel(lambda: mlp((4, 5), hidden, 6), KEY)
    drawn = model.flat.clone()
    model.orthogonal_last()
    network = dense_bottom("mlp" if hidden else "linear", (4, 5), hidden, 6, "orthogonal_last")
    assert np.array_equal(network.initial(KEY), model.flat.numpy())
    last = model.module[-1]
    weights = last.weight.detach().numpy()
    assert weights @ weights.T == pytest.approx(np.eye(6), abs=1e-6)
    assert not last.bias.any()
    before = drawn.numel() - last.weight.numel() - last.bias.numel()
    assert torch.equal(model.flat[:before], drawn[:before]), "inner layers stay as they were drawn"


def test_a_last_layer_that_is_not_linear_is_refused() -> None:
    model = FlatModel(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), KEY)
    with pytest.raises(InputError, match="Conv2d"):
        model.orthogonal_last()
