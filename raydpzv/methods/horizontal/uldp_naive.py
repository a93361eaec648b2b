"""ULDP-NAIVE: silos train on all they have, clip what was changed as a whole and noise it.

Source: Kato et al. 2023, Algorithm 1. x <- x + η_g / S Σ_s (clip_C(Δ_s) + N(0, σ²C²S)). A user may
turn every silo's update around, so that the sum moves by up to 2CS, where the paper has CS.
"""

# S silos, d parameters

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raydpzv.engine.objective import Objective
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod, HorizontalServerParts
from raydpzv.methods.horizontal.aggregation import ReleasedOnGrid
from raydpzv.methods.horizontal.dropout import attempt_of
from raydpzv.methods.horizontal.local_epochs import LocalEpochs, epochs
from raydpzv.methods.horizontal.local_training import ObjectiveThreads, model_of
from raydpzv.methods.horizontal.user_sums import (
    SiloSum,
    UserSumServer,
    noised,
    release_of,
    users_of,
)
from raydpzv.methods.roles import Order, Upload
from raydpzv.privacy.user_release import UserPlan, user_integers
from raydpzv.settings.bounds import Positive


@dataclass(frozen=True)
class UldpNaiveConfig(LocalEpochs, ReleasedOnGrid):
    """ULDP-NAIVE: silos' updates, clipped and noised as a whole (Kato et al. 2023)."""

    name: Literal["uldp_naive"] = "uldp_naive"
    """The method."""
    server_lr: Positive = 1.0
    """Step size η_g on the mean over silos."""


class NaiveSilos(ObjectiveThreads):
    """Silos that send their clipped update with their share of the noise."""

    def __init__(self, parts: ClientGroupParts, config: UldpNaiveConfig) -> None:
        super().__init__(parts.objectives)
        self._parts, self._noise = users_of(parts.parts), release_of(parts.users)
        self._config, self._key = config, parts.key / "silos' epochs"

    def _work(self, order: Order, objective: Objective) -> Upload:
        x, silo, release = objective.vector(model_of(order)), order.client, self._noise.release
        batches = epochs(self._parts.rows(silo), self._config, self._key / silo / order.round)
        update_1d = objective.descents(x, [batches], self._config.lr)
        integers_1d, nonfinite = user_integers(update_1d, clip=release.clip, bits=release.bits)
        everybody = attempt_of(order, self._parts.clients)
        return noised(self._noise, SiloSum(integers_1d[0], 1, nonfinite), silo, everybody)


def _server(parts: HorizontalServerParts, config: UldpNaiveConfig) -> UserSumServer:
    release = release_of(parts.users).release
    return UserSumServer(parts, config.server_lr * release.clip / (release.limit * len(parts.rows)))


ULDP_NAIVE = HorizontalMethod(
    config=UldpNaiveConfig,
    server=_server,
    clients=NaiveSilos,
    cohort=lambda config, clients: clients,
    users=lambda config: UserPlan("naive", bits=config.value_bits),
)
