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


def test_compiled_where_it_cannot_be_says_what_it_runs() -> None:
    with pytest.raises(
        SpecError, match=r'cannot run a cnn; it runs model\.bottom = "mlp" or "linear"'
    ):
        choose("compiled", SMALL | {"a cnn": None}, SPLIT_BY_GRADIENTS)
    with pytest.raises(
        SpecError, match=r'cannot run a cnn; it runs model\.kind = "mlp" or "logistic" on CPUs'
    ):
        choose("compiled", SMALL | {"a cnn": None}, WHOLE_MODELS)
    for family, share in (
        (SPLIT_BY_GRADIENTS, r"resources\.client_gpus"),
        (WHOLE_MODELS, r"resources\.host_gpus"),
    ):
        with pytest.raises(SpecError, match=rf"cannot run on a GPU \({share}"):
            choose("compiled", SMALL, family, accelerator=True)
    with pytest.raises(SpecError, match="cannot run this method"):
        choose("compiled", SMALL, SPLIT_BY_GRADIENTS, engines=("torch",))
