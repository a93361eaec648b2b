"""ULDP-AVG: silos train for each of their users alone and send the weighed sum of what was changed, clipped.

Source: Kato et al. 2023, Algorithm 3. x <- x + η_g / (qU) Σ_su w_su clip_C(Δ_su), Δ_su what Q local epochs on the
user's records in the silo change. (The paper divides by U S.)
"""

# d parameters

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.data.users import Pairs
from raydpzv.engine.objective import Objective
from raydpzv.methods.descriptor import ClientGroupParts, HorizontalMethod
from raydpzv.methods.horizontal.aggregation import SumsOverUsers, of_aggregation
from raydpzv.methods.horizontal.local_epochs import LocalEpochs, epochs
from raydpzv.methods.horizontal.local_training import ObjectiveThreads, model_of
from raydpzv.methods.horizontal.user_sums import UserSums, UserSumServer, mean_over_users
from raydpzv.methods.roles import Order, Upload
from raydpzv.settings.bounds import Positive


@dataclass(frozen=True)
class UldpAvgConfig(LocalEpochs, SumsOverUsers):
    """ULDP-AVG: local training for each user, clipped, private for a user in all silos (Kato et al. 2023)."""

    name: Literal["uldp_avg"] = "uldp_avg"
    """The method."""
    server_lr: Positive = 1.0
    """Step size η_g on the mean over users; the paper's is divided by the number of silos as well."""


class TrainingSilos(ObjectiveThreads):
    """Silos that train for each of their users from the model they get."""

    def __init__(self, parts: ClientGroupParts, config: UldpAvgConfig) -> None:
        super().__init__(parts.objectives)
        self._sums = UserSums(parts.parts, parts.users, config)
        self._config, self._key = config, parts.key / "users' epochs"

    def _work(self, order: Order, objective: Objective) -> Upload:
        if answer := self._sums.answer(order, objective.size):
            return answer
        x, key = objective.vector(model_of(order)), self._key / order.client / order.round

        def descents(pairs: Pairs, places: np.ndarray) -> np.ndarray:
            batches = [epochs(pairs.of(place), self._config, key / pairs.users[place]) for place in places]
            return objective.descents(x, batches, self._config.lr)

        return self._sums.upload(order, objective.size, descents)


ULDP_AVG = HorizontalMethod(
    config=UldpAvgConfig,
    server=lambda parts, config: UserSumServer(
        parts, config.server_lr * mean_over_users(parts.users, config.sampling), config
    ),
    clients=TrainingSilos,
    cohort=lambda config, clients: clients,
    own_keys=lambda config: config.aggregation != "plain",
    users=lambda config: config.plan,
    contradictions=of_aggregation,
)
