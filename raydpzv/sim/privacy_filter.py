"""The account of a run in progress, for every kind of release: it refuses what would exceed its budget's ε."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from raydpzv.errors import SpecError
from raydpzv.methods.roles import Upload
from raydpzv.privacy.gdp_arrays import epsilons_of
from raydpzv.privacy.release import MADE_TWICE, PrivacyLoss, ReleaseEvent, ReleasePlan, Spent
from raydpzv.secure.attempts import Attempt
from raydpzv.sim.interfaces import NoPrivacyFilter, PrivacyFilter


def privacy_filter(
    plan: ReleasePlan | None,
    limit: float | None = None,
    adversary: str = "",
    *,
    missing: int = 0,
    lost: int = 0,
    sample: Callable[[int], np.ndarray] | None = None,
) -> PrivacyFilter:
    """Return a fresh account, which refuses what would exceed this ε against an adversary.

    missing: updates that another machine may have made before it was lost, of which no record tells; they are charged
    as if they had been made on the records that have most releases. lost: releases that a kill lost, and that are made
    once more. sample: who is drawn for a round, where silos that send their sums cannot say it; None: they do.
    """
    if plan is None:
        return NoPrivacyFilter()
    return PlanFilter(plan, limit, adversary, missing=missing, lost=lost, sample=sample)


class PlanFilter:
    """Asks a plan's account before each upload, and charges what is released."""

    def __init__(
        self,
        plan: ReleasePlan,
        limit: float | None = None,
        adversary: str = "",
        *,
        missing: int = 0,
        lost: int = 0,
        sample: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self._plan = plan.with_exposed_coins(MADE_TWICE) if missing else plan
        self._limit, self._adversary = limit, adversary or plan.adversary
        self._missing, self._lost, self._sample = missing, lost, sample
        self._account, self._given_up = self._plan.account(), False
        self.of_uploads = plan.of_uploads
        self._charge_lost(charged=0, remade=lost)

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None; one that releases is then not sent."""
        if self._limit is None or (self.of_uploads and not upload.releases):
            return None
        ids = upload.releases[0].ids if upload.releases else None
        event = self._event(
            upload.client, upload.ids if ids is None else ids, self._plan.per_upload, upload.attempt
        )
        if not self._account.would_exceed(event, self._limit, self._adversary):
            return None
        whose, change = self._plan.budget_terms(self._adversary)
        return (
            f"the next {self._plan.noun} would exceed the budget ε={self._limit:g} ({whose}, δ={self._plan.delta:g}, "
            f"{change})"
        )

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        """Account releases made to or by a client on these rows, in an attempt at a round; return what is spent."""
        return self._account.charge(self._event(client, ids, releases, attempt))

    def epsilons(self, mus: np.ndarray) -> np.ndarray:
        """Return ε of many privacy losses' μ at once; where no δ is given nothing is proved, and all are infinite."""
        return mus if math.isnan(self._plan.delta) else epsilons_of(mus, self._plan.delta)

    def spent(self) -> Spent | None:
        """Return what the final claims need; None where the account was given up."""
        return None if self._given_up else dataclasses.replace(self._account.spent(), missing=self._missing)

    def give_up(self) -> None:
        """Drop the account: something was released that it cannot count."""
        self._given_up = True

    def state(self) -> dict[str, Any]:
        """Return what an account resumes from, and how many missing updates its counts include."""
        return self._account.state() | ({"missing": self._charged} if self._charged else {})

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Resume an account; lost: more may have been released, of which the record says nothing.

        Records are not charged for it: their releases are the same once more. Segments lost before are charged too.
        """
        self._account.restore(state)
        remade = self._lost + int(lost) * self._plan.under_way
        self._charge_lost(charged=int(state.get("missing", 0)), remade=remade)

    def _charge_lost(self, charged: int, remade: int) -> None:
        """Charge releases of which no record tells; charged: missing updates that the counts have in them already."""
        self._charged = max(self._missing, charged)
        if self._missing > charged:
            self._account.charge_unknown(self._missing - charged)
        if remade:
            self._account.charge_remade(remade)

    def _event(self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None) -> ReleaseEvent:
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
        f"budget.epsilon: not one {plan.noun} fits into ε={limit:g}{said} ({whose}, δ={plan.delta:g}, {change}); raise "
        "it, add noise, or ask: raydpzv privacy"
    )
