"""Privacy accounting of a run in progress, and what a finished run's claims are made from."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from raydpzv.errors import NotRecomputable, RunError, SpecError
from raydpzv.methods.roles import Upload
from raydpzv.privacy.calibration import planned_participations
from raydpzv.privacy.gdp_arrays import epsilons_of
from raydpzv.privacy.mean_claims import spending
from raydpzv.privacy.mean_setting import MeanSetting
from raydpzv.privacy.memoized_setting import MemoizedSetting
from raydpzv.privacy.participations import Participations
from raydpzv.privacy.row_accountant import RowSpending
from raydpzv.privacy.row_claims import row_defect
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.sound_accountant import SoundSpending, clients_epsilon
from raydpzv.privacy.sound_setting import SoundSetting
from raydpzv.privacy.statements import AnySetting, missing_premises
from raydpzv.privacy.user_accountant import UserSpending
from raydpzv.privacy.user_claims import defect
from raydpzv.privacy.user_setting import UserSetting
from raydpzv.secure.attempts import Attempt, OpenSums
from raydpzv.settings.sections import BudgetSection
from raydpzv.sim.interfaces import UNACCOUNTED, NoPrivacyFilter, PrivacyFilter, PrivacyLoss, Spent

_BROKE_OFF = "the run ended before its budget was spent"
_MADE_TWICE = "updates that a lost machine may have made were made again on the same rows"


def privacy_filter(setting: AnySetting | None, budget: BudgetSection, missing: int = 0) -> PrivacyFilter:
    """Return a fresh account, which refuses what would exceed the budget's ε.

    missing: updates that another machine may have made before it was lost, of which no record tells; they are charged
    as if they had been made on the records that have most releases.
    """
    if setting is None:
        return NoPrivacyFilter()
    if isinstance(setting, RowSetting):
        return RowPrivacyFilter(setting, budget)
    if isinstance(setting, SoundSetting):
        return SoundPrivacyFilter(setting, budget, missing)
    if isinstance(setting, MemoizedSetting):
        return MemoizedPrivacyFilter(setting)
    assert isinstance(setting, MeanSetting)  # those of users have `user_privacy_filter`
    return MeanPrivacyFilter(setting, budget, missing)


def user_privacy_filter(
    setting: UserSetting | None,
    limit: float | None,
    lost: int = 0,
    sample: Callable[[int], np.ndarray] | None = None,
    missing: int = 0,
) -> PrivacyFilter:
    """Return a fresh account of users, which refuses what would exceed this ε; lost: releases no record tells of.

    sample: who is drawn for a round, where silos that send their sums cannot say it; None: they do. missing: as in
    `privacy_filter`.
    """
    return NoPrivacyFilter() if setting is None else UserPrivacyFilter(setting, limit, lost, sample, missing)


def check_first_release(setting: AnySetting | None, budget: BudgetSection) -> None:
    """Refuse an ε budget that not even one update fits into. Raises SpecError."""
    limit = budget.epsilon
    if limit is None or setting is None:
        return
    if isinstance(setting, SoundSetting):
        _check_first_of(setting, limit)
        return
    assert not isinstance(
        setting, MemoizedSetting | UserSetting
    )  # its ε is that of one release: a budget of ε is refused
    ids = np.arange(setting.batch)
    if isinstance(setting, RowSetting):
        exceeded = _account(setting).would_exceed(0, ids, setting.per_upload, limit, budget.adversary)
    else:
        exceeded = spending(setting).would_exceed(ids, limit, budget.adversary, setting.perturbations)
    if exceeded:
        unit = "" if isinstance(setting, RowSetting) else ", replace one record"
        raise SpecError(
            f"budget.epsilon: one update alone exceeds ε={limit:g} against {budget.adversary} (δ={setting.delta:g}"
            f"{unit}); raise it, add noise, or ask: raydpzv privacy"
        )


def _check_first_of(setting: SoundSetting, limit: float) -> None:
    if SoundSpending(setting).would_exceed(np.arange(setting.batch), limit):
        alone = clients_epsilon(dataclasses.replace(setting, counted=1))
        raise SpecError(
            f"budget.epsilon: not one release fits, which alone is ε={alone:.4g} against all clients together "
            f"(δ={setting.delta:g}, {setting.relation}), above {limit:g}; raise it or add noise"
        )


class _Accountant(ABC):
    """What accounts of every kind share: ε of a privacy loss, and that they can be given up."""

    def __init__(self, delta: float) -> None:
        self._delta, self._given_up = delta, False
        self._missing = self._charged = 0

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

    def _marked(self) -> dict[str, Any]:
        """What a checkpoint says of missing updates: how many its counts have in them."""
        return {"missing": self._charged} if self._charged else {}

    @abstractmethod
    def _counted(self) -> Spent:
        """Return what was counted."""


class MeanPrivacyFilter(_Accountant):
    """Counts every record's participation and refuses a release that would exceed the budget."""

    of_uploads = False

    def __init__(self, setting: MeanSetting, budget: BudgetSection, missing: int = 0) -> None:
        super().__init__(setting.delta)
        self._setting, self._budget = setting, budget
        self._spending = spending(setting)
        self._proves = not missing_premises(dataclasses.replace(setting, planned=True))
        self._largest_batch = 0
        self._missing, self._charged = missing, 0
        self._charge_missing()

    def refuses(self, upload: Upload) -> str | None:
        """Return why serving this upload would exceed the ε budget, or None."""
        limit, adversary = self._budget.epsilon, self._budget.adversary
        if self._missing and adversary == "external":
            adversary = "client"  # what is made twice on the same rows, no coin hides
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
        return self._spending.state() | {"largest_batch": self._largest_batch} | self._marked()

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Go on with an account; releases that a run makes after it are those of the record once more."""
        self._spending.restore(state)
        self._largest_batch = state["largest_batch"]
        self._charged = state.get("missing", 0)
        self._charge_missing()

    def _charge_missing(self) -> None:
        """Charge every record as often as one may have taken part in updates that are missing, and not charged yet."""
        setting, updates = self._setting, self._missing - self._charged
        if updates <= 0:
            return
        self._charged = self._missing
        each = setting.perturbations
        if setting.batches == "poisson":
            self._largest_batch = setting.rows  # who was in those batches, nobody knows
        most = _most_of(setting.batches, updates, setting.rows, setting.batch, setting.clients)
        self._spending.add_unknown(most * each, updates, each)

    def _counted(self) -> Spent:
        s = self._spending
        return Spent(s.releases, s.participations, self._largest_batch, missing=self._missing)


class SoundPrivacyFilter(_Accountant):
    """Counts how many releases each record took part in, and refuses one that would exceed the budget.

    A release counts once for each of its records, however many directions it has.
    """

    of_uploads = False

    def __init__(self, setting: SoundSetting, budget: BudgetSection, missing: int = 0) -> None:
        super().__init__(setting.delta)
        self._setting, self._budget = setting, budget
        self._spending = SoundSpending(setting)
        self._held: dict[int, list[np.ndarray]] = {}  # rows of uploads that wait for their client's release
        self._largest_batch = 0
        self._missing, self._charged = missing, 0
        self._charge_missing()

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
        self._largest_batch = max(self._largest_batch, len(ids))
        self._spending.add(ids)
        return PrivacyLoss(math.nan, self._spending.mu(), self._setting.delta)

    def state(self) -> dict[str, Any]:
        """Return what an account goes on from."""
        held = sorted(self._held.items())
        found = {"largest_batch": self._largest_batch, "held": held}
        return self._spending.state() | found | self._marked()

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Go on with an account; releases that a run makes after it are those of the record once more."""
        self._spending.restore(state)
        self._largest_batch, self._held = state["largest_batch"], dict(state["held"])
        self._charged = state.get("missing", 0)
        self._charge_missing()

    def _charge_missing(self) -> None:
        """Charge every record as often as one may have taken part in updates that are missing, and not charged yet."""
        setting, updates = self._setting, self._missing - self._charged
        if updates <= 0:
            return
        self._charged = self._missing
        most = _most_of(setting.batches, updates, setting.rows, setting.batch, setting.clients)
        self._spending.add_unknown(most, updates)

    def _counted(self) -> Spent:
        s = self._spending
        return Spent(s.releases, s.participations, self._largest_batch, missing=self._missing)


class MemoizedPrivacyFilter(_Accountant):
    """Counts rows as they are noised, and fails where one is noised a second time: ε is that of once.

    An upload of rows that were sent before releases nothing.
    """

    of_uploads = True

    def __init__(self, setting: MemoizedSetting) -> None:
        super().__init__(setting.delta)
        self._setting = setting
        self._records = [Participations(setting.rows) for _ in range(setting.clients)]
        self._releases, self._largest_batch = 0, 0

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
        self._largest_batch = max(self._largest_batch, len(ids))
        return PrivacyLoss(math.nan, self._setting.mu, self._setting.delta)

    def _counted(self) -> Spent:
        return Spent(self._releases, max(r.most for r in self._records), self._largest_batch)


class UserPrivacyFilter(_Accountant):
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
        missing: int = 0,
    ) -> None:
        super().__init__(setting.delta)
        if missing:
            _require_chargeable(setting)
            setting = dataclasses.replace(setting, exposed=setting.exposed or _MADE_TWICE)
        self._setting, self._limit, self._sample = setting, limit, sample
        self._proves = not defect(setting) and not missing_premises(
            dataclasses.replace(setting, planned=True)
        )
        self._spending = UserSpending(setting)
        self._made = np.zeros(setting.silos, np.int64)
        self._sums = OpenSums(hidden=setting.aggregation != "plain")
        self._fewest = setting.silos
        self._loss = UNACCOUNTED
        self._missing, self._lost = missing, lost
        self._lose(missing)
        self._lose_last(lost)
        self._charged = missing

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
        return self._spending.state() | {"fewest": self._fewest} | self._marked()

    def restore(self, state: Mapping[str, Any], *, lost: bool) -> None:
        """Go on with an account; lost: more may have been released, of which the record says nothing.

        That is one round, or without rounds a sum of each silo; beside what other legs from there have lost.
        """
        self._spending = UserSpending(self._setting, state)
        self._fewest = int(state.get("fewest", self._setting.silos))
        self._lose(max(0, self._missing - int(state.get("missing", 0))))
        under_way = self._setting.silos if self._setting.asynchronous else 1
        self._lose_last(self._lost + int(lost) * under_way)

    def _lose(self, releases: int) -> None:
        self._count_lost(releases, self._spending.add)

    def _lose_last(self, releases: int) -> None:
        self._count_lost(releases, self._spending.add_lost)

    def _count_lost(self, releases: int, add: Callable[[np.ndarray], None]) -> None:
        for _ in range(releases):
            add(np.arange(self._setting.users))
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
        return Spent(s.releases, s.participations, 0, fewest=fewest, missing=self._missing, remade=s.remade)


class RowPrivacyFilter(_Accountant):
    """Counts every record's releases and refuses an upload that would exceed the budget.

    Noise on embeddings is added by the clients, each of which keeps an account of its own and does not send an upload
    that would pass the budget. The simulator looks into these accounts when an upload comes, and when the run is over
    into those of the uploads still under way: what is refused was never sent.
    """

    def __init__(self, setting: RowSetting, budget: BudgetSection) -> None:
        super().__init__(setting.delta)
        self._setting, self._budget = setting, budget
        self._spending = _account(setting)
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
        return Spent(s.releases, s.participations, s.largest_batch, s.rows, s.uploads)


def final_setting(
    setting: AnySetting, spent: Spent | None, *, done: bool, beyond_plan: bool = False
) -> AnySetting | None:
    """Return a finished run's setting: what was planned replaced by what was counted.

    done: did a budget end it? When a run breaks off, or its user stops it, may hang on what its batches held.

    Without an account (the server was lost) the plan still bounds what was released, if there was one; else, or where
    more may have been released (beyond_plan: by a machine or in a leg that was lost), nothing does, and None is
    returned.
    """
    if isinstance(setting, MemoizedSetting):
        return setting
    if not isinstance(setting, RowSetting) and (not done or (spent and spent.missing)):
        why = _MADE_TWICE if spent and spent.missing else _BROKE_OFF
        setting = dataclasses.replace(setting, exposed=setting.exposed or why)
    if spent is None and beyond_plan:
        return None
    if spent is None:
        return setting if isinstance(setting, SoundSetting) or setting.planned else None
    if isinstance(setting, RowSetting):
        return _final_row_setting(setting, spent)
    if spent.releases == 0:
        return setting
    if isinstance(setting, SoundSetting):
        return dataclasses.replace(setting, made=spent.releases, counted=spent.counted)
    if isinstance(setting, UserSetting):
        return dataclasses.replace(
            setting,
            releases=spent.releases,
            counted=spent.counted,
            fewest=spent.fewest,
            remade=spent.remade,
            late=False,
            planned=True,
        )
    return dataclasses.replace(
        setting,
        releases=spent.releases,
        counted=spent.counted,
        largest_batch=spent.largest_batch,
        planned=True,
    )


def _final_row_setting(setting: RowSetting, spent: Spent) -> RowSetting:
    if spent.releases == 0:
        return setting
    return dataclasses.replace(
        setting, counted=spent.counted, rows_released=spent.rows, uploads=spent.uploads, planned=True
    )


def _most_of(batches: str, updates: int, rows: int, batch: int, clients: int) -> int:
    """Return the most of so many updates, one after the other in midst of a run, that one record takes part in.

    A client that is in the midst of a pass meets a record once more than from its beginning.
    """
    most = planned_participations(batches=batches, releases=updates, rows=rows, batch=batch, clients=clients)
    return min(most + clients, updates)


def _require_chargeable(setting: UserSetting) -> None:
    """Raise NotRecomputable where an update that is made a second time costs more than another one."""
    if setting.kind == "group" and setting.rate < 1:
        raise NotRecomputable(
            "rounds that a lost machine may have made are not in the storage, and would be made a second time on "
            "records that the same coins draw, which the account of single records cannot charge; start a new run"
        )


def _account(setting: RowSetting) -> RowSpending:
    return RowSpending(setting, private=not row_defect(setting))
