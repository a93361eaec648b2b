"""The table and the verdict of any setting: a noised mean (DPZV) or noised rows (its baselines)."""

from __future__ import annotations

from raydpzv.privacy import mean_claims
from raydpzv.privacy.claims import Claim
from raydpzv.privacy.mean_setting import MeanSetting
from raydpzv.privacy.row_claims import row_claims, row_verdict
from raydpzv.privacy.row_setting import RowSetting

NO_NOISE = "NOT PRIVATE: no noise is added in this run, and no ε is claimed."
"""The verdict on a run without a setting."""
AnySetting = MeanSetting | RowSetting
"""What privacy depends on, of either kind."""


def claims(setting: AnySetting) -> tuple[Claim, ...]:
    """Return the side-by-side table."""
    return row_claims(setting) if isinstance(setting, RowSetting) else mean_claims.claims(setting)


def verdict(setting: AnySetting) -> tuple[bool, str]:
    """Return whether a per-record ε is proved against the clients, and why, in a few plain sentences."""
    return row_verdict(setting) if isinstance(setting, RowSetting) else mean_claims.verdict(setting)
