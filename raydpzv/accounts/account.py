"""What a run's accounts of privacy share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from raydpzv.errors import RunError
from raydpzv.privacy.gdp_arrays import epsilons_of
from raydpzv.sim.interfaces import Spent


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
