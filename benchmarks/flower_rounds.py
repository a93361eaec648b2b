"""Rounds of FedAvg by Flower's simulation, for `fedavg_round.py --flower-python`: imported by a
Python that has Flower.

Needs flwr with its simulation extra, torch and numpy, and nothing of this program. $CASE is a
folder: case.json (rounds, rounds that are left out, cohort, batch, local steps, step size),
network.pt (torch's own layers, the model to start from), rows.npz (x, y, whose: each row's client).
`main` prints the CPU seconds of a round, of all its processes.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from processes import Census
from torch.nn.functional import cross_entropy


@cache
def case() -> dict[str, Any]:
    """Return the numbers of the case."""
    found: dict[str, Any] = json.loads((Path(os.environ["CASE"]) / "case.json").read_text())
    return found


@cache
def parts() -> tuple[Any, torch.Tensor, torch.Tensor, np.ndarray]:
    """Return network, features, labels and each row's client, read once in every process."""
    torch.set_num_threads(1)
    folder = Path(os.environ["CASE"])
    rows = np.load(folder / "rows.npz")
    network = torch.load(folder / "network.pt", weights_only=False)
    return network, torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"]), rows["whose"]


class Trainer(NumPyClient):  # type: ignore[misc]
    """A client that takes local steps of SGD."""

    def __init__(self, client: int) -> None:
        self._client = client

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        """Train from these weights; return weights and rows."""
        network, x, y, whose = parts()
        with torch.no_grad():
            for p, values in zip(network.parameters(), parameters, strict=True):
                p.copy_(torch.tensor(values))
        sgd = torch.optim.SGD(network.parameters(), lr=case()["lr"])
        held = torch.from_numpy(np.flatnonzero(whose == self._client))
        for _ in range(case()["steps"]):
            ids = held[torch.randperm(len(held))[: case()["batch"]]]
            sgd.zero_grad()
            cross_entropy(network(x[ids]), y[ids]).backward()
            sgd.step()
        return weights(network), len(held), {}


def weights(network: Any) -> list[np.ndarray]:
    """Return the parameters."""
    return [p.detach().numpy() for p in network.parameters()]


def client(context: Context) -> Any:
    """Return a client of Flower."""
    return Trainer(int(context.node_config["partition-id"])).to_client()


class Timed(FedAvg):  # type: ignore[misc]
    """FedAvg that notes the CPU time of the rounds that count; it ends where a client fails."""

    seconds = 0.0

    def configure_fit(self, server_round: int, *given: Any, **named: Any) -> Any:
        """Begin a round."""
        if server_round == case()["warm"] + 1:
            self._census = Census.take()
            self._began = sum(self._census.cpu_seconds().values())
        return super().configure_fit(server_round, *given, **named)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """End a round."""
        found = super().aggregate_fit(server_round, results, failures)
        if failures or len(results) != case()["cohort"]:
            raise RuntimeError(
                f"{len(results)} clients of {case()['cohort']} trained: {failures[:1]}"
            )
        if server_round == case()["warm"] + case()["rounds"]:
            Timed.seconds = sum(self._census.cpu_seconds().values()) - self._began
        return found


def server(context: Context) -> ServerAppComponents:
    """Return a server of Flower."""
    network, _, _, whose = parts()
    clients, cohort = int(whose.max()) + 1, case()["cohort"]
    strategy = Timed(
        fraction_fit=cohort / clients,
        fraction_evaluate=0.0,
        min_fit_clients=cohort,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(weights(network)),
    )
    return ServerAppComponents(
        strategy=strategy, config=ServerConfig(num_rounds=case()["warm"] + case()["rounds"])
    )


def main() -> None:
    """Run the rounds and print the figure."""
    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client_fn=client),
        num_supernodes=int(parts()[3].max()) + 1,
        backend_config={
            "init_args": {"address": "local", "num_cpus": 2, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    print(json.dumps({"cpu_seconds": Timed.seconds / case()["rounds"]}))
