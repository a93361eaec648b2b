"""Silos that stay away from a round: announced beforehand, or failing once masks and noise shares
are fixed.

Both are drawn from the run's key and depend on no record: everybody may know them. A silo that
stays away adds nothing, users' weights stay what they are, and the noise is shared by those that
take part.
"""

# S silos, A of them take part

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, cast

import numpy as np

from raydpzv.keys import Key
from raydpzv.methods.descriptor import MethodConfig
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.roles import Order
from raydpzv.secure.attempts import Attempt
from raydpzv.settings.bounds import Bounds, Count, Share
from raydpzv.wire.messages import Body
from raydpzv.wire.secure_sums import (
    AttemptCatchUp,
    AttemptModel,
    SampledAttemptCatchUp,
    SampledAttemptModel,
    SampledCatchUp,
    SampledModel,
)
from raydpzv.wire.seeds import CatchUp
from raydpzv.wire.weights import Weights

_TOLD = {
    Weights: AttemptModel,
    CatchUp: AttemptCatchUp,
    SampledModel: SampledAttemptModel,
    SampledCatchUp: SampledAttemptCatchUp,
}
"""Messages with the same arrays and those of the attempt."""


@dataclass(frozen=True)
class Absences(MethodConfig):
    """Settings of methods whose silos may stay away from a round."""

    availability: Share = 1.0
    """Probability with which a silo takes part in a round; those that do not say so before it."""
    least_silos: Count = 2
    """Silos that take part in a round at the least, whatever is drawn: one silo's ε depends on
    it.
    """
    dropout: Annotated[float, Bounds(ge=0, le=0.5)] = 0.0
    """Probability with which a silo fails once masks and noise shares are fixed; the others try the
    round again.
    """
    late_uploads: Annotated[float, Bounds(ge=0, le=1)] = 0.0
    """Probability with which what a failed silo had to send comes after all: its sum is one more
    release.
    """

    @property
    def absences(self) -> bool:
        """Whether any silo may stay away."""
        return self.availability < 1 or self.dropout > 0

    @property
    def fewest(self) -> int | None:
        """Silos in a release at the least; None: always all."""
        return self.least_silos if self.absences else None

    def available(self, silos: int, key: Key) -> Cohorts:
        """Return who takes part in each round; key: the run's."""
        return AvailableSilos(silos, min(self.least_silos, silos), key, rate=self.availability)

    def fails(self, silo: int, attempt: Attempt, key: Key) -> bool:
        """Return whether a silo fails in an attempt."""
        return bool(_draws(silo, attempt, key)[0] < self.dropout)

    def sends_late(self, silo: int, attempt: Attempt, key: Key) -> bool:
        """Return whether what a silo that failed in an attempt had to send comes after all."""
        return bool(_draws(silo, attempt, key)[1] < self.late_uploads)


@dataclass(frozen=True)
class AvailableSilos(Cohorts):
    """Cohorts of silos: each by a coin of its own of this rate, and `size` of them at the least."""

    rate: float = 1.0

    def draw(self, round: int) -> np.ndarray:
        draws_S = (self.key / "available silos" / round).generator().random(self.clients)
        return np.flatnonzero(draws_S <= max(self.rate, np.sort(draws_S)[self.size - 1]))


def _draws(silo: int, attempt: Attempt, key: Key) -> np.ndarray:
    return cast(
        np.ndarray,
        (key / "dropouts" / silo / attempt.round / attempt.number).generator().random(2),
    )


def telling(body: Body, attempt: Attempt) -> Body:
    """Return an order's body with the attempt added."""
    silos = np.array(attempt.silos, np.int32)
    return _TOLD[type(body)](*body.arrays(), np.array([attempt.number], np.int32), silos)


def attempt_of(order: Order, silos: int) -> Attempt:
    """Return the attempt that an order belongs to; where it says nothing, all silos take part in
    the only one.
    """
    told = order.body
    if isinstance(
        told, AttemptModel | AttemptCatchUp | SampledAttemptModel | SampledAttemptCatchUp
    ):
        return Attempt(order.round, int(told.number[0]), tuple(told.silos.tolist()))
    return Attempt(order.round, 0, tuple(range(silos)))


def of_absences(config: Absences, silos: int, aggregation: str) -> Iterator[str]:
    """Complain of settings of absences that do not go with one another, or with so many silos."""
    if config.absences and config.least_silos > silos:
        yield (
            f"method.least_silos: wanted at most {silos}, the silos that there are, got "
            f"{config.least_silos}"
        )
    if aggregation == "plain" and config.dropout > 0:
        yield (
            f'method.dropout: wanted 0 with method.aggregation = "plain", got {config.dropout:g} '
            '(sums in the open have been seen when a silo fails; "masked" ones reveal nothing '
            "until all are there)"
        )
    if aggregation != "plain" and config.absences and config.least_silos < 2:
        yield (
            f'method.least_silos: wanted at least 2 with method.aggregation = "{aggregation}", got '
            f"{config.least_silos} (the sum over one silo is that silo's own)"
        )
