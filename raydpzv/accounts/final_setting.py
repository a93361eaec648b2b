"""What a finished run's claims are made from: its setting, with what was counted in place of what was planned."""

from __future__ import annotations

import dataclasses

from raydpzv.privacy.memoized_setting import MemoizedSetting
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.sound_setting import SoundSetting
from raydpzv.privacy.statements import AnySetting
from raydpzv.privacy.user_setting import UserSetting
from raydpzv.sim.interfaces import Spent

_BROKE_OFF = "the run ended before its budget was spent"


def final_setting(
    setting: AnySetting, spent: Spent | None, *, done: bool, beyond_plan: bool = False
) -> AnySetting | None:
    """Return a finished run's setting: what was planned replaced by what was counted.

    done: did a budget end it? When a run breaks off, or its user stops it, may hang on what its batches held.

    Without an account (the server was lost) the plan still bounds what was released, if there was one; else, or where
    more may have been released (beyond_plan: in a leg that was lost), nothing does, and None is
    returned.
    """
    if isinstance(setting, MemoizedSetting):
        return setting
    if not isinstance(setting, RowSetting) and not done:
        setting = dataclasses.replace(setting, exposed=setting.exposed or _BROKE_OFF)
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
