"""Dense networks as numbers: the first parameters, sizes and layouts of the torch modules of the same names."""

from __future__ import annotations

import numpy as np
import pytest

from raydpzv.engine.dense import dense_bottom, dense_head, dense_whole
from raydpzv.keys import Key
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
