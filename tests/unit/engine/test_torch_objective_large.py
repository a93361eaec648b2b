"""Large models have no scratch copy: they are perturbed layer by layer, to the same bits."""

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.engine import torch_objective as under_test
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.keys import Key
from raydpzv.zo.directions import Direction

DRAW = (Key(0) / "large").generator()
IDS = torch.from_numpy(DRAW.integers(0, 30, (24, 5)))
Y = torch.from_numpy(DRAW.integers(0, 3, 24))
BATCHES = [np.arange(4), np.arange(6, 13), np.array([1])]


def words() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(30, 4),
        nn.Linear(4, 6),
        nn.GELU(),
        nn.LayerNorm(6),
        nn.Flatten(),
        nn.Linear(30, 3),
    )


def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[TorchObjective, TorchObjective]:
    small = TorchObjective(words, KeptRows(IDS, Y))
    monkeypatch.setattr(under_test, "_LARGE", 0)
    return small, TorchObjective(words, KeptRows(IDS, Y))


def test_a_large_model_has_the_bits_of_a_copied_one(monkeypatch):
    small, large = pair(monkeypatch)
    assert (small.size, small.layout) == (large.size, large.layout)
    at, other = (small.initial(Key(seed)) for seed in (1, 2))
    assert torch.equal(large.initial(Key(1)), at)
    before, directions = at.clone(), [Direction(seed, small.size, "gaussian") for seed in (3, 4)]
    for x in (at, other, at):
        for amount in (1e-3, -0.2):
            np.testing.assert_array_equal(
                large.losses(x, directions, amount, BATCHES),
                small.losses(x, directions, amount, BATCHES),
            )
        assert large.loss(x, BATCHES[0]) == small.loss(x, BATCHES[0])
        assert large.evaluate(x, IDS, Y) == small.evaluate(x, IDS, Y)
        (loss, gradient), (wanted, slope) = (
            large.gradient(x, BATCHES[1]),
            small.gradient(x, BATCHES[1]),
        )
        assert loss == wanted
        assert torch.equal(gradient, slope)
    assert torch.equal(at, before)
    assert not np.array_equal(
        small.losses(at, directions, 0.2, BATCHES), small.losses(other, directions, 0.2, BATCHES)
    )


def test_a_large_model_holds_no_vector_of_its_own(monkeypatch):
    large = pair(monkeypatch)[1]
    assert sum(p.numel() for p in large._parameters) == 0
    at = large.initial(Key(1))
    large.loss(at, BATCHES[0])
    first, last = large._parameters[0], large._parameters[-1]
    assert first.data_ptr() == at.data_ptr()
    assert last.untyped_storage().data_ptr() == at.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "method", [{}, {"local_steps": 3}, {"method": "mezo"}, {"method": "fedavg", "local_steps": 2}]
)
def test_a_run_of_a_large_model_has_the_same_bits(monkeypatch, method):
    settings = {
        "clients": 1 if method.get("method") == "mezo" else 2,
        "updates": 3,
        "batch": 4,
        "classes": [0, 1, 2],
    }
    scenario = raydpzv.horizontal(words, (IDS, Y), **settings, **method)
    whole = raydpzv.run(scenario)
    monkeypatch.setattr(under_test, "_LARGE", 0)
    assert raydpzv.run(scenario).summary["digest"] == whole.summary["digest"]
