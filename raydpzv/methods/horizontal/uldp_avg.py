"""ULDP-AVG: silos train for each of their users alone and send the weighed sum of what was changed,
clipped.

Source: Kato et al. 2023, Algorithm 3. x <- x + η_g / (qU) Σ_su w_su clip_C(Δ_su), Δ_su what Q local
epochs on the user's records in the silo change. (The paper divides by U S.)
"""

# d parameters

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.data.users import Pairs
from raydpzv.engine.objective import Objective
from raydpzv.methods.descriptor import ClientGroupParts
from raydpzv.methods.horizontal.aggregation import SumsOverUsers
from raydpzv.methods.horizontal.local_epochs import LocalEpochs, epochs
from raydpzv.methods.horizontal.user_sums import UserSilos, user_sums_method
from raydpzv.methods.roles import Order
from raydpzv.settings.bounds import Positive
from raydpzv.zo.vectors import Vector


@dataclass(frozen=True)
class UldpAvgConfig(LocalEpochs, SumsOverUsers):
    """ULDP-AVG: local training for each user, clipped, private for a user in all silos (Kato et al.
    2023).
    """

    name: Literal["uldp_avg"] = "uldp_avg"
    """The method."""
    server_lr: Positive = 1.0
    """Step size η_g on the mean over users; the paper's is divided by the number of silos as
    well.
    """


class TrainingSilos(UserSilos):
    """Silos that train for each of their users."""

    def __init__(self, parts: ClientGroupParts, config: UldpAvgConfig) -> None:
        super().__init__(parts, config)
        self._config, self._key = config, parts.key / "users' epochs"

    def _descents(
        self, objective: Objective, x: Vector, order: Order, pairs: Pairs, places: np.ndarray
    ) -> np.ndarray:
        key = self._key / order.client / order.round
        batches = [
            epochs(pairs.of(place), self._config, key / pairs.users[place]) for place in places
        ]
        return objective.descents(x, batches, self._config.lr)


ULDP_AVG = user_sums_method(UldpAvgConfig, TrainingSilos)
