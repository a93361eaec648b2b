"""Bottoms and heads of the baselines: linear, LSTM, one layer, sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.models.bottoms import linear, lstm
from raydpzv.models.flat import FlatModel
from raydpzv.registry import BOTTOMS, HEADS
from raydpzv.zo.directions import Direction
from raydpzv.zo.perturbation import LayerwisePerturbation


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
    nn.utils.vector_to_parameters(model.flat, [p for m in (first, last, top) for p in m.parameters()])
    x = torch.from_numpy((Key(2) / "x").generator().standard_normal((7, 6, 3)).astype(np.float32))
    steps, _ = last(first(x)[0])
    assert torch.allclose(model.module(x), top(steps[:, -1]), atol=1e-6)
    assert model.size == sum(p.numel() for m in (first, last, top) for p in m.parameters())
    # a change of the flat vector is a change of the recurrent layers
    before = model.module(x)
    model.flat[0] += 1.0
    assert not torch.equal(model.module(x), before)
    # the first layer looks both ways: the last output depends on the first step and on its own reading of all steps
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
