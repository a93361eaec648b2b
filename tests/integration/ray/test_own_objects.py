from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv import foreign
from raydpzv.errors import DataError, SpecError
from raydpzv.records.run_folder import RunFolder
from raydpzv.settings import sections

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

X = np.linspace(-1, 1, 60 * 8, dtype=np.float32).reshape(60, 8)
Y = np.arange(60) % 3


class Net(nn.Sequential):
    def __init__(self, outputs: int) -> None:
        super().__init__(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, outputs))


def bottom(shape: tuple[int, ...], embedding: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), embedding))


def absolute(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (scores - y).abs().mean(1)


def largest(scores: np.ndarray, y: np.ndarray) -> dict[str, float]:
    return {"largest": float(abs(scores - y).max())}


LORA = {"rank": 2, "targets": ["0"], "modules_to_save": ["3"]}
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
    "adapters, horizontal": lambda: raydpzv.horizontal(
        Net(3), (X, Y), clients=Y, updates=8, lr=0.1, lora=LORA, resources={"hosts": 2}
    ),
    "adapters, vertical": lambda: raydpzv.vertical(
        bottom,
        [X[:, :3], X[:, 3:]],
        Y,
        updates=12,
        embedding=3,
        batch=16,
        lora={"rank": 1, "targets": ["1"]},
    ),
    "numbers, horizontal": lambda: raydpzv.horizontal(
        "mlp",
        (X, Y / 3),
        clients=Y,
        loss=absolute,
        metrics=largest,
        updates=4,
        every=2,
        resources={"hosts": 2},
    ),
    "numbers, vertical": lambda: raydpzv.vertical(
        "linear",
        [X[:, :3], X[:, 3:]],
        np.stack([Y / 3, X[:, 0]], 1),
        loss=absolute,
        metrics=largest,
        updates=12,
        every=6,
        batch=16,
    ),
}


@pytest.mark.parametrize("kind", SCENARIOS)
def test_own_objects_give_the_same_bits_on_actors(kind):
    scenario = SCENARIOS[kind]()
    here, there = raydpzv.run(scenario), raydpzv.run(scenario, runner="ray")
    assert there.summary["digest"] == here.summary["digest"]
    assert there.summary.get("measures") == here.summary.get("measures")
    assert ("measures" in here.summary) == kind.startswith("numbers")
    for name, values in here.models.items():
        np.testing.assert_array_equal(there.models[name], values)


def test_actors_start_from_the_file_of_weights_or_refuse_another(tmp_path, monkeypatch):
    torch.save({"weight": torch.eye(8)[:3], "bias": torch.zeros(3)}, tmp_path / "first.pt")
    scenario = raydpzv.horizontal(
        lambda: nn.Linear(8, 3),
        (X, Y),
        clients=Y,
        classes=[0, 1, 2],
        weights=tmp_path / "first.pt",
        updates=2,
        lr=0.1,
    )
    there = raydpzv.run(scenario, runner="ray")
    assert there.summary["digest"] == raydpzv.run(scenario).summary["digest"]
    monkeypatch.setattr(
        sections, "file_sha256", lambda path: "0" * 64
    )  # as if this machine had another file
    with pytest.raises(
        DataError, match=r'first.pt" differs on .* copy the same file to every machine'
    ):
        raydpzv.run(scenario, runner="ray")


@pytest.mark.usefixtures("unrendered")
def test_a_comparison_and_a_search_of_own_objects_have_the_same_bits_on_ray(tmp_path):
    scenario = SCENARIOS["vertical"]()
    digest = raydpzv.run(scenario).summary["digest"]
    compared = raydpzv.compare(scenario, tmp_path / "compared", seeds=[0], runner="ray", jobs=1)
    made = [row["run"] for row in compared.runs.to_pylist() if not row["control"]]
    assert RunFolder.open(tmp_path / "compared" / "runs" / made[0]).summary()["digest"] == digest
    found = raydpzv.tune(scenario, {"seed": {"grid": [0]}}, tmp_path / "found", jobs=1)
    assert found.table["digest"].to_pylist() == [digest]


@pytest.mark.parametrize("verb", ["compare", "tune"])
def test_an_object_that_cannot_travel_is_refused_before_anything_is_written(tmp_path, verb):
    lock = threading.Lock()

    def bound(outputs: int) -> nn.Module:
        with lock:
            return nn.Linear(8, outputs)

    unsendable = raydpzv.horizontal("mlp", (X, Y), clients=3, updates=2)
    monitored = unsendable.model_copy(
        update={"model": unsendable.model.model_copy(update={"kind": "here:bound-1"})}
    )
    foreign._OBJECTS["here:bound-1"] = bound
    rest, more = {
        "compare": ((), {"runner": "ray"}),
        "tune": (({"seed": {"grid": [0]}},), {}),
    }[verb]
    with pytest.raises(SpecError, match="cannot be sent to another process"):
        getattr(raydpzv, verb)(monitored, *rest, out=tmp_path / "none", **more)
    assert not (tmp_path / "none").exists()
