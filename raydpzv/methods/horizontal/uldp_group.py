"""ULDP-GROUP-k: DP-SGD in every silo on at most k records of a user, and averages of what it
changes.

Source: Kato et al. 2023, Algorithm 2, with one rate γ of Poisson batches for all silos. x <- x +
η_g / S Σ_s Δ_s. Every step of DP-SGD moves a silo's model by -η/(γ n_s) (Σ clip_C(∇ℓ_i) + N(0,
σ²C²)), n_s its records that are used. k = "max" is the record-level baseline; "max" and "median"
are read off the data, and nothing is proved of them.
"""

# S silos, d parameters, b records of a Poisson batch

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from raydpzv.engine.objective import Objective
from raydpzv.errors import SpecError
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod, HorizontalServerParts
from raydpzv.methods.horizontal.aggregation import ReleasedOnGrid
from raydpzv.methods.horizontal.compression import Whole
from raydpzv.methods.horizontal.fedavg import FedAvgServer
from raydpzv.methods.horizontal.local_training import ObjectiveThreads, model_of
from raydpzv.methods.horizontal.rounds import cohorts
from raydpzv.methods.horizontal.user_sums import blocks, release_of, users_of
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.user_release import Integers, UserPlan, user_integers
from raydpzv.settings.bounds import Bounds, Positive
from raydpzv.settings.sections_horizontal import HorizontalSections
from raydpzv.zo.vectors import Vector, as_array


@dataclass(frozen=True)
class UldpGroupConfig(ReleasedOnGrid):
    """ULDP-GROUP-k: DP-SGD in every silo on at most k records of a user (Kato et al. 2023)."""

    name: Literal["uldp_group"] = "uldp_group"
    """The method."""
    group: Annotated[int, Bounds(ge=1, le=10**6)] | Literal["max", "median"] = 8
    """Records of a user that are used, k: those of its silos in turn; or the most or the median of
    users' numbers, which are read off the data, so that no ε is proved."""
    rate: Annotated[float, Bounds(gt=0, le=1)] = 0.1
    """Rate γ with which each record is in a step's Poisson batch, one for all silos."""
    local_epochs: Annotated[int, Bounds(ge=1, le=1000)] = 1
    """Epochs per round, Q: Q/γ steps."""
    lr: Positive = 0.1
    """Step size of the local steps."""
    server_lr: Positive = 1.0
    """Step size η_g on the mean over silos."""

    @property
    def steps(self) -> int:
        """Return the local steps of a round, Q/γ."""
        return max(1, round(self.local_epochs / self.rate))


class GroupSilos(ObjectiveThreads):
    """Silos that take steps of DP-SGD and send what these changed."""

    def __init__(self, parts: ClientGroupParts, config: UldpGroupConfig) -> None:
        super().__init__(parts.objectives)
        whole = users_of(parts.parts)
        size = whole.most_records(config.group)
        self._parts = whole.at_most(size, parts.key / "records of a user")
        if (empty := np.flatnonzero(self._parts.sizes == 0)).size:
            raise SpecError(
                f"method.group: {size} records of a user leave silo {empty[0]} without any; use "
                "more, or fewer silos"
            )
        self._noise, self._config = release_of(parts.users), config

    def _work(self, order: Order, objective: Objective) -> Upload:
        start, config = model_of(order), self._config
        x, rows = objective.vector(start), self._parts.rows(order.client)
        descent = objective.descent(x, config.lr)
        releases = []
        for step in range(config.steps):
            number = (order.round - 1) * config.steps + step
            batch = self._poisson(rows, order.client, number)
            total, nonfinite = self._clipped(objective, x, batch)
            share, receipt = self._noise.share(
                objective.size, 1, (order.client, number, 0), pairs=len(batch), nonfinite=nonfinite
            )
            unit = self._noise.release.unit / (config.rate * len(rows))
            descent.step([objective.vector(((total + share) * unit).astype(np.float32))])
            releases += [Release(step, math.nan, receipt)] if receipt else []
        body = Whole().encode(as_array(x) - start, order.client, order.round)
        return Upload(order.client, order.round - 1, body, releases=tuple(releases))

    def _poisson(self, rows: np.ndarray, silo: int, number: int) -> np.ndarray:
        """Return the records of a step: each by its own coin, secret from everybody outside the
        silo.
        """
        generator = (self._noise.coin("records of a step") / silo / number).generator()
        return rows[generator.random(len(rows)) < self._config.rate]

    def _clipped(self, objective: Objective, x: Vector, batch: np.ndarray) -> tuple[Integers, int]:
        """Return the sum of the records' clipped gradients, int64 [d], and how many were not
        finite.
        """
        release, total, nonfinite = self._noise.release, np.zeros(objective.size, np.int64), 0
        for block in blocks(batch, objective.size):
            gradients_bd = objective.gradients(x, list(block[:, None]))
            integers_bd, bad = user_integers(gradients_bd, clip=release.clip, bits=release.bits)
            total += integers_bd.sum(0)
            nonfinite += bad
        return total, nonfinite


def _server(parts: HorizontalServerParts, config: UldpGroupConfig) -> FedAvgServer:
    return FedAvgServer(
        cohorts(parts, len(parts.rows)), parts.initial(), Whole(), lr=config.server_lr
    )


def _plan(config: UldpGroupConfig) -> UserPlan:
    return UserPlan(
        "group", group=config.group, rate=config.rate, steps=config.steps, bits=config.value_bits
    )


def _contradictions(config: UldpGroupConfig, sections: HorizontalSections) -> Iterator[str]:
    if sections.loss == "cox":
        yield (
            'method.name: "uldp_group" clips the gradients of single records, which the loss of '
            f'survival times (data.source = "{sections.data.source}") does not have: a record '
            'moves the gradients of others, no ε follows; use "uldp_avg", "uldp_sgd", "uldp_zo" or '
            '"uldp_naive"'
        )


ULDP_GROUP = HorizontalMethod(
    config=UldpGroupConfig,
    server=_server,
    clients=GroupSilos,
    cohort=lambda config, clients: clients,
    users=_plan,
    contradictions=_contradictions,
)
