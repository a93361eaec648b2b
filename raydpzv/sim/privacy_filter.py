"""The account of a run in progress, for every kind of release: it refuses what would exceed its
budget's ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from raydpzv.errors import SpecError
from raydpzv.methods.roles import Upload
from raydpzv.privacy.gdp import epsilons_of
from raydpzv.privacy.release import PrivacyLoss, ReleaseEvent, ReleasePlan, Spent
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.interfaces import PrivacyFilter

Sample = Callable[[int], np.ndarray]
"""Who is drawn for a round."""


def privacy_filter(
    plan: ReleasePlan | None,
    limit: float | None = None,
    adversary: str = "",
    *,
    lost: int = 0,
    sample: Sample | None = None,
) -> PrivacyFilter:
    """Return a fresh account (`PlanFilter`); None: a run that adds no noise."""
    return (
        PrivacyFilter()
        if plan is None
        else PlanFilter(plan, limit, adversary, lost=lost, sample=sample)
    )


class PlanFilter(PrivacyFilter):
    """Asks a plan's account before each upload, and charges what is released.

    limit: the most ε against an adversary, of "" the one that the noise is meant for. lost:
    releases that a kill lost, and that are made once more. sample: needed where silos that send
    their sums cannot say who was drawn.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        limit: float | None = None,
        adversary: str = "",
        *,
        lost: int = 0,
        sample: Sample | None = None,
    ) -> None:
        self._plan, self._limit, self._adversary = plan, limit, adversary or plan.adversary
        self._lost, self._sample = lost, sample
        self._account, self._given_up = plan.account(), False
        self.of_uploads = plan.of_uploads
        if lost:
            self._account.charge_remade(lost)

    def refuses(self, upload: Upload) -> str | None:
        if self._limit is None or (self.of_uploads and not upload.releases):
            return None
        ids = upload.releases[0].ids if upload.releases else None
        ids = upload.ids if ids is None else ids
        event = self._event(upload.client, ids, self._plan.per_upload, upload.attempt)
        if not self._account.would_exceed(event, self._limit, self._adversary):
            return None
        whose, change = self._plan.budget_terms(self._adversary)
        return (
            f"the next {self._plan.noun} would exceed the budget ε={self._limit:g} ({whose}, "
            f"δ={self._plan.delta:g}, {change})"
        )

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        return self._account.charge(self._event(client, ids, releases, attempt))

    def epsilons(self, mus: np.ndarray) -> np.ndarray:
        """Return ε of many privacy losses' μ; where no δ is given nothing is proved, and all are
        infinite.
        """
        return mus if math.isnan(self._plan.delta) else epsilons_of(mus, self._plan.delta)

    def spent(self) -> Spent | None:
        return None if self._given_up else self._account.spent()

    def give_up(self) -> None:
        self._given_up = True

    def state(self) -> dict[str, Any]:
        return self._account.state()

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Resume an account; lost: more may have been released, of which the record says nothing.

        Records are not charged for it: their releases are the same once more. Releases lost before
        are charged too.
        """
        self._account.restore(state)
        if remade := self._lost + int(lost) * self._plan.under_way:
            self._account.charge_remade(remade)

    def _event(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None
    ) -> ReleaseEvent:
        if self._sample is not None and attempt is not None:
            ids = self._sample(attempt.round)
        return ReleaseEvent(client, ids, releases, attempt)


def check_first_release(plan: ReleasePlan | None, limit: float | None, adversary: str = "") -> None:
    """Refuse an ε budget that not even one update fits into. Raises SpecError."""
    if limit is None or plan is None:
        return
    account, event, against = plan.account(), plan.first_event(), adversary or plan.adversary
    if not account.would_exceed(event, limit, against):
        return
    alone = account.charge(event).epsilon(against)
    said = f": it alone is ε={alone:.4g}" if math.isfinite(alone) else ""
    whose, change = plan.budget_terms(against)
    raise SpecError(
        f"budget.epsilon: not one {plan.noun} fits into ε={limit:g}{said} ({whose}, "
        f"δ={plan.delta:g}, {change}); raise it, add noise, or ask: raydpzv privacy"
    )
