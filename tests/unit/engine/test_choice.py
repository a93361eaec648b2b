"""Which engine a run gets, and what "compiled" says where it cannot be."""

from __future__ import annotations

import pytest

from raydpzv.engine.choice import MOST_PARAMETERS, choose
from raydpzv.engine.dense import dense_bottom, dense_head
from raydpzv.errors import SpecError

SMALL = {"the bottom": dense_bottom("mlp", (8,), (4,), 2), "the head": dense_head("mlp", 4, 2, 8, 3)}
EDGE = dense_bottom("linear", (MOST_PARAMETERS - 1,), (), 1)
BEYOND = dense_bottom("linear", (MOST_PARAMETERS,), (), 1)


def test_auto_takes_compiled_kernels_while_every_part_is_small() -> None:
    assert EDGE is not None
    assert EDGE.size == MOST_PARAMETERS
    assert choose("auto", SMALL | {"edge": EDGE}) == "compiled"
    assert choose("auto", SMALL | {"beyond": BEYOND}) == "torch"
    assert choose("auto", SMALL | {"a cnn": None}) == "torch"
    assert choose("auto", SMALL, accelerator=True) == "torch"
    assert choose("auto", SMALL, engines=("torch",)) == "torch"


def test_what_is_asked_for_is_taken_whatever_its_size() -> None:
    assert choose("torch", SMALL) == "torch"
    assert choose("compiled", SMALL | {"beyond": BEYOND}) == "compiled"


def test_compiled_where_it_cannot_be_says_what_it_runs() -> None:
    with pytest.raises(SpecError, match=r'cannot run a cnn; it runs model\.bottom = "mlp" or "linear"'):
        choose("compiled", SMALL | {"a cnn": None})
    with pytest.raises(SpecError, match="cannot run on a GPU"):
        choose("compiled", SMALL, accelerator=True)
    with pytest.raises(SpecError, match="cannot run this method"):
        choose("compiled", SMALL, engines=("torch",))
