"""Dense networks as numbers: the first parameters, sizes and layouts of the torch modules of the
same names.
"""

import math
import sys

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

from raydpzv.engine import dense_kernel
from raydpzv.engine.dense import dense_bottom, dense_head, dense_whole
from raydpzv.keys import Key
from raydpzv.models.bottoms import bottom
from raydpzv.models.flat import FlatModel
from raydpzv.models.whole import whole
from raydpzv.registry import BOTTOMS, HEADS, WHOLE_MODELS

KEY = Key(5) / "model"


@pytest.mark.parametrize("name", ["mlp", "linear"])
@pytest.mark.parametrize("hidden", [(), (7,), (6, 3, 5)])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 4, 2)])
def test_a_bottom_is_the_torch_modules(
    name: str, hidden: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    found = dense_bottom(name, shape, hidden, 3)
    model = FlatModel(lambda: BOTTOMS[name](shape, hidden, 3), KEY)
    assert (found.size, found.layout) == (model.size, model.layout)
    assert np.array_equal(found.initial(KEY), model.flat.numpy())
    assert not np.array_equal(found.initial(KEY / 1), model.flat.numpy())


def test_a_last_layer_of_zeros_is_the_torch_models() -> None:
    found = dense_bottom("mlp", (5,), (7, 4), 3, "zero_last")
    model = FlatModel(lambda: BOTTOMS["mlp"]((5,), (7, 4), 3), KEY)
    drawn = model.flat.clone()
    model.zero_last()
    assert np.array_equal(found.initial(KEY), model.flat.numpy())
    assert torch.equal(model.flat[: -(4 + 1) * 3], drawn[: -(4 + 1) * 3])
    assert not model.flat[-(4 + 1) * 3 :].any()


@pytest.mark.parametrize("name", sorted(BOTTOMS))
def test_a_bottom_whose_last_layer_is_zero_embeds_everything_as_zero(name: str) -> None:
    shape, vocabulary = {"lstm": ((6, 4), None), "transformer": ((6,), 16)}.get(
        name, ((1, 8, 8), None)
    )
    hidden = {"lstm": (3,), "transformer": (8,), "resnet18": (8, 8, 8, 8)}.get(name, (5,))
    model = FlatModel(lambda: bottom(name, shape, hidden, 3, vocabulary), KEY)
    x = torch.ones((2, *shape), dtype=torch.long if vocabulary else torch.float32)
    assert model.module(x).abs().max() > 0, "control"
    model.zero_last()
    assert not model.module(x).any()


@pytest.mark.parametrize(("kind", "hidden"), [("logistic", (7,)), ("mlp", (6, 3))])
def test_a_whole_model_is_the_torch_modules(kind: str, hidden: tuple[int, ...]) -> None:
    found, model = (
        dense_whole(kind, (2, 3), hidden, 4),
        FlatModel(lambda: whole(kind, (2, 3), hidden, 4), KEY),
    )
    assert (found.size, found.layout) == (model.size, model.layout)
    assert np.array_equal(found.initial(KEY), model.flat.numpy())


@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_head_is_the_torch_modules(name: str, hidden: tuple[int, ...]) -> None:
    found, model = (
        dense_head(name, 3, 4, hidden, 4),
        FlatModel(lambda: HEADS[name](3, 4, hidden, 4), KEY),
    )
    assert (found.size, found.layout) == (model.size, model.layout)
    assert np.array_equal(found.initial(KEY), model.flat.numpy())


def test_other_models_are_not_dense() -> None:
    assert not [
        name for name in set(BOTTOMS) - {"mlp", "linear"} if dense_bottom(name, (4, 4), (8,), 2)
    ]
    assert {kind for kind in WHOLE_MODELS if dense_whole(kind, (4, 4), (8,), 2)} == {
        "mlp",
        "logistic",
    }
    assert dense_head("attention", 3, 4, (6,), 4) is None


# exp and log against mpmath.

mp.prec = 200
EPSILON = 2.0**-52


def drawn(low: float, high: float, count: int) -> list[float]:
    return (Key(1) / "points").generator().uniform(low, high, count).tolist()


def test_exp_is_within_two_units_of_the_last_place() -> None:
    points = [
        *drawn(-708, 709, 3000),
        *drawn(-1, 1, 1000),
        0.0,
        -0.0,
        1e-300,
        -1e-300,
        -708.0,
        709.0,
    ]
    # where k changes, the remainder is largest
    edges = [(n + 0.5) * math.log(2) for n in range(-1000, 1000, 7)]
    for x in [*points, *(np.nextafter(e, s) for e in edges for s in (-1e9, 1e9))]:
        true = mp.exp(mpf(x))
        assert abs((mpf(dense_kernel.exp(x)) - true) / true) <= 2 * EPSILON, x


def test_log_is_within_two_units_of_the_last_place() -> None:
    near_one = [1 + n * EPSILON for n in (1, 2, 3, 1000, 10**9)] + [
        1 - n * EPSILON / 2 for n in (1, 3, 10**9)
    ]
    points = [math.exp(x) for x in drawn(-708, 709, 3000)] + drawn(0.5, 2.0, 2000) + near_one
    for x in [*points, 5e-324, 2.0**-1022, sys.float_info.max, math.sqrt(0.5), math.sqrt(2)]:
        true = mp.log(mpf(x))
        assert abs((mpf(dense_kernel.log(x)) - true) / true) <= 2 * EPSILON, x
    assert dense_kernel.log(1.0) == 0.0


def test_edges() -> None:
    exp, log = dense_kernel.exp, dense_kernel.log
    assert [exp(0.0), exp(-0.0), exp(5e-324), exp(-5e-324)] == [1.0] * 4
    assert [exp(-math.inf), exp(-1e300), exp(-709.0)] == [0.0] * 3
    assert [exp(math.inf), exp(1e300), exp(710.0)] == [math.inf] * 3
    assert [log(0.0), log(-0.0), log(math.inf)] == [-math.inf, -math.inf, math.inf]
    assert all(math.isnan(x) for x in (exp(math.nan), log(math.nan), log(-1.0), log(-math.inf)))


def test_both_never_decrease() -> None:
    for name, low, high in (("exp", -10.0, 10.0), ("log", 0.1, 10.0)):
        function = getattr(dense_kernel, name)
        values = [
            function(x) for x in np.linspace(low, high, 20_001).astype(np.float32).astype(float)
        ]
        assert values == sorted(values)
    tiny = [dense_kernel.exp(np.float64(x)) for x in np.float32([-1e-45, 0.0, 1e-45, 1e-38])]
    assert tiny == sorted(tiny)
