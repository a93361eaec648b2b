"""What a run's accounts of privacy share, and what those do that can charge updates of which no record tells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from raydpzv.errors import RunError
from raydpzv.privacy.gdp_arrays import epsilons_of
from raydpzv.sim.interfaces import Spent

MADE_TWICE = "updates that a lost machine may have made were made again on the same rows"
"""Why coins hide nobody in a run with missing updates."""


class PrivacyAccount(ABC):
    """What accounts of every kind share: ε of a privacy loss, and that they can be given up."""

    def __init__(self, delta: float) -> None:
        self._delta, self._given_up = delta, False

    def epsilons(self, mus: np.ndarray) -> np.ndarray:
        """Return ε of many privacy losses' μ at once."""
        return epsilons_of(mus, self._delta)

    def spent(self) -> Spent | None:
        """Return what the final claims need; None where the account was given up."""
        return None if self._given_up else self._counted()

    def give_up(self) -> None:
        """Drop the account: something was released that it cannot count."""
        self._given_up = True

    def state(self) -> dict[str, Any]:
        """Return nothing: a run with an account that keeps nothing goes on from no checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Refuse: an account that keeps nothing has nothing to go on with."""
        raise RunError(f"{type(self).__name__} goes on from no checkpoint: start a new run")

    @abstractmethod
    def _counted(self) -> Spent:
        """Return what was counted."""


class AccountWithMissing(PrivacyAccount):
    """An account that can charge updates of which no record tells, once each.

    missing: updates that another machine may have made before it was lost.
    """

    def __init__(self, delta: float, missing: int) -> None:
        super().__init__(delta)
        self._missing, self._charged = missing, 0

    def _charge_missing(self, charged: int = 0) -> None:
        """Charge missing updates, but for those that the counts have in them already."""
        self._charged = max(self._missing, charged)
        if self._missing > charged:
            self._charge_unknown(self._missing - charged)

    @abstractmethod
    def _charge_unknown(self, updates: int) -> None:
        """Charge every record as often as one may have taken part in so many updates that nobody knows of."""

    def _marked(self) -> dict[str, Any]:
        """What a checkpoint says of missing updates: how many its counts have in them."""
        return {"missing": self._charged} if self._charged else {}
