"""Privacy filters: the account of a run in progress, which refuses what would exceed its budget's ε."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from raydpzv.accounts.record_filters import (
    MeanPrivacyFilter,
    MemoizedPrivacyFilter,
    RowPrivacyFilter,
    SoundPrivacyFilter,
    row_spending,
)
from raydpzv.accounts.user_filter import UserPrivacyFilter
from raydpzv.errors import SpecError
from raydpzv.privacy.mean_claims import spending
from raydpzv.privacy.mean_setting import MeanSetting
from raydpzv.privacy.memoized_setting import MemoizedSetting
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.sound_accountant import SoundSpending, clients_epsilon
from raydpzv.privacy.sound_setting import SoundSetting
from raydpzv.privacy.statements import AnySetting
from raydpzv.privacy.user_setting import UserSetting
from raydpzv.settings.sections import BudgetSection
from raydpzv.sim.interfaces import NoPrivacyFilter, PrivacyFilter


def privacy_filter(setting: AnySetting | None, budget: BudgetSection) -> PrivacyFilter:
    """Return a fresh account, which refuses what would exceed the budget's ε."""
    if setting is None:
        return NoPrivacyFilter()
    if isinstance(setting, RowSetting):
        return RowPrivacyFilter(setting, budget)
    if isinstance(setting, SoundSetting):
        return SoundPrivacyFilter(setting, budget)
    if isinstance(setting, MemoizedSetting):
        return MemoizedPrivacyFilter(setting)
    assert isinstance(setting, MeanSetting)  # those of users have `user_privacy_filter`
    return MeanPrivacyFilter(setting, budget)


def user_privacy_filter(
    setting: UserSetting | None,
    limit: float | None,
    lost: int = 0,
    sample: Callable[[int], np.ndarray] | None = None,
) -> PrivacyFilter:
    """Return a fresh account of users, which refuses what would exceed this ε; lost: releases no record tells of.

    sample: who is drawn for a round, where silos that send their sums cannot say it; None: they do.
    """
    return NoPrivacyFilter() if setting is None else UserPrivacyFilter(setting, limit, lost, sample)


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
        exceeded = row_spending(setting).would_exceed(0, ids, setting.per_upload, limit, budget.adversary)
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
