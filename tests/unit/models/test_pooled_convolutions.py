from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.keys import Key
from raydpzv.models.bottoms import SlicedMaxPool
from raydpzv.models.flat import FlatModel
from raydpzv.models.pooled_convolutions import PooledConvolutions
from raydpzv.models.whole import whole


def network(height: int, width: int) -> FlatModel:
    return FlatModel(lambda: whole("cnn_mnist", (1, height, width), (), 7), Key(height))


def images(batch: int, height: int, width: int) -> torch.Tensor:
    values = (Key(batch) / "images").generator().standard_normal((batch, 1, height, width), np.float32)
    return torch.from_numpy(values)


def points(model: FlatModel, count: int) -> torch.Tensor:
    noise = Key(9).generator().standard_normal((count, model.size), np.float32)
    return model.flat + 0.1 * torch.from_numpy(noise)


def exact(model: FlatModel, point_d: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The module in float64."""
    network = FlatModel(lambda: model.module.to_empty(device="meta"), Key(0)).module.double()
    nn.utils.vector_to_parameters(point_d.double(), network.parameters())
    return network(x.double())


@torch.no_grad()
@pytest.mark.parametrize(
    ("batch", "height", "width"), [(1, 28, 28), (32, 28, 28), (5, 8, 8), (3, 4, 12), (2, 20, 4)]
)
def test_scores_are_the_networks_to_the_precision_of_float32(batch: int, height: int, width: int) -> None:
    model, x = network(height, width), images(batch, height, width)
    points_Pd = points(model, 3)
    found = PooledConvolutions(model.module).at_points(points_Pd, x)
    assert found.shape == (3, batch, 7)
    wanted = torch.stack([exact(network(height, width), point_d, x) for point_d in points_Pd])
    bound = 2e-6 * float(wanted.abs().max())
    assert float((found - wanted).abs().max()) < bound
    one_weight = points_Pd.clone()
    one_weight[:, 16 * 26 + 7] += 1e-3  # of the second layer's: what the bound would see
    assert float((PooledConvolutions(model.module).at_points(one_weight, x) - wanted).abs().max()) > bound


@torch.no_grad()
def test_bits_follow_from_the_point_and_the_batch_alone() -> None:
    model, x = network(28, 28), images(6, 28, 28)
    points_Pd, fast = points(model, 4), PooledConvolutions(model.module)
    together = fast.at_points(points_Pd, x)
    fast.at_points(points_Pd, 5 * images(9, 28, 28))
    fast.at_points(points_Pd, -x)
    for place in (2, 0):
        assert torch.equal(fast.at_points(points_Pd[place : place + 1], x)[0], together[place])


@torch.no_grad()
@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_what_is_not_finite_shows(value: float) -> None:
    model, x = network(8, 8), images(3, 8, 8)
    fast = PooledConvolutions(model.module)
    for place in range(0, model.size, 977):
        point = model.flat.clone()
        point[place] = value
        if not torch.isfinite(exact(network(8, 8), point, x).float()).all():
            assert not torch.isfinite(fast.at_points(point.unsqueeze(0), x)).all(), place
    x[1, 0, 3, 3] = math.nan
    found = fast.at_points(model.flat.unsqueeze(0), x)[0]
    assert torch.isfinite(found).all(1).tolist() == [True, False, True]


def convolutions(**changes: object) -> nn.Sequential:
    first = {"in_channels": 1, "kernel_size": 5, "padding": 2} | changes
    return nn.Sequential(
        nn.Conv2d(out_channels=3, **first), SlicedMaxPool(), nn.ReLU(),  # type: ignore[arg-type]
        nn.Conv2d(3, 2, 5, padding=2), SlicedMaxPool(), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2),
    )  # fmt: skip


def test_no_other_network_or_size_is_taken_for_one() -> None:
    shape = (1, 8, 8)
    assert PooledConvolutions.match(convolutions(), shape)
    others = (
        {"in_channels": 3}, {"kernel_size": 3}, {"padding": 1}, {"stride": 2}, {"dilation": 2}, {"bias": False},
        {"padding_mode": "circular"},
    )  # fmt: skip
    for change in others:
        assert not PooledConvolutions.match(convolutions(**change), (change.get("in_channels", 1), 8, 8)), (
            change
        )
    assert not PooledConvolutions.match(nn.Sequential(*convolutions(), nn.ReLU()), shape)
    assert not PooledConvolutions.match(whole("cnn_fashion", (1, 28, 28), (), 10), (1, 28, 28))
    for other in ((1, 8, 10), (1, 7, 8), (64,)):
        assert not PooledConvolutions.match(convolutions(), other), other
