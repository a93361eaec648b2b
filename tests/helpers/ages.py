"""Rows of ages by name."""

from typing import NamedTuple

import numpy as np

from raydpzv.engine.split_model import COUNTED


class CacheUse(NamedTuple):
    """How old one client's cached embeddings were when a batch was served."""

    round: int
    client: int
    rows: int
    missing: int
    age_sum: int
    age_max: int
    age_bins: list[int]

    @property
    def mean(self) -> float:
        known = self.rows - self.missing
        return self.age_sum / known if known else float("nan")


def cache_uses(ages: np.ndarray) -> list[CacheUse]:
    return [CacheUse(*row[:COUNTED], row[COUNTED:]) for row in ages.tolist()]
