from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from raydpzv.errors import InputError
from raydpzv.keys import Key
from raydpzv.models.bottoms import mlp
from raydpzv.models.flat import FlatModel

# layer, the bound 1/√fan_in of torch's own initialisation
LAYERS: list[tuple[Callable[[], nn.Module], float]] = [
    (lambda: nn.Linear(50, 80), 1 / math.sqrt(50)),
    (lambda: nn.Conv2d(6, 32, (3, 5)), 1 / math.sqrt(6 * 15)),
    (lambda: nn.Conv2d(6, 300, 3, groups=3), 1 / math.sqrt(2 * 9)),
    (lambda: nn.LSTM(10, 16, num_layers=2), 1 / math.sqrt(16)),
]


def test_parameters_are_views_of_one_vector_in_named_order() -> None:
    model = FlatModel(lambda: mlp((3, 4), (5,), 2), Key(0))
    assert model.size == model.flat.numel() == 12 * 5 + 5 + 5 * 2 + 2
    assert model.flat.dtype == torch.float32
    assert model.flat.is_contiguous()
    place = 0
    for name, p in model.module.named_parameters():
        assert model.offsets[name] == place
        assert p.data_ptr() == model.flat[place:].data_ptr()
        place += p.numel()
    model.flat.zero_()
    assert all(not p.any() for p in model.module.parameters())
    assert not model.module(torch.ones(1, 3, 4)).any()
    next(model.module.parameters()).data.fill_(2)
    assert model.flat.sum() == 2 * 60


def test_an_lstm_computes_with_the_vector() -> None:
    model = FlatModel(lambda: nn.LSTM(3, 4), Key(0))
    reference = nn.LSTM(3, 4)
    reference.load_state_dict(model.module.state_dict())
    x = torch.ones(2, 1, 3)
    before = model.module(x)[0]
    assert torch.equal(before, reference(x)[0])
    model.flat.mul_(0.5)
    assert not torch.equal(model.module(x)[0], before)


def fits_uniform(p: np.ndarray, bound: float) -> bool:
    within = bool(np.abs(p).max() <= bound)
    return within and stats.kstest(p, stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.001


@pytest.mark.parametrize(("make", "bound"), LAYERS)
def test_the_initial_law_is_torchs_default(make: Callable[[], nn.Module], bound: float) -> None:
    model = FlatModel(make, Key(3))
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        default = torch.cat([p.detach().reshape(-1) for p in make().parameters()]).numpy()
    for drawn in (model.flat.numpy(), default):
        assert fits_uniform(drawn, bound)
        assert not fits_uniform(drawn, 1.1 * bound)
        assert not fits_uniform(drawn, 0.9 * bound)
    for p in model.module.parameters():
        values = p.detach().numpy().ravel()
        assert np.abs(values).max() <= bound
        assert values.size < 30 or fits_uniform(values, bound)


def test_the_initial_values_depend_on_the_key_alone() -> None:
    def make() -> nn.Module:
        return mlp((4,), (6,), 3)

    state = torch.random.get_rng_state()
    one = FlatModel(make, Key(1) / "client" / 0)
    np.testing.assert_array_equal(state, torch.random.get_rng_state())
    torch.rand(5)
    again, other = FlatModel(make, Key(1) / "client" / 0), FlatModel(make, Key(1) / "client" / 1)
    torch.random.set_rng_state(state)
    assert torch.equal(one.flat, again.flat)
    assert one.sha256() == again.sha256() != other.sha256()
    assert not (one.flat == other.flat).any()


def test_layers_of_one_model_are_drawn_apart() -> None:
    model = FlatModel(lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), Key(0))
    a, b = model.flat.view(2, -1)
    assert not (a == b).any()
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(a.numel())


def test_the_digest_follows_every_bit() -> None:
    model = FlatModel(lambda: nn.Linear(3, 2), Key(0))
    before = model.sha256()
    model.flat[5] = model.flat[5].nextafter(torch.tensor(9.0))
    assert model.sha256() != before


def test_the_layout_follows_names_and_shapes_in_order_and_nothing_else() -> None:
    def layout(*layers: tuple[str, nn.Module], seed: int = 0) -> str:
        return FlatModel(lambda: nn.Sequential(OrderedDict(layers)), Key(seed)).layout

    one = layout(("a", nn.Linear(3, 2)), ("b", nn.Linear(2, 3)))
    assert one == layout(("a", nn.Linear(3, 2)), ("b", nn.Linear(2, 3)), seed=1)
    assert one == layout(("a", nn.Linear(3, 2)), ("r", nn.ReLU()), ("b", nn.Linear(2, 3)))
    others = [
        layout(("a", nn.Linear(3, 2)), ("c", nn.Linear(2, 3))),
        layout(("b", nn.Linear(3, 2)), ("a", nn.Linear(2, 3))),
        layout(("a", nn.Linear(2, 3)), ("b", nn.Linear(3, 2))),
        layout(("a", nn.Linear(3, 2)), ("b", nn.Linear(2, 3, bias=False))),
    ]
    assert len({one, *others}) == 5
    wide, tall = (nn.Linear(*sides, bias=False) for sides in ((3, 2), (2, 3)))
    assert layout(("a", wide)) != layout(("a", tall)), "as many elements in another shape"


@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(2, 4), lambda: nn.LayerNorm(4)])
def test_norms_start_as_the_identity(norm: Callable[[], nn.Module]) -> None:
    model = FlatModel(lambda: nn.Sequential(norm(), nn.Linear(4, 2)), Key(0))
    assert model.flat[:8].tolist() == [1.0] * 4 + [0.0] * 4


@pytest.mark.parametrize("settings", [{}, {"track_running_stats": False}, {"affine": False}])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_batch_norm_is_refused(kind: type[nn.Module], settings: dict[str, bool]) -> None:
    with pytest.raises(InputError, match="BatchNorm"):
        FlatModel(lambda: nn.Sequential(nn.Linear(4, 4), kind(4, **settings)), Key(0))


def test_batch_norm_without_state_and_parameters_is_refused_too() -> None:
    with pytest.raises(InputError, match="BatchNorm"):
        FlatModel(
            lambda: nn.Sequential(
                nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)
            ),
            Key(0),
        )


def test_a_layer_without_a_defined_initialisation_is_refused() -> None:
    with pytest.raises(InputError, match="Bilinear"):
        FlatModel(lambda: nn.Bilinear(3, 3, 2), Key(0))


def test_dropout_is_refused_because_its_masks_come_from_a_global_generator():
    with pytest.raises(InputError, match="dropout"):
        FlatModel(lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), Key(1))


def test_a_parameter_shared_by_two_layers_is_refused():
    def tied():
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        return nn.Sequential(first, second)

    with pytest.raises(InputError, match="share a parameter"):
        FlatModel(tied, Key(1))
