"""The account of users: rounds or single silos' sums, and how often each user was drawn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from raydpzv.accounts.account import PrivacyAccount
from raydpzv.methods.roles import Upload
from raydpzv.privacy.statements import missing_premises
from raydpzv.privacy.user_accountant import UserSpending
from raydpzv.privacy.user_claims import defect
from raydpzv.privacy.user_setting import UserSetting
from raydpzv.secure.attempts import Attempt, OpenSums
from raydpzv.sim.interfaces import UNACCOUNTED, PrivacyLoss, Spent


class UserPrivacyFilter(PrivacyAccount):
    """Counts rounds (or single silos' releases) and how often each user was drawn; refuses what exceeds the budget.

    A round counts with the first silo's sum that is sent, and again if a silo sends a second one for it: whoever sees
    that has two sums. Of sums that are masked it counts once for each attempt that is open (`OpenSums`).
    """

    of_uploads = True

    def __init__(
        self,
        setting: UserSetting,
        limit: float | None,
        lost: int = 0,
        sample: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        super().__init__(setting.delta)
        self._setting, self._limit, self._sample = setting, limit, sample
        self._proves = not defect(setting) and not missing_premises(
            dataclasses.replace(setting, planned=True)
        )
        self._spending = UserSpending(setting)
        self._made = np.zeros(setting.silos, np.int64)
        self._sums = OpenSums(hidden=setting.aggregation != "plain")
        self._fewest = setting.silos
        self._loss = UNACCOUNTED
        self._lost = lost
        self._lose_last(lost)

    def refuses(self, upload: Upload) -> str | None:
        """Return why this upload would exceed the ε budget, or None: it then was never sent."""
        if self._limit is None or not upload.releases or not self._opens(upload.client, upload.attempt):
            return None
        drawn = self._drawn(upload.releases[0].ids, upload.attempt)
        if not self._spending.would_exceed(drawn, self._limit, self._setting.against):
            return None
        noun = "release" if self._setting.asynchronous else "round"
        return (
            f"the next {noun} would exceed the budget ε={self._limit:g} (adversary {self._setting.against}, "
            f"δ={self._setting.delta:g}, add or remove one user)"
        )

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        """Account a silo's sum, for which these users were drawn; return what is spent so far."""
        if self._opens(client, attempt):
            self._spending.add(self._drawn(ids, attempt))
            self._loss = self._spent_so_far()
        if attempt is not None:
            self._sums.add(client, attempt)
            self._fewest = min(self._fewest, len(attempt.silos))
        self._made[client] += 1
        return self._loss

    def state(self) -> dict[str, Any]:
        """Return what a run that goes on must know: releases, and how often each user was drawn."""
        return self._spending.state() | {"fewest": self._fewest}

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Go on with an account; lost: more may have been released, of which the record says nothing.

        That is one round, or without rounds a sum of each silo; beside what other legs from there have lost.
        """
        self._spending = UserSpending(self._setting, state)
        self._fewest = int(state.get("fewest", self._setting.silos))
        under_way = self._setting.silos if self._setting.asynchronous else 1
        self._lose_last(self._lost + int(lost) * under_way)

    def _lose_last(self, releases: int) -> None:
        for _ in range(releases):
            self._spending.add_lost(np.arange(self._setting.users))
            self._fewest = min(self._fewest, self._setting.fewest or self._fewest)
        self._made[:] = self._spending.releases

    def _opens(self, client: int, attempt: Attempt | None) -> bool:
        if self._setting.asynchronous:
            return True
        if attempt is not None:
            return self._sums.more(client, attempt)
        return bool(self._made[client] == self._spending.releases)

    def _drawn(self, ids: np.ndarray | None, attempt: Attempt | None) -> np.ndarray:
        """The users that were drawn; all of them where nothing says who."""
        if self._sample is not None and attempt is not None:
            return self._sample(attempt.round)
        return np.arange(self._setting.users) if ids is None or len(ids) == 0 else ids

    def _spent_so_far(self) -> PrivacyLoss:
        if not self._proves:
            return PrivacyLoss(math.nan, math.inf, self._setting.delta, math.inf, math.inf)
        external, client, server = self._spending.mus()
        return PrivacyLoss(math.nan, client, self._setting.delta, external, server)

    def _counted(self) -> Spent:
        fewest = None if self._setting.fewest is None else self._fewest
        s = self._spending
        return Spent(s.releases, s.participations, fewest=fewest, remade=s.remade)
