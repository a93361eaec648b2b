"""ULDP-SGD: silos send the weighed sum of their users' clipped gradients.

Source: Kato et al. 2023, Algorithm 3 with SGD in place of local training. x <- x - η_g / (qU) Σ_su w_su clip_C(g_su),
g_su the gradient of the mean loss over the user's records in the silo. (The paper divides by U S, and adds.)
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
from raydpzv.methods.horizontal.local_training import ObjectiveThreads, model_of
from raydpzv.methods.horizontal.user_sums import UserSums, UserSumServer, mean_over_users
from raydpzv.methods.roles import Order, Upload
from raydpzv.settings.bounds import Positive


@dataclass(frozen=True)
class UldpSgdConfig(SumsOverUsers):
    """ULDP-SGD: users' clipped gradients, private for a user in all silos (Kato et al. 2023)."""

    name: Literal["uldp_sgd"] = "uldp_sgd"
    """The method."""
    server_lr: Positive = 1.0
    """Step size η_g on the mean over users; the paper's is divided by the number of silos as well."""


class GradientSilos(ObjectiveThreads):
    """Silos that send sums of their users' descents, -g_su."""

    def __init__(self, parts: ClientGroupParts, config: UldpSgdConfig) -> None:
        super().__init__(parts.objectives)
        self._sums = UserSums(parts.parts, parts.users, config)

    def _work(self, order: Order, objective: Objective) -> Upload:
        if answer := self._sums.answer(order, objective.size):
            return answer
        x = objective.vector(model_of(order))

        def descents(pairs: Pairs, places: np.ndarray) -> np.ndarray:
            return -objective.gradients(x, [pairs.of(place) for place in places])

        return self._sums.upload(order, objective.size, descents)


ULDP_SGD = HorizontalMethod(
    config=UldpSgdConfig,
    server=lambda parts, config: UserSumServer(
        parts, config.server_lr * mean_over_users(parts.users, config.sampling), config
    ),
    clients=GradientSilos,
    cohort=lambda config, clients: clients,
    own_keys=lambda config: config.aggregation != "plain",
    users=lambda config: config.plan,
    contradictions=of_aggregation,
)
