"""Dense networks as numbers: the first parameters, sizes and layouts of the torch modules of the same names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
def test_a_bottom_is_the_torch_modules(name: str, hidden: tuple[int, ...], shape: tuple[int, ...]) -> None:
    found = dense_bottom(name, shape, hidden, 3)
    model = FlatModel(lambda: BOTTOMS[name](shape, hidden, 3), KEY)
    assert found is not None
    assert (found.size, found.layout) == (model.size, model.layout)
    assert np.array_equal(found.initial(KEY), model.flat.numpy())
    assert not np.array_equal(found.initial(KEY / 1), model.flat.numpy())


def test_a_last_layer_of_zeros_is_the_torch_models() -> None:
    found = dense_bottom("mlp", (5,), (7, 4), 3, zero_last=True)
    model = FlatModel(lambda: BOTTOMS["mlp"]((5,), (7, 4), 3), KEY)
    drawn = model.flat.clone()
    model.zero_last()
    assert found is not None
    assert np.array_equal(found.initial(KEY), model.flat.numpy())
    assert torch.equal(model.flat[: -(4 + 1) * 3], drawn[: -(4 + 1) * 3])
    assert not model.flat[-(4 + 1) * 3 :].any()


@pytest.mark.parametrize("name", sorted(BOTTOMS))
def test_a_bottom_whose_last_layer_is_zero_embeds_everything_as_zero(name: str) -> None:
    shape, vocabulary = {"lstm": ((6, 4), None), "transformer": ((6,), 16)}.get(name, ((1, 8, 8), None))
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
    assert found is not None
    assert (found.size, found.layout) == (model.size, model.layout)
    assert np.array_equal(found.initial(KEY), model.flat.numpy())


@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_head_is_the_torch_modules(name: str, hidden: tuple[int, ...]) -> None:
    found, model = dense_head(name, 3, 4, hidden, 4), FlatModel(lambda: HEADS[name](3, 4, hidden, 4), KEY)
    assert found is not None
    assert (found.size, found.layout) == (model.size, model.layout)
    assert np.array_equal(found.initial(KEY), model.flat.numpy())


def test_other_models_are_not_dense() -> None:
    assert not [name for name in set(BOTTOMS) - {"mlp", "linear"} if dense_bottom(name, (4, 4), (8,), 2)]
    assert {kind for kind in WHOLE_MODELS if dense_whole(kind, (4, 4), (8,), 2)} == {"mlp", "logistic"}
    assert dense_head("attention", 3, 4, (6,), 4) is None
