"""Clients around one replica that follows the ledger, and the estimates that they make from it."""

# M clients, K local steps, P perturbations

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import numpy as np

from raydpzv.engine.objective import Objective
from raydpzv.methods.descriptor import ClientGroupParts
from raydpzv.methods.horizontal.seeded import SeededSettings, client_seeds, round_seeds
from raydpzv.methods.replica import Replica, UpdateSource
from raydpzv.methods.roles import Metrics, Order, Upload
from raydpzv.wire.seeds import PulledModel, Tail
from raydpzv.zo.directions import Direction
from raydpzv.zo.vectors import Vector


class LocalWork:
    """Work of clients at one model, which is left as it was; a subclass defines it (`_share`).

    objectives: one per thread, all on the same data; the number of threads moves no bits.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives

    def work(self, orders: Sequence[Order], replica: Replica) -> list[Upload]:
        """Return the uploads of clients that all work at `replica`."""
        shares = [orders[i :: len(self._objectives)] for i in range(len(self._objectives))]
        busy = [(o, share) for o, share in zip(self._objectives, shares, strict=True) if share]
        if len(busy) == 1:
            done = [self._share(busy[0][0], busy[0][1], replica)]
        else:
            with ThreadPoolExecutor(len(busy)) as pool:
                done = list(pool.map(lambda work: self._share(work[0], work[1], replica), busy))
        by_client = {upload.client: upload for uploads in done for upload in uploads}
        return [by_client[order.client] for order in orders]

    def evaluate(self, replica: Replica, x: Any, y: Any) -> Metrics:
        """Score a replica on held-out rows."""
        return self._objectives[0].evaluate(replica.x, x, y)

    def _share(
        self, objective: Objective, orders: Sequence[Order], replica: Replica
    ) -> list[Upload]:
        """Return the uploads of the clients of one thread."""
        raise NotImplementedError


class LedgerFollower:
    """A replica that follows the ledger, to be looked at; clients of all kinds have one."""

    def __init__(self, replica: Replica, history: UpdateSource, local: LocalWork) -> None:
        self._replica, self._history, self._local = replica, history, local

    def evaluate(self, version: int, x: Any, y: Any) -> Metrics:
        self._replica.go_to(version, self._history)
        return self._local.evaluate(self._replica, x, y)

    def state(self, version: int) -> np.ndarray:
        """Return a copy of the parameters and of the V vectors kept beside them at `version`:
        float32 [1 + V, d].
        """
        self._replica.go_to(version, self._history)
        return self._replica.state()

    def adopt(self, state: np.ndarray, version: int) -> None:
        """Take over the state of a replica like this one at `version`."""
        self._replica.adopt(state, version)


class SharedClients(LedgerFollower):
    """Clients of one process around one replica; they are rows of a partition and nothing else."""

    def process(self, orders: Sequence[Order]) -> list[Upload]:
        """Do the work of several clients; orders come in the order of the versions they are to be
        done at.
        """
        uploads: list[Upload] = []
        for version, group in groupby(orders, key=lambda order: order.round - 1):
            self._replica.go_to(version, self._history)
            uploads += self._local.work(list(group), self._replica)
        return uploads


def shared_clients(parts: ClientGroupParts, local: LocalWork) -> SharedClients:
    """Return the clients of a process that do this work around its replica."""
    assert parts.replica is not None
    assert parts.updates is not None
    return SharedClients(parts.replica, parts.updates, local)


def central_differences(
    objective: Objective,
    x: Vector,
    directions: Sequence[Direction],
    radius: float,
    rows: Sequence[np.ndarray],
) -> tuple[list[float], np.ndarray]:
    """Return of each client's rows the loss near x and (f(x + μz) - f(x - μz)) / 2μ along each
    direction, [M, P].
    """
    plus, minus = objective.central_losses(x, directions, radius, rows)
    # else its bits depend on which clients are here
    middle = np.ascontiguousarray((plus + minus) / 2).mean(1)
    return middle.tolist(), (plus - minus) / (2 * radius)


def chooses_seeds(order: Order) -> bool:
    """Return whether the client chooses its seeds itself (asynchronous) or got them from the
    server.
    """
    return isinstance(order.body, Tail) or (
        isinstance(order.body, PulledModel) and not order.body.seeds.size
    )


def seeds_to_try(order: Order, settings: SeededSettings) -> np.ndarray:
    """Return the seeds of the steps a client is to try, uint64 [K]."""
    if settings.derived_seeds:
        return round_seeds(settings, order.round)
    if chooses_seeds(order):
        return client_seeds(settings, order.client, order.round - 1)
    return order.body.seeds  # type: ignore[attr-defined]
