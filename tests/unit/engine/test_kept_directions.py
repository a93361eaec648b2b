"""Directions that torch's bottoms keep from an upload to its step: as many are made, and the bits
stay.
"""

from typing import Any

import numpy as np
import pytest
import torch

from raydpzv.engine import kept_directions as under_test
from raydpzv.engine.kept_directions import TorchDirections
from raydpzv.engine.split_model import BottomTraining
from raydpzv.engine.torch_engine import TorchBottom
from raydpzv.keys import Key
from raydpzv.models.bottoms import cnn
from raydpzv.models.flat import FlatModel
from raydpzv.zo.directions import LAWS, Direction
from raydpzv.zo.update import Descent, Rule, Step, Steps

KEY = Key(23)
X = torch.from_numpy((KEY / "data").generator().standard_normal((12, 1, 9, 8)).astype(np.float32))
IDS = np.arange(3, 9, dtype=np.int32)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the directions that are made to be kept, in order."""
    seeds: list[int] = []
    make = under_test._make

    def counted(room: np.ndarray, seed: Any, law: int) -> Any:
        seeds.append(int(seed))
        return make(room, seed, law)

    monkeypatch.setattr(under_test, "_make", counted)
    return seeds


def bottom(rule: Rule) -> TorchBottom:
    model = FlatModel(lambda: cnn((1, 9, 8), (4, 12), 5), KEY / "client")
    return TorchBottom(model, X, X, BottomTraining(rule))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("count", [1, 3])
def test_an_update_makes_each_direction_once(
    law: Any, momentum: float, count: int, made: list[int]
) -> None:
    kept, plain = (
        bottom(Rule(law, momentum)),
        FlatModel(lambda: cnn((1, 9, 8), (4, 12), 5), KEY / "client"),
    )
    descent, uploads = Descent(plain.flat, Rule(law, momentum)), []
    for n in range(3):
        seeds = [n + 10 * p for p in range(count)]
        found = kept.embed_along(IDS, seeds, (0.1, 0.0, -0.1))
        for p, seed in enumerate(seeds):
            for a, amount in enumerate((0.1, 0.0, -0.1)):
                moved = plain.flat.numpy().copy()
                Direction(seed, plain.size, law).add_to(torch.from_numpy(moved), amount)
                with torch.no_grad(), plain.at(moved):
                    wanted = plain.module(X[3:9]).numpy()
                np.testing.assert_array_equal(found[a, p], wanted)
        step = Steps.of(Step(seeds, [0.3 - p for p in range(count)], 0.01))
        kept.descend(step)
        descent.apply(step)
        np.testing.assert_array_equal(kept.parameters(), plain.flat.numpy())
        uploads += seeds
    assert made == uploads


def test_more_than_the_limit_is_made_again(
    monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    def stepped(limit: int) -> tuple[bytes, str]:
        monkeypatch.setattr(under_test, "TORCH_FLOATS", limit)
        of = bottom(Rule("sphere", 0.9))
        found = of.embed_along(IDS, [4, 5], (0.1, -0.1))
        of.descend(Steps.of(Step([4, 5], [0.3, 0.2], 0.01)))
        return found.tobytes(), of.sha256()

    size = bottom(Rule()).size
    wanted = stepped(2 * size)
    assert made == [4, 5]
    assert stepped(2 * size - 1) == wanted
    assert made == [4, 5]


@pytest.mark.parametrize(
    "rule", [Rule("gaussian", 0.5, damped=True), Rule("gaussian", optimizer="signsgd")]
)
def test_rules_beside_plain_descent_keep_none(rule: Rule, made: list[int]) -> None:
    x, y = torch.ones(100), torch.ones(100)
    ours, theirs = TorchDirections(Descent(x, rule)), Descent(y, rule)
    assert [type(u) for u in ours.of(np.array([7], np.uint64))] == [Direction]
    step = Steps.of(Step([7], [0.3], 0.1))
    ours.descend(step)
    theirs.apply(step)
    assert torch.equal(x, y)
    assert made == []


def test_a_step_along_other_seeds_makes_its_own_directions() -> None:
    x, y = torch.ones(100), torch.ones(100)
    ours, theirs = TorchDirections(Descent(x, Rule("sphere", 0.9))), Descent(y, Rule("sphere", 0.9))
    ours.of(np.array([7], np.uint64))
    for steps in (
        Steps.of(Step([8], [0.3], 0.1)),
        Steps.of(Step([7], [0.3], 0.1), Step([7], [0.1], 0.2)),
    ):
        ours.descend(steps)
        theirs.apply(steps)
    assert torch.equal(x, y)
