"""ULDP-SGD: silos send the weighed sum of their users' clipped gradients.

Source: Kato et al. 2023, Algorithm 3 with SGD in place of local training. x <- x - η_g / (qU) Σ_su
w_su clip_C(g_su), g_su the gradient of the mean loss over the user's records in the silo. (The
paper divides by U S, and adds.)
"""

# d parameters

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from raydpzv.data.users import Pairs
from raydpzv.engine.objective import Objective
from raydpzv.methods.horizontal.aggregation import SumsOverUsers
from raydpzv.methods.horizontal.user_sums import UserSilos, user_sums_method
from raydpzv.methods.roles import Order
from raydpzv.settings.bounds import Positive
from raydpzv.zo.vectors import Vector


@dataclass(frozen=True)
class UldpSgdConfig(SumsOverUsers):
    """ULDP-SGD: users' clipped gradients, private for a user in all silos (Kato et al. 2023)."""

    name: Literal["uldp_sgd"] = "uldp_sgd"
    """The method."""
    server_lr: Positive = 1.0
    """Step size η_g on the mean over users; the paper's is divided by the number of silos as
    well.
    """


class GradientSilos(UserSilos):
    """Silos that send sums of their users' descents, -g_su."""

    def _descents(
        self, objective: Objective, x: Vector, order: Order, pairs: Pairs, places: np.ndarray
    ) -> np.ndarray:
        return -objective.gradients(x, [pairs.of(place) for place in places])


ULDP_SGD = user_sums_method(UldpSgdConfig, GradientSilos)
