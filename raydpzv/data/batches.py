"""The rows that a client draws at a step.

D rows, B batch size. A draw is a function of the key and the step alone, so that steps may be asked
for in any order, twice, or on another machine. Amplification by sampling holds only against those
who know neither the batches nor the key (docs on privacy): against the others a record's
participations are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from raydpzv.errors import SpecError, suggest
from raydpzv.keys import Key

SAMPLINGS = ("shuffle", "uniform", "poisson")


@dataclass(frozen=True)
class Batches:
    """The batches of one client: `size` (B) of `rows` (D) by `how`; SpecError for settings that
    cannot be.

    shuffle: each epoch is a permutation cut into batches of B; the incomplete rest is dropped, so
    that no batch holds a record twice and a record takes part at most once an epoch. uniform: B
    different records,
    each step anew. poisson: every record by its own coin with probability B/D, so that the size
    varies and may be 0.
    """

    how: str
    size: int
    rows: int
    key: Key
    _epochs: dict[int, np.ndarray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.how not in SAMPLINGS:
            raise SpecError(
                f'sampling "{self.how}" is unknown. {suggest(self.how, SAMPLINGS)}Choose '
                f"{', '.join(SAMPLINGS)}"
            )
        if self.size < 1:
            raise SpecError(f"a batch size of {self.size} is too small: choose at least 1")
        if self.size > self.rows:
            raise SpecError(
                f"a batch size of {self.size} exceeds the {self.rows} rows: choose at most "
                f"{self.rows}"
            )
        if self.rows > np.iinfo(np.int32).max:
            raise SpecError(f"{self.rows} rows cannot be numbered in 32 bits: use fewer than 2^31")

    @property
    def divisor(self) -> int:
        """B, the expected batch size: a constant, which a mean must divide by to have a known
        sensitivity.
        """
        return self.size

    @property
    def rate(self) -> float:
        """B/D, the probability that a record is in a batch."""
        return self.size / self.rows

    def draw(self, step: int) -> np.ndarray:
        """Return the row numbers int32 [b] of step 0, 1, ...: in drawn order, for poisson
        ascending.
        """
        if step < 0:
            raise SpecError(f"step {step} has no batch: steps count from 0")
        if self.how == "shuffle":
            epoch, place = divmod(step, self._per_epoch)
            return self._permutation(epoch)[place * self.size : (place + 1) * self.size].copy()
        generator = (self.key / self.how / step).generator()
        if self.how == "uniform":
            return generator.choice(self.rows, self.size, replace=False).astype(np.int32)
        return np.flatnonzero(generator.random(self.rows) < self.rate).astype(np.int32)

    def participations(self, steps: int) -> int:
        """Return how often any one record can be in the first `steps` batches, at most, without
        looking.
        """
        return -(-steps // self._per_epoch) if self.how == "shuffle" else steps

    @property
    def _per_epoch(self) -> int:
        return self.rows // self.size

    def _permutation(self, epoch: int) -> np.ndarray:
        """Only the epoch in use is kept: a client's steps follow one another."""
        order = self._epochs.get(epoch)
        if order is None:
            order = (
                (self.key / "shuffle" / epoch).generator().permutation(self.rows).astype(np.int32)
            )
            self._epochs.clear()
            self._epochs[epoch] = order
        return order
