"""A user's own model and data on actors that cannot import them."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import raydpzv

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

X = np.linspace(-1, 1, 60 * 8, dtype=np.float32).reshape(60, 8)
Y = np.arange(60) % 3


class Net(nn.Sequential):
    def __init__(self, outputs: int) -> None:
        super().__init__(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, outputs))


def bottom(shape: tuple[int, ...], embedding: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), embedding))


SCENARIOS = {
    "horizontal": lambda: raydpzv.horizontal(
        Net, (X, Y), clients=Y, updates=8, lr=0.1, resources={"hosts": 2}
    ),
    "vertical": lambda: raydpzv.vertical(
        bottom,
        {"a": X[:, :3], "b": X[:, 3:].reshape(60, 5, 1)},
        Y,
        head=lambda classes: nn.Linear(6, classes),
        updates=20,
        embedding=3,
        batch=16,
    ),
}


@pytest.mark.parametrize("kind", SCENARIOS)
def test_own_objects_give_the_same_bits_on_actors(kind):
    scenario = SCENARIOS[kind]()
    here, there = raydpzv.run(scenario), raydpzv.run(scenario, runner="ray")
    assert there.summary["digest"] == here.summary["digest"]
    for name, values in here.models.items():
        np.testing.assert_array_equal(there.models[name], values)
