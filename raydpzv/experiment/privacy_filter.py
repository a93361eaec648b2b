"""Privacy accounting of a run in progress."""

from __future__ import annotations

import dataclasses

import numpy as np

from raydpzv.config.scenario import Budget
from raydpzv.experiment.row_privacy import final_row_setting
from raydpzv.methods.roles import Upload
from raydpzv.privacy.mean_claims import spending
from raydpzv.privacy.mean_setting import Setting
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.statements import AnySetting
from raydpzv.sim.interfaces import Spent


class MeanPrivacyFilter:
    """Counts every record's participation and refuses a release that would exceed the budget."""

    of_uploads = False

    def __init__(self, setting: Setting, budget: Budget) -> None:
        self._setting, self._budget = setting, budget
        self._spending = spending(setting)
        self._largest_batch = 0

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None."""
        limit = self._budget.epsilon
        if limit is None or not self._spending.would_exceed(
            upload.ids, limit, self._budget.adversary, self._setting.perturbations
        ):
            return None
        return (
            f"the next release would exceed the budget ε={limit:g} "
            f"(adversary {self._budget.adversary}, δ={self._setting.delta:g}, replace one record)"
        )

    def charge(self, client: int, ids: np.ndarray, releases: int) -> tuple[float, float]:
        """Account the releases of one service; return ε so far (claimed by the paper, proved for clients)."""
        self._largest_batch = max(self._largest_batch, len(ids))
        self._spending.add(ids, releases)
        return self._spending.paper_epsilon(), self._spending.epsilon()

    def spent(self) -> Spent:
        """Return what the final claims need."""
        return Spent(self._spending.releases, self._spending.participations, self._largest_batch)


def final_setting(setting: AnySetting, spent: Spent | None, *, planned: bool) -> AnySetting | None:
    """Return a finished run's setting: what was planned replaced by what was counted.

    Without an account (the server was lost) the plan still bounds what was released, if there was one; else nothing
    does, and None is returned.
    """
    if spent is None:
        return setting if planned else None
    if isinstance(setting, RowSetting):
        return final_row_setting(setting, spent)
    if spent.releases == 0:
        return setting
    return dataclasses.replace(
        setting,
        releases=spent.releases,
        counted=spent.counted,
        largest_batch=spent.largest_batch,
    )
