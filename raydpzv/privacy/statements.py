"""The table and the verdict of any setting: a noised mean (DPZV), noised rows (its baselines), sums over users.

What a proof supposes of a run beside its noise is looked at here, for both: where it fails, no row holds.
"""

from __future__ import annotations

from dataclasses import replace

from raydpzv.privacy import mean_claims
from raydpzv.privacy.claims import Claim
from raydpzv.privacy.mean_setting import MeanSetting
from raydpzv.privacy.memoized_claims import memoized_claims, memoized_verdict
from raydpzv.privacy.memoized_setting import MemoizedSetting
from raydpzv.privacy.row_claims import row_claims, row_verdict
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.sound_claims import sound_claims, sound_verdict
from raydpzv.privacy.sound_setting import SoundSetting
from raydpzv.privacy.user_claims import user_claims, user_verdict
from raydpzv.privacy.user_setting import UserSetting

NO_NOISE = "NOT PRIVATE: no noise is added in this run, and no ε is claimed."
"""The verdict on a run without a setting."""
AnySetting = MeanSetting | RowSetting | SoundSetting | MemoizedSetting | UserSetting
"""What privacy depends on, of either kind."""

_UNPLANNED = "no number of updates is planned (budget.updates), and each ε here is that of ONE update"


def claims(setting: AnySetting) -> tuple[Claim, ...]:
    """Return the side-by-side table."""
    found, missing = _claims(setting), missing_premises(setting)
    if not missing:
        return found
    said = f" NOT proved: {'; '.join(missing)}."
    return tuple(replace(c, holds=False, note=c.note + said) if c.holds else c for c in found)


def meant_claim(setting: AnySetting) -> Claim:
    """Return the row of the table against whom a setting's noise is meant; of two relations the one that it meets."""
    if isinstance(setting, MemoizedSetting):
        adversary = "server"
    elif isinstance(setting, UserSetting):
        adversary = setting.against
    else:
        adversary = "client" if isinstance(setting, MeanSetting) else setting.adversary
    return next(claim for claim in claims(setting) if claim.adversary == adversary)


def verdict(setting: AnySetting) -> tuple[bool, str]:
    """Return whether an ε of a record, or a user, is proved, and why, in a few plain sentences."""
    if isinstance(setting, SoundSetting):
        return sound_verdict(setting)
    if isinstance(setting, MemoizedSetting):
        return memoized_verdict(setting)
    missing = missing_premises(setting)
    if missing and any(c.holds for c in _claims(setting)):
        return False, f"NOT PRIVATE: {'; '.join(missing)}."
    if isinstance(setting, UserSetting):
        return user_verdict(setting)
    return row_verdict(setting) if isinstance(setting, RowSetting) else mean_claims.verdict(setting)


def missing_premises(setting: AnySetting) -> tuple[str, ...]:
    """Return what the proofs suppose and this setting does not have, one clause each.

    A `SoundSetting` is refused without them. With hidden state the range of a release is all that is proved, between
    any two tables, however they were scaled.
    """
    if isinstance(setting, SoundSetting | MemoizedSetting):
        return ()
    if isinstance(setting, UserSetting):
        hidden = False
    else:
        hidden = setting.hidden if isinstance(setting, RowSetting) else setting.hidden_state
    return (*(() if hidden else setting.fitted), *(() if setting.planned else (_UNPLANNED,)))


def _claims(setting: AnySetting) -> tuple[Claim, ...]:
    if isinstance(setting, SoundSetting):
        return sound_claims(setting)
    if isinstance(setting, MemoizedSetting):
        return memoized_claims(setting)
    if isinstance(setting, UserSetting):
        return user_claims(setting)
    return row_claims(setting) if isinstance(setting, RowSetting) else mean_claims.claims(setting)
