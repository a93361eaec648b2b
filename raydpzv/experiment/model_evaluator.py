"""The newest model of a horizontal run, to look at: scores, snapshots, final parameters."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np

from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.initial_model import MODEL, RESUMED
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.roles import LedgerGroup, Metrics, WeightsServer
from raydpzv.sim.executor import GroupExecutor


class ModelEvaluator(Protocol):
    """A way to the model after so many updates; versions are asked for in ascending order."""

    def evaluate(self, version: int) -> Metrics:
        """Score the model on the held-out rows."""
        ...

    def state(self, version: int) -> np.ndarray:
        """Return parameters and momentum, if there is one: float32 [1 or 2, d]."""
        ...


class ReplicaEvaluator:
    """Looks at the replica of clients in this process, after the work they have taken at earlier
    models.
    """

    def __init__(
        self,
        prepared: PreparedHorizontal,
        client_group: LedgerGroup,
        host: GroupExecutor,
        device: str,
    ) -> None:
        self._client_group, self._host = client_group, host
        self._held_out = prepared.held_out(device)

    def evaluate(self, version: int) -> Metrics:
        self._host.run_until(version)
        return self._held_out.scored(partial(self._client_group.evaluate, version))

    def state(self, version: int) -> np.ndarray:
        self._host.run_until(version)
        return self._client_group.state(version)


class WeightsEvaluator:
    """Looks at the weights that the server sends; they are the newest, whatever version is asked
    for.
    """

    def __init__(self, prepared: PreparedHorizontal, server: WeightsServer, device: str) -> None:
        self._server = server
        self._objective = prepared.objective(device)
        self._held_out = prepared.held_out(device)

    def evaluate(self, version: int) -> Metrics:
        x = self._objective.vector(self._server.parameters())
        return self._held_out.scored(partial(self._objective.evaluate, x))

    def state(self, version: int) -> np.ndarray:
        return self._server.parameters()[None]


class SnapshotWriter:
    """Keeps the model beside the ledger every so many updates, so that a rebuild need not begin at
    the start.
    """

    def __init__(self, ledger: Ledger | None, every: int | None, view: ModelEvaluator) -> None:
        self._ledger, self._every, self._view = ledger, every, view
        self._kept = ledger.version if ledger else 0

    def look(self, version: int) -> None:
        """Keep the model at `version` if it is time."""
        if (
            self._ledger is None
            or self._every is None
            or version // self._every == self._kept // self._every
        ):
            return
        self._ledger.save_snapshot(MODEL, version, {"state": self._view.state(version)})
        self._kept = version


_FIRST_RESUMED = 256
"""Updates before the first of them: to replay fewer takes no time."""
_GROWTH = 5 / 4
"""By how much the updates have grown from one to the next: of those of a killed run a tenth is
replayed in the mean.
"""


class ResumePoint:
    """Keeps the newest model beside the ledger as long as a run is at work: resuming replays what
    came after it alone.

    It has the bits of a replay from the start, and the checkpoint does without: it grows with the
    model.
    """

    def __init__(self, ledger: Ledger | None, view: ModelEvaluator) -> None:
        self._ledger, self._view = ledger, view
        self._next, self._last = float(_FIRST_RESUMED), 0

    def begin(self, client_group: LedgerGroup, version: int) -> None:
        """Give fresh clients the newest model up to `version`, if there is one."""
        if self._ledger is None or (found := self._ledger.load_snapshot(RESUMED, version)) is None:
            return
        client_group.adopt(found[1]["state"], found[0])
        self._next, self._last = found[0] * _GROWTH, found[0]

    def look(self, version: int) -> None:
        """Keep the model at `version` if it is time, and the one before, which the last checkpoint
        may need.
        """
        if self._ledger is None or version < self._next:
            return
        self._ledger.save_snapshot(RESUMED, version, {"state": self._view.state(version)})
        self._ledger.forget_snapshots(RESUMED, self._last)
        self._next, self._last = version * _GROWTH, version

    def end(self) -> None:
        """Delete what a run that has come to its end needs no more."""
        if self._ledger is not None:
            self._ledger.forget_snapshots(RESUMED, self._ledger.version + 1)
