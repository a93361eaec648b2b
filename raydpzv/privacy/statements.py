"""The table and the verdict of any setting: a noised mean (DPZV) or noised rows (its opponents)."""

from __future__ import annotations

from raydpzv.privacy import adversaries
from raydpzv.privacy.adversaries import Claim
from raydpzv.privacy.row_claims import row_claims, row_verdict
from raydpzv.privacy.rows import RowSetting
from raydpzv.privacy.setting import Setting

AnySetting = Setting | RowSetting
"""What privacy depends on, of either kind."""


def claims(setting: AnySetting) -> tuple[Claim, ...]:
    """Return the side-by-side table."""
    return row_claims(setting) if isinstance(setting, RowSetting) else adversaries.claims(setting)


def verdict(setting: AnySetting) -> tuple[bool, str]:
    """Return whether a per-record ε is proved against the clients, and why, in a few plain sentences."""
    return row_verdict(setting) if isinstance(setting, RowSetting) else adversaries.verdict(setting)
