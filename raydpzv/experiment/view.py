"""The newest model of a horizontal run, for whoever wants to look at it: scores, snapshots, final parameters."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from raydpzv.experiment.federation import Federation
from raydpzv.experiment.plan import MODEL
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.decomfl_clients import Following
from raydpzv.methods.fedavg import FedAvgServer
from raydpzv.methods.roles import Metrics
from raydpzv.sim.host import CrewHost


class View(Protocol):
    """A way to the model after so many updates; versions are asked for in ascending order."""

    def evaluate(self, version: int) -> Metrics:
        """Score the model on the held-out rows."""
        ...

    def state(self, version: int) -> np.ndarray:
        """Return parameters and momentum, if there is one: float32 [1 or 2, d]."""
        ...


class CrewView:
    """Looks at the replica of clients in this process, after the work they have taken at earlier models."""

    def __init__(self, federation: Federation, crew: Following, host: CrewHost, device: str) -> None:
        self._crew, self._host = crew, host
        self._held_out = federation.held_out(device)

    def evaluate(self, version: int) -> Metrics:
        """Score the model on the held-out rows."""
        self._host.settle(version)
        return self._crew.evaluate(version, *self._held_out)

    def state(self, version: int) -> np.ndarray:
        """Return parameters and momentum, if there is one."""
        self._host.settle(version)
        return self._crew.state(version)


class ServerView:
    """Looks at the weights that the server sends; they are the newest, whatever version is asked for."""

    def __init__(self, federation: Federation, server: FedAvgServer, device: str) -> None:
        self._server, self._device = server, device
        self._objective = federation.objective(device)
        self._held_out = federation.held_out(device)

    def evaluate(self, version: int) -> Metrics:
        """Score the model on the held-out rows."""
        x = torch.from_numpy(self._server.parameters()).to(self._device)
        return self._objective.evaluate(x, *self._held_out)

    def state(self, version: int) -> np.ndarray:
        """Return the weights."""
        return self._server.parameters()[None]


class Snapshots:
    """Keeps the model beside the ledger every so many updates, so that a rebuild need not begin at the start."""

    def __init__(self, ledger: Ledger | None, every: int | None, view: View) -> None:
        self._ledger, self._every, self._view = ledger, every, view
        self._kept = ledger.version if ledger else 0

    def look(self, version: int) -> None:
        """Keep the model at `version` if it is time."""
        if self._ledger is None or self._every is None or version // self._every == self._kept // self._every:
            return
        self._ledger.keep(MODEL, version, {"state": self._view.state(version)})
        self._kept = version
