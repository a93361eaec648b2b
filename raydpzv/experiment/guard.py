"""Privacy accounting of a run in progress."""

from __future__ import annotations

import dataclasses

import numpy as np

from raydpzv.experiment.spec import Budget
from raydpzv.methods.roles import Order, Upload
from raydpzv.privacy.adversaries import spending
from raydpzv.privacy.setting import Setting
from raydpzv.sim.terms import Spent


class PrivacyGuard:
    """Counts every record's participation and refuses a release that would exceed the budget."""

    def __init__(self, setting: Setting, budget: Budget) -> None:
        self._setting, self._budget = setting, budget
        self._spending = spending(setting)
        self._largest_batch = 0

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None."""
        limit = self._budget.epsilon
        if limit is None or not self._spending.would_exceed(
            _ids(upload), limit, self._budget.adversary, self._setting.perturbations
        ):
            return None
        return (
            f"the next release would exceed the budget ε={limit:g} "
            f"(adversary {self._budget.adversary}, δ={self._setting.delta:g}, replace one record)"
        )

    def charge(self, upload: Upload, order: Order) -> tuple[float, float]:
        """Account the releases of one service; return ε so far (claimed by the paper, proved for clients)."""
        ids = _ids(upload)
        self._largest_batch = max(self._largest_batch, len(ids))
        self._spending.add(ids, len(order.releases))
        return self._spending.paper_epsilon(), self._spending.epsilon()

    def spent(self) -> Spent:
        """Return what the final claims need."""
        return Spent(self._spending.releases, self._spending.participations, self._largest_batch)


def settled(setting: Setting, spent: Spent | None, *, planned: bool) -> Setting | None:
    """Return a finished run's setting: what was planned replaced by what was counted.

    Without an account (the server was lost) the plan still bounds what was released, if there was one; else nothing
    does, and None is returned.
    """
    if spent is None:
        return setting if planned else None
    if spent.releases == 0:
        return setting
    return dataclasses.replace(
        setting,
        releases=spent.releases,
        counted=spent.counted,
        largest_batch=spent.largest_batch,
    )


def _ids(upload: Upload) -> np.ndarray:
    ids = getattr(upload.body, "ids", None)
    return np.zeros(0, np.int64) if ids is None else np.asarray(ids, np.int64)
