"""ULDP-ZO: user-level privacy across silos, on seeds and scalars.

A pair is a user and a silo where the user has records. From the shared model x, along seeded
directions z_kp that are everybody's, each pair finds its own vector of K·P central differences on
all its records there,

    G_kp = [f(x_k + μz_kp) - f(x_k - μz_kp)] / 2μ,    x_{k+1} = x_k - (η_l/P) Σ_p G_kp z_kp,    x_0
    = x,

clipped as a whole to norm C. The noised, weighted sum Y over all pairs, divided by qU and rounded
to float32, is one update of the ledger, x <- x - (η/P) Σ_kp Y_kp z_kp / (qU): anyone with the
ledger has the model, and the cost on the wire depends on KP alone.

Asynchronous: a silo that wakes pulls what it missed and releases its own sum, with one of S shares
of the noise and seeds of its own, as an update by itself.

What the ledger holds was released. A run that resumes makes those updates again from there, and no
silo reveals anything new in them (`PairWork._already_released`): a second draw of the noise would
be a second release.
"""

# S silos, U users, n pairs of a silo, K local steps, P perturbations, d parameters

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from raydpzv.data.users import Pairs
from raydpzv.engine.objective import Objective
from raydpzv.keys import SERVER_PARTY, Key, perturbation_seeds
from raydpzv.methods.descriptor import (
    ClientGroupParts,
    HorizontalMethod,
    HorizontalServerParts,
    UpdateRule,
)
from raydpzv.methods.horizontal.aggregation import (
    Aggregation,
    AgreeingRounds,
    SumsOverUsers,
    aggregation_of,
    in_the_open,
    of_aggregation,
)
from raydpzv.methods.horizontal.rounds import Cohorts, Directed
from raydpzv.methods.horizontal.seeded import (
    ALL_ROWS,
    SeededPullServer,
    SeededServer,
    SeededSettings,
    Updates,
    updates_of,
)
from raydpzv.methods.horizontal.seeded_clients import (
    LocalWork,
    SharedClients,
    central_differences,
    chooses_seeds,
    seeds_to_try,
    shared_clients,
)
from raydpzv.methods.horizontal.user_sums import UserSums, mean_over_users, release_of, sum_of
from raydpzv.methods.replica import Replica
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import Schedule
from raydpzv.settings.bounds import Bounds, Positive
from raydpzv.wire.secure_sums import MaskedSum, PackedSum, UserSum
from raydpzv.wire.seeds import SeededScalars
from raydpzv.zo.update import Descent, Step

if TYPE_CHECKING:
    from raydpzv.settings.sections_horizontal import HorizontalSections

_VALUE_BYTES = 8
"""Bytes on the wire of one number of a silo's sum."""


@dataclass(frozen=True)
class UldpZoConfig(Directed, SumsOverUsers):
    """ULDP-ZO: users' central differences, clipped together and summed over all silos, on the
    ledger.
    """

    name: Literal["uldp_zo"] = "uldp_zo"
    """The method."""
    asynchronous: bool = False
    """No rounds: a silo wakes by its clock, and its own noised sum becomes the next update."""
    lr: Positive = 1.0
    """Step size η of the update x <- x - (η/P) Σ Y z / (qU)."""
    local_steps: Annotated[int, Bounds(ge=1, le=1000)] = 1
    """Steps of each pair's own trajectory, K."""
    local_lr: Positive = 0.01
    """Step size η_l of the pairs' trajectories (K > 1)."""


class PairWork(LocalWork):
    """Work of silos at one model: their pairs' vectors, summed and noised.

    parts: with the ledger's updates, of which those that were recorded before the run was taken up
    have their scalars.
    """

    def __init__(self, parts: ClientGroupParts, config: UldpZoConfig) -> None:
        super().__init__(parts.objectives)
        assert parts.updates is not None
        self._settings, self._local_lr = uldp_zo_settings(config, parts.key), config.local_lr
        self._sums = UserSums(parts.parts, parts.users, config)
        # what one unit of a sum is worth in an update
        self._unit = mean_over_users(parts.users, config.sampling)
        self._history, self._recorded = parts.updates, parts.recorded

    def vectors(
        self,
        objective: Objective,
        replica: Replica,
        seeds_K: np.ndarray,
        rows: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return each pair's central differences, float32 [n, K·P], n >= 1; rows: each pair's own.

        A pair's numbers have the same bits whichever other pairs are here.
        """
        if len(seeds_K) == 1:  # all at the same perturbed models
            seeds_P = self._directions(replica, seeds_K[0])
            return self._differences(objective, replica.descent, seeds_P, rows)
        return np.stack([self._trajectory(objective, replica, seeds_K, own) for own in rows])

    def _share(
        self, objective: Objective, orders: Sequence[Order], replica: Replica
    ) -> list[Upload]:
        return [self._silo(objective, order, replica) for order in orders]

    def _silo(self, objective: Objective, order: Order, replica: Replica) -> Upload:
        size = self._settings.pairs(1)
        if answer := self._sums.answer(order, size):
            return self._nothing_new(answer, order, size)
        seeds_K = seeds_to_try(order, self._settings)

        def vectors(pairs: Pairs, places: np.ndarray) -> np.ndarray:
            return self.vectors(objective, replica, seeds_K, [pairs.of(place) for place in places])

        made = self._sums.upload(order, size, vectors)
        if chooses_seeds(order):
            told = self._already_released(order)
            scalars = (sum_of([made]) * self._unit).astype(np.float32) if told is None else told
            return made._replace(
                body=SeededScalars(seeds_K, scalars.reshape(len(seeds_K), -1)), attempt=None
            )
        return self._nothing_new(made, order, size)

    def _nothing_new(self, made: Upload, order: Order, size: int) -> Upload:
        """The upload, or one without its sum in a round that was released before: the server has
        its scalars.
        """
        if order.round > self._recorded or not isinstance(
            made.body, UserSum | MaskedSum | PackedSum
        ):
            return made
        return made._replace(body=UserSum(np.zeros(size, np.int64)))

    def _already_released(self, order: Order) -> np.ndarray | None:
        """Return the scalars that the silo released at this model before the run was taken up, None
        if it did not.
        """
        read = order.round - 1
        if read >= self._recorded:
            return None
        mine = self._history.since(read, self._recorded).of(order.client)
        found = mine.scalar[mine.read == read]
        return found if found.size else None

    def _trajectory(
        self, objective: Objective, replica: Replica, seeds_K: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """One pair, whose own steps lead it away from the shared model: float32 [K·P]."""
        at, found = replica.fork(), []
        for seed in seeds_K:
            seeds_P = self._directions(replica, seed)
            (values_P,) = self._differences(objective, at, seeds_P, [rows])
            at.apply([Step(seeds_P, values_P, self._local_lr)])
            found.append(values_P)
        return np.concatenate(found)

    def _directions(self, replica: Replica, seed: int) -> np.ndarray:
        return replica.seeds(perturbation_seeds(seed, np.arange(self._settings.width(1))))

    def _differences(
        self, objective: Objective, at: Descent, seeds_P: np.ndarray, rows: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return each pair's differences at a model, float32 [n, P]."""
        settings = self._settings
        directions = [at.direction(int(seed)) for seed in seeds_P]
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # what is not finite is zeroed, and counted
            found = central_differences(objective, at.x, directions, settings.smoothing, rows)[1]
            return found.astype(np.float32)


class UldpZoServer(AgreeingRounds, SeededServer):
    """Sums what the silos send and makes an update of the mean over users; aggregation: None: in
    the open.
    """

    def __init__(
        self,
        cohorts: Cohorts,
        updates: Updates,
        unit: float,
        aggregation: Aggregation | None = None,
    ) -> None:
        super().__init__(cohorts, updates, value_bytes=_VALUE_BYTES)
        self._unit, self.aggregation = unit, aggregation or in_the_open()

    def _orders(self, round: int, cohort: Sequence[int]) -> list[Order]:
        return self._hidden(super()._orders(round, cohort), round)

    def _released(self, round: int, uploads: Sequence[Upload]) -> np.ndarray:
        if (recorded_KP := self._updates.recorded()) is not None:
            return recorded_KP
        total_D = self.aggregation.total([upload.body for upload in uploads])
        return (total_D * self._unit).astype(np.float32).reshape(self._settings.local_steps, -1)


def uldp_zo_settings(config: UldpZoConfig, key: Key) -> SeededSettings:
    """Return what server and silos agree on."""
    return SeededSettings(
        key,
        config.rule,
        ALL_ROWS,
        Schedule(config.lr),
        Schedule(config.perturbations),
        config.local_steps,
        config.smoothing,
        "central",
    )


def _server(parts: HorizontalServerParts, config: UldpZoConfig) -> UldpZoServer | SeededPullServer:
    settings, silos = uldp_zo_settings(config, parts.key), len(parts.rows)
    updates = updates_of(parts, settings)
    if config.asynchronous:
        return SeededPullServer(updates)
    noise, unit = release_of(parts.users), mean_over_users(parts.users, config.sampling)
    aggregation = aggregation_of(config, noise, silos, settings.pairs(1))
    return UldpZoServer(config.available(silos, parts.key), updates, unit, aggregation)


def _clients(parts: ClientGroupParts, config: UldpZoConfig) -> SharedClients:
    return shared_clients(parts, PairWork(parts, config))


def _contradictions(config: UldpZoConfig, sections: HorizontalSections) -> Iterator[str]:
    yield from of_aggregation(config, sections)
    if not config.asynchronous:
        return
    if config.aggregation != "plain":
        yield (
            'method.aggregation: wanted "plain" with method.asynchronous = true, got '
            f'"{config.aggregation}" (without '
            "rounds there is no sum over silos)"
        )
    if config.weights != "uniform":
        yield (
            'method.weights: wanted "uniform" with method.asynchronous = true, got '
            f'"{config.weights}" (all of a '
            "user's weight may lie in one silo, whose noise is one share of many)"
        )
    if config.absences:
        yield (
            "method.availability, method.dropout: wanted 1 and 0 with method.asynchronous = true "
            "(silos wake by themselves, and there is no round to stay away from)"
        )
    if config.sampling < 1:
        yield (
            f"method.sampling: wanted 1 with method.asynchronous = true, got {config.sampling:g} "
            "(without rounds silos have no coins in common)"
        )
    if sections.split.clients >= SERVER_PARTY:
        yield f"split.clients: wanted fewer than {SERVER_PARTY}, each silo needs seeds of its own"


ULDP_ZO = HorizontalMethod(
    config=UldpZoConfig,
    server=_server,
    clients=_clients,
    rule=lambda c: UpdateRule(c.rule, step_seeds=True),
    pulls=lambda c: c.asynchronous,
    cohort=lambda c, clients: clients,
    own_keys=lambda c: c.aggregation != "plain",
    users=lambda c: replace(c.plan, asynchronous=c.asynchronous),
    contradictions=_contradictions,
)
