"""Accounts of single records, one for each kind of release that a run is protected by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from raydpzv.accounts.account import PrivacyAccount
from raydpzv.errors import RunError
from raydpzv.methods.roles import Upload
from raydpzv.privacy.mean_claims import spending
from raydpzv.privacy.mean_setting import MeanSetting
from raydpzv.privacy.memoized_setting import MemoizedSetting
from raydpzv.privacy.participations import Participations
from raydpzv.privacy.row_accountant import RowSpending
from raydpzv.privacy.row_claims import row_defect
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.sound_accountant import SoundSpending
from raydpzv.privacy.sound_setting import SoundSetting
from raydpzv.privacy.statements import missing_premises
from raydpzv.secure.attempts import Attempt
from raydpzv.settings.sections import BudgetSection
from raydpzv.sim.interfaces import PrivacyLoss, Spent


class MeanPrivacyFilter(PrivacyAccount):
    """Counts every record's participation and refuses a release that would exceed the budget."""

    of_uploads = False

    def __init__(self, setting: MeanSetting, budget: BudgetSection) -> None:
        super().__init__(setting.delta)
        self._setting, self._budget = setting, budget
        self._spending = spending(setting)
        self._proves = not missing_premises(dataclasses.replace(setting, planned=True))
        self._largest_batch = 0

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None."""
        limit, adversary = self._budget.epsilon, self._budget.adversary
        if limit is None or not self._spending.would_exceed(
            upload.ids, limit, adversary, self._setting.perturbations
        ):
            return None
        return (
            f"the next release would exceed the budget ε={limit:g} "
            f"(adversary {self._budget.adversary}, δ={self._setting.delta:g}, replace one record)"
        )

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        """Account the releases of one service; return what is spent (claimed by the paper, proved for clients)."""
        spending = self._spending
        if len(ids) > self._largest_batch:
            self._largest_batch = len(ids)
        spending.add(ids, releases)
        proved = spending.mu() if self._proves else math.inf
        return PrivacyLoss(spending.paper_mu(), proved, self._delta)

    def state(self) -> dict[str, Any]:
        """Return what an account goes on from."""
        return self._spending.state() | {"largest_batch": self._largest_batch}

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Go on with an account; releases that a run makes after it are those of the record once more."""
        self._spending.restore(state)
        self._largest_batch = state["largest_batch"]

    def _counted(self) -> Spent:
        s = self._spending
        return Spent(s.releases, s.participations, self._largest_batch)


class SoundPrivacyFilter(PrivacyAccount):
    """Counts how many releases each record took part in, and refuses one that would exceed the budget.

    A release counts once for each of its records, however many directions it has.
    """

    of_uploads = False

    def __init__(self, setting: SoundSetting, budget: BudgetSection) -> None:
        super().__init__(setting.delta)
        self._setting, self._budget = setting, budget
        self._spending = SoundSpending(setting)
        self._held: dict[int, list[np.ndarray]] = {}  # rows of uploads that wait for their client's release

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None.

        With it go the uploads of its release that were served before: others may have released their rows since.
        """
        limit = self._budget.epsilon
        if limit is None:
            return None
        held = [*self._held.get(upload.client, ()), upload.ids]
        if not self._spending.would_exceed(np.concatenate(held), limit):
            self._held[upload.client] = held
            return None
        return (
            f"the next release would exceed the budget ε={limit:g} (all clients together, "
            f"δ={self._setting.delta:g}, {self._setting.relation})"
        )

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        """Account one release of so many numbers on these rows; return what is proved against the clients."""
        self._held.pop(client, None)
        self._spending.add(ids)
        return PrivacyLoss(math.nan, self._spending.mu(), self._setting.delta)

    def state(self) -> dict[str, Any]:
        """Return what an account goes on from."""
        held = [(client, list(uploads)) for client, uploads in sorted(self._held.items())]
        return self._spending.state() | {"held": held}

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Go on with an account; releases that a run makes after it are those of the record once more."""
        self._spending.restore(state)
        self._held = dict(state["held"])

    def _counted(self) -> Spent:
        s = self._spending
        return Spent(s.releases, s.participations)


class MemoizedPrivacyFilter(PrivacyAccount):
    """Counts rows as they are noised, and fails where one is noised a second time: ε is that of once.

    An upload of rows that were sent before releases nothing.
    """

    of_uploads = True

    def __init__(self, setting: MemoizedSetting) -> None:
        super().__init__(setting.delta)
        self._setting = setting
        self._records = [Participations(setting.rows) for _ in range(setting.clients)]
        self._releases = 0

    def refuses(self, upload: Upload) -> str | None:
        """Refuse nothing."""
        return None

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        """Account rows that were noised now; return what is proved, against everybody.

        Raises RunError for one that was noised before.
        """
        self._records[client].add(ids, releases)
        if self._records[client].most > 1:
            raise RunError(
                f"client {client} noised a row a second time, so that its ε is not the one stated; start a new run"
            )
        self._releases += releases
        return PrivacyLoss(math.nan, self._setting.mu, self._setting.delta)

    def _counted(self) -> Spent:
        return Spent(self._releases, max(r.most for r in self._records))


class RowPrivacyFilter(PrivacyAccount):
    """Counts every record's releases and refuses an upload that would exceed the budget.

    Noise on embeddings is added by the clients, each of which keeps an account of its own and does not send an upload
    that would pass the budget. The simulator looks into these accounts when an upload comes, and when the run is over
    into those of the uploads still under way: what is refused was never sent.
    """

    def __init__(self, setting: RowSetting, budget: BudgetSection) -> None:
        super().__init__(setting.delta)
        self._setting, self._budget = setting, budget
        self._spending = row_spending(setting)
        self.of_uploads = setting.on == "embedding"

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None."""
        limit, releases = self._budget.epsilon, self._setting.per_upload
        if limit is None or not self._spending.would_exceed(
            upload.client, upload.ids, releases, limit, self._budget.adversary
        ):
            return None
        return (
            f"the next release would exceed the budget ε={limit:g} (adversary {self._budget.adversary}, "
            f"δ={self._setting.delta:g}, replace one record)"
        )

    def charge(
        self, client: int, ids: np.ndarray, releases: int, attempt: Attempt | None = None
    ) -> PrivacyLoss:
        """Account releases of these rows; return what is spent: claimed by the calibration, proved against clients."""
        self._spending.add(client, ids, releases)
        proved = self._spending.mu() if self._setting.adversary == "client" else math.inf
        return PrivacyLoss(self._spending.paper_mu(), proved, self._setting.delta)

    def epsilons(self, mus: np.ndarray) -> np.ndarray:
        """Return ε of many privacy losses' μ at once; without noise or clip all are infinite, and there may be no δ."""
        return super().epsilons(mus) if self._spending.private else mus

    def state(self) -> dict[str, Any]:
        """Return what an account goes on from."""
        return self._spending.state()

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Go on with an account; releases that a run makes after it are those of the record once more."""
        self._spending.restore(state)

    def _counted(self) -> Spent:
        s = self._spending
        return Spent(s.releases, s.participations, rows=s.rows, uploads=s.uploads)


def row_spending(setting: RowSetting) -> RowSpending:
    """Return an empty accountant for a run of this setting."""
    return RowSpending(setting, private=not row_defect(setting))
