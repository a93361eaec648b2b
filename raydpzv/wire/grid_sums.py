"""Messages of methods whose silos send sums over users: D numbers of a release."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raydpzv.wire.messages import Body


@dataclass(frozen=True)
class UserSum(Body):
    """A silo's sum over its users in units of the grid, with its share of the noise, int64 [D]."""

    values: np.ndarray
