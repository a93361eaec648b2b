from typing import Any

import pytest

from raydpzv.engine.choice import (
    SPLIT_BY_DIRECTIONS,
    SPLIT_BY_GRADIENTS,
    WHOLE_MODELS,
    Compilable,
    choose,
)
from raydpzv.engine.dense import dense_bottom, dense_head
from raydpzv.errors import SpecError

SMALL = {
    "the bottom": dense_bottom("mlp", (8,), (4,), 2),
    "the head": dense_head("mlp", 4, 2, (8,), 3),
}


@pytest.mark.parametrize("family", [SPLIT_BY_DIRECTIONS, SPLIT_BY_GRADIENTS, WHOLE_MODELS])
def test_auto_takes_compiled_kernels_while_every_part_is_small(family: Compilable) -> None:
    edge = dense_bottom("linear", (family.most - 1,), (), 1)
    assert edge.size == family.most
    assert choose("auto", SMALL | {"edge": edge}, family) == "compiled"
    beyond = dense_bottom("linear", (family.most,), (), 1)
    assert choose("auto", SMALL | {"beyond": beyond}, family) == "torch"
    assert choose("compiled", SMALL | {"beyond": beyond}, family) == "compiled"
    assert choose("auto", SMALL | {"a cnn": None}, family) == "torch"
    assert choose("auto", SMALL, family, accelerator=True) == "torch"
    assert choose("auto", SMALL, family, engines=("torch",)) == "torch"
    assert choose("torch", SMALL, family) == "torch"


@pytest.mark.parametrize("family", [SPLIT_BY_DIRECTIONS, SPLIT_BY_GRADIENTS])
def test_large_batches_of_large_models_go_to_torch(family: Compilable) -> None:
    network = dense_bottom("linear", (family.most - 1,), (), 1)
    assert family.work is not None
    rows = family.work // family.most
    assert choose("auto", {"a bottom": network}, family, rows=rows) == "compiled"
    assert choose("auto", {"a bottom": network}, family, rows=rows + 1) == "torch"
    assert choose("auto", SMALL, family, rows=rows + 1) == "compiled"


WITH_CNN = SMALL | {"a cnn": None}


@pytest.mark.parametrize(
    ("parts", "family", "terms", "said"),
    [
        (
            WITH_CNN,
            SPLIT_BY_GRADIENTS,
            {},
            r'cannot run a cnn; it runs model\.bottom = "mlp" or "linear"',
        ),
        (
            WITH_CNN,
            WHOLE_MODELS,
            {},
            r'cannot run a cnn; it runs model\.kind = "mlp" or "logistic" on CPUs',
        ),
        (
            SMALL,
            SPLIT_BY_GRADIENTS,
            {"accelerator": True},
            r"cannot run on a GPU \(resources\.client_gpus",
        ),
        (
            SMALL,
            WHOLE_MODELS,
            {"accelerator": True},
            r"cannot run on a GPU \(resources\.host_gpus",
        ),
        (SMALL, SPLIT_BY_GRADIENTS, {"engines": ("torch",)}, "cannot run this method"),
    ],
)
def test_compiled_where_it_cannot_be_says_what_it_runs(
    parts: dict[str, Any], family: Compilable, terms: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        choose("compiled", parts, family, **terms)
