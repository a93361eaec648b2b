"""The loops that the benchmark compares with train the models that they stand for; the benchmark
runs.
"""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raydpzv.experiment.local_session import one_thread
from tests.helpers.benchmarks import figures, module

METHODS = ("dpzv", "vafl", "zoo_vfl", "czofo", "frozen")


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch):
    return module("small_loops", monkeypatch), module("small_models", monkeypatch)


@pytest.mark.parametrize("kind", ["NumpyParties", "TorchParties"])
@pytest.mark.parametrize("method", METHODS)
def test_a_loop_learns(loops, method: str, kind: str) -> None:
    small_loops, small_models = loops
    with one_thread("torch"), torch.random.fork_rng():
        torch.set_rng_state(torch.Generator().manual_seed(1).get_state())
        parties = getattr(small_loops, kind)(small_models.experiment(method, 1))
        losses = []
        for _ in islice(parties.updates(), 300):
            ids = np.arange(200)
            values = parties.table[ids, 0]
            with torch.no_grad():
                losses.append(float(parties.losses(ids, 0, values).mean()))
    assert np.mean(losses[-20:]) < 0.93 * np.mean(losses[:20])


def test_numpys_gradients_are_autograds(loops) -> None:
    small_loops, _ = loops
    random = np.random.Generator(np.random.Philox(2))
    layers = small_loops.TwoLayers(5, 7, 3, random)
    x, delta = (random.standard_normal((6, n)).astype(np.float32) for n in (5, 3))
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    nn.utils.vector_to_parameters(torch.tensor(layers.flat), module.parameters())
    inputs = torch.tensor(x, requires_grad=True)
    (module(inputs) * torch.tensor(delta)).sum().backward()
    gradient, of_inputs = layers.backward(x, layers.forward(x)[0], delta)
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    assert gradient == pytest.approx(expected.numpy(), abs=1e-5)
    assert of_inputs == pytest.approx(inputs.grad.numpy(), abs=1e-5)


def test_the_benchmark_finishes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("--quick", "--methods", "frozen", "vafl")
    written = figures("small_models", monkeypatch, tmp_path, *words, COUNTS={True: (8, 16)})
    found = written["microseconds"]
    assert found.keys() == {"frozen", "vafl"}
    assert all(us > 0 for method in found.values() for us in method.values())
    assert len(found["vafl"]) == 6
    assert {"decomfl", "fedavg"} < written["rounds"].keys()
    assert all(us > 0 for method in written["rounds"].values() for us in method.values())
