"""Several directions a bᵀ in one forward call: near the calls at moved weights, without copies of
them.
"""

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.split_model import BottomTraining
from raydpzv.engine.torch_engine import TorchBottom
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.keys import Key
from raydpzv.models.flat import FlatModel
from raydpzv.zo.directions import Direction
from raydpzv.zo.joint_forward import JointForward
from raydpzv.zo.perturbation import WholePerturbation
from raydpzv.zo.spans import Group, Shapes, spans_of
from raydpzv.zo.update import Rule

AMOUNT = 0.1


class Reader(nn.Module):
    """Tied weights, a norm, a layer without biases, one of one output, keywords, and tokens before
    records.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(300, 48, padding_idx=0), nn.LayerNorm(48)
        self.mixed = nn.Linear(48, 48, bias=False)
        self.tied = nn.Linear(48, 300)
        self.tied.weight = self.table.weight
        self.last, self.gate = nn.Linear(300, 3), nn.Linear(300, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first = self.norm(self.table(ids)).transpose(0, 1)
        mixed = self.mixed(input=first).relu().mean(0)
        scores = self.tied(mixed).tanh()
        return self.last(scores) * self.gate(scores).sigmoid()


def stack() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 40), nn.ReLU(), nn.Linear(40, 5)
    )


def adapted(width: int) -> nn.Module:
    """Return layers of 16,896 numbers that learn beside a frozen layer of width² weights."""
    frozen = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 64)).requires_grad_(False)
    return nn.Sequential(
        nn.Linear(64, 128), nn.Linear(128, 66), nn.Linear(66, width).requires_grad_(False), frozen
    )


class Recurrent(nn.Module):
    """An LSTM, which torch cannot map over directions."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 900), nn.Linear(900, 20)
        self.cell = nn.LSTM(20, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * self.cell(self.narrow(self.wide(x)))[0][:, -1]


class Sideways(nn.Module):
    """Reads the weights of a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 200), nn.Linear(200, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.first(x), self.second.weight)


def numbers(*shape: int) -> torch.Tensor:
    return torch.from_numpy((Key(5) / "x").generator().standard_normal(shape).astype(np.float32))


CASES = {
    "reader": (Reader, torch.arange(42).view(6, 7)),
    "stack": (stack, numbers(6, 8, 8)),
    "one by one": (Recurrent, numbers(6, 5, 8)),
}


def directions(shapes: Shapes, size: int, groups=()) -> list[Direction]:
    spans = spans_of("rank_one", groups, shapes)
    return [Direction(seed, size, "rank_one", spans) for seed in (3, 4, 9)]


@pytest.mark.parametrize("groups", [(), (("*.weight", Group(smoothing=0.3)),)])
@pytest.mark.parametrize("case", CASES)
def test_scores_are_near_those_at_moved_weights(case, groups):
    make, x = CASES[case]
    model = FlatModel(make, Key(2))
    before, plain = model.flat.clone(), model.module(x)
    us = directions(model.shapes, model.size, groups)
    joint = JointForward(model.module, model.offsets)
    assert joint.usable(us, x)
    points = joint.points(us, AMOUNT)
    found, wanted = joint.scores(points, x), []
    whole = WholePerturbation(model.module, model.flat, model.offsets)
    for u in us:
        with torch.no_grad(), whole.at(u, AMOUNT):
            wanted.append(model.module(x))
    assert torch.allclose(found, torch.stack(wanted), rtol=0, atol=2e-5)
    assert (found - found.roll(1, 0)).abs().max() > 1e-2, "the control: directions matter"
    assert torch.equal(model.flat, before)
    assert torch.equal(model.module(x), plain)
    assert sum(t.numel() for t in points.moved.values()) < 0.1 * len(us) * model.size


def test_models_that_it_does_not_help_are_left_to_others():
    def usable(make, x, law="rank_one"):
        model = FlatModel(make, Key(2))
        us = directions(model.shapes, model.size)
        us = us if law == "rank_one" else [Direction(1, model.size, law)]
        return JointForward(model.module, model.offsets).usable(us, x)

    image = numbers(2, 3, 8, 8)
    assert not usable(
        lambda: nn.Sequential(nn.Conv2d(3, 300, 3), nn.Flatten(), nn.Linear(10800, 2)), image
    )
    assert not usable(Sideways, numbers(2, 64))
    assert not usable(lambda: nn.Linear(64, 10), numbers(2, 64)), "small"
    assert not usable(lambda: adapted(900), numbers(2, 64)), "adapters"
    assert usable(lambda: adapted(90), numbers(2, 64)), "control"
    assert not usable(stack, numbers(2, 64), "gaussian")
    assert usable(stack, numbers(2, 64))


def objective(make, x: torch.Tensor) -> TorchObjective:
    return TorchObjective(make, KeptRows(x.numpy(), np.arange(len(x)) % 3, "cpu"))


@pytest.mark.parametrize("case", CASES)
def test_losses_of_clients_are_near_those_at_moved_points_and_depend_on_no_other(case):
    make, x = CASES[case]
    f = objective(make, x)
    at, us = f.initial(Key(2)), directions(f.shapes, f.size)
    rows = [np.array([0, 1, 2]), np.array([5]), np.array([3, 4])]
    found = f.losses(at, us, AMOUNT, rows)
    points = [at + AMOUNT * torch.from_numpy(u.values()) for u in us]
    wanted = np.array([[f.loss(point, batch) for point in points] for batch in rows])
    assert np.abs(found - wanted).max() < 2e-5
    assert np.ptp(wanted, axis=1).min() > 1e-3
    for client, batch in enumerate(rows):
        assert np.array_equal(f.losses(at, us, AMOUNT, [batch])[0], found[client])
    assert np.array_equal(f.twin().losses(at, us, AMOUNT, rows), found)


def test_a_large_model_takes_its_directions_one_by_one(monkeypatch):
    make, x = CASES["stack"]
    f, rows = objective(make, x), [np.arange(6)]
    at, us = f.initial(Key(2)), directions(f.shapes, f.size)
    together = f.losses(at, us, AMOUNT, rows)
    monkeypatch.setattr("raydpzv.zo.joint_forward._LARGE", 100)
    alone = f.losses(at, us, AMOUNT, rows)
    assert np.allclose(alone, together, rtol=0, atol=1e-6)
    assert np.array_equal(alone[:, :1], f.losses(at, us[:1], AMOUNT, rows))


def test_embeddings_of_a_bottom_model_are_near_those_at_moved_weights():
    x, rule = numbers(6, 64), Rule("rank_one")
    model = FlatModel(stack, Key(2))
    bottom = TorchBottom(model, x, x, BottomTraining(rule, clip=0.2))
    ids, seeds = np.array([4, 1, 2]), np.array([3, 4, 9], np.uint64)
    found = bottom.embed_along(ids, seeds, (0.0, AMOUNT))
    assert found.shape == (2, 3, 3, 5)
    assert np.abs(np.linalg.norm(found, axis=-1)).max() < 0.2 + 1e-5
    whole = WholePerturbation(model.module, model.flat, model.offsets)
    for p, u in enumerate(directions(model.shapes, model.size)):
        assert np.array_equal(found[0, p], bottom.embed(ids))
        with whole.at(u, AMOUNT):
            assert np.abs(found[1, p] - bottom.embed(ids)).max() < 2e-5
        assert np.abs(found[1, p] - found[0, p]).max() > 1e-3
