"""Rounds of FedAvg by pfl-research, for `fedavg_round.py --pfl-python`: imported by a Python that
has pfl.

Needs pfl, torch and numpy, and nothing of this program. $CASE is a folder as `flower_rounds.py`
describes it. A user's dataset is the local steps' batches in a row, so that every batch is whole;
pfl goes through it once. `main` prints the CPU seconds of a round, of all its processes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy

_NEVER = 10**9


class Trained(nn.Module):
    """A network with the loss that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        found: torch.Tensor = self._network(x)
        return found

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return what is minimised."""
        return cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Return nothing: no one evaluates."""
        return {}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes the CPU time of this process, in which pfl does all, after every round."""

    def __init__(self) -> None:
        self.after: list[float] = []

    def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Metrics]:
        """End a round."""
        self.after.append(time.process_time())
        return False, Metrics()


def main() -> None:
    """Run the rounds and print the figure."""
    torch.set_num_threads(1)
    folder = Path(os.environ["CASE"])
    case, found = json.loads((folder / "case.json").read_text()), np.load(folder / "rows.npz")
    x, y, whose = torch.from_numpy(found["x"]), torch.from_numpy(found["y"]), found["whose"]
    users = list(range(int(whose.max()) + 1))
    held = [torch.from_numpy(np.flatnonzero(whose == user)) for user in users]

    def dataset(user: int) -> PyTorchTensorDataset:
        rows = held[user]
        batches = [rows[torch.randperm(len(rows))[: case["batch"]]] for _ in range(case["steps"])]
        ids = torch.cat(batches)
        return PyTorchTensorDataset((x[ids], y[ids]), user_id=str(user))

    data = FederatedDataset(dataset, get_user_sampler("random", users))
    network = Trained(torch.load(folder / "network.pt", weights_only=False))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(case["warm"] + case["rounds"], _NEVER, case["cohort"], None),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(
            local_batch_size=case["batch"], local_num_epochs=1, local_learning_rate=case["lr"]
        ),
        callbacks=[clock],
    )
    if len(clock.after) != case["warm"] + case["rounds"]:
        raise RuntimeError(
            f"{len(clock.after)} rounds were made of {case['warm'] + case['rounds']}"
        )
    print(
        json.dumps(
            {"cpu_seconds": (clock.after[-1] - clock.after[case["warm"] - 1]) / case["rounds"]}
        )
    )
