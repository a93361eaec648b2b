"""Local epochs over some records: what ULDP-AVG does for every user and ULDP-NAIVE for a silo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from raydpzv.keys import Key
from raydpzv.methods.descriptor import MethodConfig
from raydpzv.settings.bounds import Bounds, Count, Positive


@dataclass(frozen=True)
class LocalEpochs(MethodConfig):
    """Settings of methods that train for whole epochs."""

    lr: Positive = 0.1
    """Step size of the local steps."""
    local_epochs: Annotated[int, Bounds(ge=1, le=1000)] = 5
    """Epochs per round, Q."""
    batch: Count = 64
    """Records per local step, at most; each epoch has an order of its own."""


def epochs(rows: np.ndarray, config: LocalEpochs, key: Key) -> list[np.ndarray]:
    """Return the batches of a round's epochs, one after the other: a function of these records and
    the key alone.
    """
    if config.batch >= len(rows):
        return [rows] * config.local_epochs
    cuts = np.arange(config.batch, len(rows), config.batch)
    generator = key.generator()
    return [
        batch
        for _ in range(config.local_epochs)
        for batch in np.split(generator.permutation(rows), cuts)
    ]
