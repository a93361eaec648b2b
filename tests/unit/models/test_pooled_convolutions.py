import json
import math
import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from numba.core.registry import cpu_target
from torch import nn

from raydpzv.keys import Key
from raydpzv.models.bottoms import SlicedMaxPool
from raydpzv.models.flat import FlatModel
from raydpzv.models.pooled_convolutions import PooledConvolutions
from raydpzv.models.whole import whole
from tests.helpers.programs import python_said


def network(height: int, width: int) -> FlatModel:
    return FlatModel(lambda: whole("cnn_mnist", (1, height, width), (), 7), Key(height))


def images(batch: int, height: int, width: int) -> torch.Tensor:
    values = (
        (Key(batch) / "images").generator().standard_normal((batch, 1, height, width), np.float32)
    )
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
def test_scores_are_the_networks_to_the_precision_of_float32(
    batch: int, height: int, width: int
) -> None:
    model, x = network(height, width), images(batch, height, width)
    points_Pd = points(model, 3)
    found = PooledConvolutions(model.module).at_points(points_Pd, x)
    assert found.shape == (3, batch, 7)
    wanted = torch.stack([exact(network(height, width), point_d, x) for point_d in points_Pd])
    bound = 2e-6 * float(wanted.abs().max())
    assert float((found - wanted).abs().max()) < bound
    one_weight = points_Pd.clone()
    one_weight[:, 16 * 26 + 7] += 1e-3  # of the second layer's: what the bound would see
    assert (
        float((PooledConvolutions(model.module).at_points(one_weight, x) - wanted).abs().max())
        > bound
    )


@torch.no_grad()
@pytest.mark.parametrize(("channels", "filters", "classes"), [(3, 2, 2), (1, 9, 11), (16, 8, 8)])
def test_layers_of_any_width_are_computed(channels: int, filters: int, classes: int) -> None:
    def make() -> nn.Module:
        return convolutions(channels, filters, classes)

    model, x = FlatModel(make, Key(4)), images(7, 8, 8)
    found = PooledConvolutions(model.module).at_points(model.flat.unsqueeze(0), x)[0]
    plain = model.module.double()(x.double())
    assert float((found - plain).abs().max()) < 1e-6
    model.flat[-1] += 1e-5
    other = PooledConvolutions(model.module).at_points(model.flat.unsqueeze(0), x)[0]
    assert 9e-6 < float((other - plain).abs().max()) < 1.2e-5


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 4, 6, 31, 33])
def test_a_records_bits_do_not_depend_on_the_records_beside_it(count: int) -> None:
    model, x = network(28, 28), images(40, 28, 28)
    fast, point_1d = PooledConvolutions(model.module), points(model, 1)
    together = fast.at_points(point_1d, x)[0]
    assert torch.equal(fast.at_points(point_1d, x[5 : 5 + count])[0], together[5 : 5 + count])


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64 processors")
def test_bits_do_not_hang_on_how_long_the_processors_vectors_are(tmp_path: Path) -> None:
    """With AVX2 alone a vector is two registers, and sums are fewer at a time; the sums are the
    same. Without fused multiply-adds they are others.
    """
    if "+fma" not in cpu_target.target_context.codegen().magic_tuple()[2]:
        pytest.skip("this processor has no fused multiply-adds")
    processor = {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    generator = Key(5).generator()
    x = torch.from_numpy(generator.standard_normal((9, 1, 8, 8), np.float32))
    point = network(8, 8).flat.unsqueeze(0)
    found = PooledConvolutions(network(8, 8).module).at_points(point, x)
    assert (
        json.loads(python_said("-c", SCORES, **processor))
        == found.numpy().view(np.int32).ravel().tolist()
    )


SCORES = """
import json
import numpy as np
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.models.whole import whole
from raydpzv.models.winograd_kernel import scores

x, out = Key(5).generator().standard_normal((9, 1, 8, 8), np.float32)[:, 0], np.zeros((1, 9, 7), np.float32)
point = FlatModel(lambda: whole("cnn_mnist", (1, 8, 8), (), 7), Key(8)).flat
scores(point.unsqueeze(0).numpy(), np.ascontiguousarray(x), 16, 32, 7, out)
print(json.dumps(out.view(np.int32).ravel().tolist()))
"""


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


def convolutions(
    channels: int = 3, filters: int = 2, classes: int = 2, **changes: object
) -> nn.Sequential:
    first = {"in_channels": 1, "kernel_size": 5, "padding": 2} | changes
    return nn.Sequential(
        nn.Conv2d(out_channels=channels, **first), SlicedMaxPool(), nn.ReLU(),  # type: ignore[arg-type]
        nn.Conv2d(channels, filters, 5, padding=2), SlicedMaxPool(), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * filters, classes),
    )  # fmt: skip


def test_no_other_network_or_size_is_taken_for_one() -> None:
    shape = (1, 8, 8)
    assert PooledConvolutions.match(convolutions(), shape)
    others = (
        {"in_channels": 3}, {"kernel_size": 3}, {"padding": 1}, {"stride": 2}, {"dilation": 2}, {"bias": False},
        {"padding_mode": "circular"},
    )  # fmt: skip
    for change in others:
        assert not PooledConvolutions.match(
            convolutions(**change), (change.get("in_channels", 1), 8, 8)
        ), change
    assert not PooledConvolutions.match(nn.Sequential(*convolutions(), nn.ReLU()), shape)
    assert not PooledConvolutions.match(whole("cnn_fashion", (1, 28, 28), (), 10), (1, 28, 28))
    # compiled code would read biases behind the parameters' end
    last = convolutions()[-1]
    unbiased = nn.Sequential(
        *convolutions()[:-1], nn.Linear(last.in_features, last.out_features, bias=False)
    )
    assert not PooledConvolutions.match(unbiased, shape)
    for other in ((1, 8, 10), (1, 7, 8), (64,)):
        assert not PooledConvolutions.match(convolutions(), other), other
