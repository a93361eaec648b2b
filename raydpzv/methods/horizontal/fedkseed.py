"""FedKSeed: zeroth-order local steps along a pool of seeds, so that catching up takes one scalar
for each seed.

Source: Qin et al. 2024 ("FedKSeed", arXiv 2312.06353), Algorithm 1. A client makes the model from
x_0 and the pool's sums A_j, takes local steps along seeds that it draws from the pool, and sends
places and scalars. The server adds them, each times η and the client's weight, to A. An update of
the ledger has all scalars of a round, and the model at any version is x_0 - Σ_j A_j u_j: by the
ledger or by the sums, its bits are the same (`methods.replica.PooledReplica`).
"""

# M clients, m of them in a cohort, n seeds in the pool, K local steps, P perturbations

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from raydpzv.keys import Key, pool_seeds
from raydpzv.ledger.entries import SHARED
from raydpzv.methods.descriptor import (
    ClientGroupParts,
    HorizontalMethod,
    HorizontalServerParts,
    UpdateRule,
)
from raydpzv.methods.horizontal.decomfl import LocalSteps
from raydpzv.methods.horizontal.rounds import Cohorts, Directed, Sampled, cohorts, row_weights
from raydpzv.methods.horizontal.seeded import (
    SeededServer,
    SeededSettings,
    Updates,
    check_finite,
    settings_of,
    updates_of,
)
from raydpzv.methods.horizontal.seeded_clients import SharedClients, shared_clients
from raydpzv.methods.replica import SeedSums
from raydpzv.methods.roles import Order, Sync, Upload
from raydpzv.settings.bounds import Bounds, Count, Perturbations, Positive
from raydpzv.wire.messages import Body
from raydpzv.wire.seeds import PoolScalars, PoolSums

_SCALAR_BYTES = 6
"""Bytes on the wire of a scalar and its seed's place in the pool."""


@dataclass(frozen=True)
class FedkseedConfig(Directed, Sampled):
    """FedKSeed: a pool of seeds, so that a client catches up with one scalar for each (Qin et al.
    2024).
    """

    name: Literal["fedkseed"] = "fedkseed"
    """The method."""
    pool: Annotated[int, Bounds(ge=1, le=65_536)] = 1024
    """Seeds in the pool, which the paper calls K."""
    lr: Positive = 1e-3
    """Step size η, of local steps and of what the server adds to a seed's sum."""
    lr_at: tuple[tuple[Count, Positive], ...] = ()
    """Step sizes from later rounds on: [[round, lr], ...]."""
    perturbations: Perturbations = 1
    """Directions per local step, P: the paper has one."""


class PoolSteps(LocalSteps):
    """Local steps by central differences along seeds that each client draws from the pool,
    uniformly.
    """

    def __init__(self, parts: ClientGroupParts, config: FedkseedConfig) -> None:
        super().__init__(parts.objectives, parts.parts, fedkseed_settings(config, parts.key))
        self._pool = pool_seeds(parts.key, config.pool)

    def _share_directions(self, order: Order) -> bool:
        return False

    def _tried(self, order: Order) -> np.ndarray:
        return self._pool[self._places(order)]

    def _places(self, order: Order) -> np.ndarray:
        """Return the places in the pool of a client's directions in a round, int64 [K, P]."""
        shape = self._settings.local_steps, self._settings.width(order.round)
        draws = (self._settings.key / "pool draws" / order.client / order.round).generator()
        return draws.integers(len(self._pool), size=shape)

    def _answer(self, order: Order, values_KP: np.ndarray) -> Body:
        return PoolScalars(self._places(order).astype(np.uint16), values_KP)


class FedkseedServer(SeededServer):
    """Keeps one sum for each seed of the pool, which is all that a client needs, however long it
    was away.
    """

    def __init__(
        self,
        cohorts: Cohorts,
        updates: Updates,
        pool: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(cohorts, updates, weights=weights, value_bytes=_SCALAR_BYTES)
        self._sums = SeedSums(pool)

    def restore(self, round: int, state: np.ndarray | None) -> None:
        super().restore(round, state)
        self._sums = SeedSums(self._sums.seeds)
        self._sums.add(self._updates.made(0, round))

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        got = len(self._sums.seeds)
        return [
            order._replace(sync=order.sync and order.sync._replace(pairs=got))
            for order in super()._orders(round, cohort)
        ]

    def _bodies(self, round: int, syncs: Sequence[Sync]) -> Iterator[Body]:
        # one object for all, which a transport can send once per process
        body = PoolSums(self._sums.values.copy())
        yield from (body for _ in syncs)

    def _close(self, round: int, uploads: Sequence[Upload]) -> None:
        weights = np.ones(len(uploads)) if self._weights is None else self._weights[self._cohort]
        seeds, scalars = [], []
        for upload, share in zip(uploads, (weights / weights.sum()).tolist(), strict=True):
            body = _body(upload)
            check_finite(body.values, upload.client, round)
            seeds.append(self._sums.seeds[body.places])
            scalars.append((share * body.values.astype(np.float64)).astype(np.float32))
        self._updates.enter(SHARED, round - 1, np.concatenate(seeds), np.concatenate(scalars))
        self._sums.add(self._updates.made(round - 1, round))


def _body(upload: Upload) -> PoolScalars:
    if not isinstance(upload.body, PoolScalars):
        raise TypeError(f"a FedKSeed server cannot serve {type(upload.body).__name__}")
    return upload.body


def fedkseed_settings(config: FedkseedConfig, key: Key) -> SeededSettings:
    """Return what server and clients agree on."""
    return settings_of(config, key, "central")


def _server(parts: HorizontalServerParts, config: FedkseedConfig) -> FedkseedServer:
    updates = updates_of(parts, fedkseed_settings(config, parts.key))
    pool = pool_seeds(parts.key, config.pool)
    return FedkseedServer(cohorts(parts, config.cohort), updates, pool, row_weights(parts, config))


def _clients(parts: ClientGroupParts, config: FedkseedConfig) -> SharedClients:
    return shared_clients(parts, PoolSteps(parts, config))


FEDKSEED = HorizontalMethod(
    config=FedkseedConfig,
    server=_server,
    clients=_clients,
    rule=lambda c: UpdateRule(c.rule, pool=c.pool),
    cohort=lambda c, clients: c.cohort,
)
