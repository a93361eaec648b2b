"""The table and the verdict of any setting: a noised mean (DPZV), noised rows (its baselines), sums over users.

What a proof supposes of a run beside its noise is looked at here, for all: where it fails, no row holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from raydpzv.privacy import mean_claims, memoized_claims, row_claims, sound_claims, user_claims
from raydpzv.privacy.claim_words import PAPER, Verdict, judge
from raydpzv.privacy.claims import Claim
from raydpzv.privacy.gdp import guess_of, mu_of
from raydpzv.privacy.mean_setting import MeanSetting
from raydpzv.privacy.memoized_setting import MemoizedSetting
from raydpzv.privacy.row_setting import RowSetting
from raydpzv.privacy.sound_setting import SoundSetting
from raydpzv.privacy.user_setting import UserSetting

NO_NOISE = "no noise is added in this run, and no ε is claimed"
"""Why a run without a setting is not private."""
AnySetting = MeanSetting | RowSetting | SoundSetting | MemoizedSetting | UserSetting
"""What privacy depends on, of either kind."""

_CLOSED = "closed form (GDP)"
_ROUNDING = 1 + 1e-6  # by how much an ε that noise was calibrated for may come out above its target
_UNPLANNED = "no number of updates is planned (budget.updates), and each ε here is that of ONE update"


@dataclass(frozen=True)
class _Statement:
    """What is said of one kind of setting.

    claims: its table; caveats: of every ε, clauses; against: whom the noise is meant for; obstacle: why nothing private
    is made, "" if nothing stands against it; fitted: what of `fitted` and `planned` its proofs suppose, None: all was
    checked when the setting was made.
    """

    claims: Callable[[Any], tuple[Claim, ...]]
    caveats: Callable[[Any], tuple[str, ...]]
    against: Callable[[Any], str]
    obstacle: Callable[[Any], str] = lambda setting: ""
    fitted: Callable[[Any], tuple[str, ...]] | None = None


_STATEMENTS: dict[type, _Statement] = {
    # with hidden state the range of a release is all that is proved, between any two tables, however they were scaled
    MeanSetting: _Statement(
        mean_claims.claims,
        mean_claims.caveats,
        lambda setting: "client",
        mean_claims.obstacle,
        lambda setting: () if setting.hidden_state else setting.fitted,
    ),
    RowSetting: _Statement(
        row_claims.row_claims,
        row_claims.caveats,
        lambda setting: setting.adversary,
        row_claims.obstacle,
        lambda setting: () if setting.hidden else setting.fitted,
    ),
    UserSetting: _Statement(
        user_claims.user_claims,
        user_claims.caveats,
        lambda setting: setting.against,
        user_claims.defect,
        lambda setting: setting.fitted,
    ),
    SoundSetting: _Statement(
        sound_claims.sound_claims, sound_claims.caveats, lambda setting: setting.adversary
    ),
    MemoizedSetting: _Statement(
        memoized_claims.memoized_claims,
        memoized_claims.caveats,
        lambda setting: "server",
        memoized_claims.obstacle,
    ),
}


def claims(setting: AnySetting) -> tuple[Claim, ...]:
    """Return the side-by-side table."""
    found, missing = _STATEMENTS[type(setting)].claims(setting), missing_premises(setting)
    if not missing:
        return tuple(map(_with_guess, found))
    said = f" NOT proved: {'; '.join(missing)}."
    return tuple(replace(c, holds=False, note=c.note + said, guess=None) if c.holds else c for c in found)


def meant_claim(setting: AnySetting) -> Claim:
    """Return the row of the table against whom a setting's noise is meant; of two relations the one that it meets."""
    against = _STATEMENTS[type(setting)].against(setting)
    return next(claim for claim in claims(setting) if claim.adversary == against)


def verdict(setting: AnySetting | None) -> Verdict:
    """Return whether a useful ε of a record, or a user, is proved, against whom, and in words."""
    if setting is None:
        return judge((), NO_NOISE)
    kind, found, missing = _STATEMENTS[type(setting)], claims(setting), missing_premises(setting)
    held = missing and any(claim.holds for claim in kind.claims(setting))
    reason = "; ".join(missing) if held else kind.obstacle(setting)
    caveats = () if reason and not any(claim.holds for claim in found) else kind.caveats(setting)
    meant, asides = meant_claim(setting), tuple[str, ...]()
    if not reason and setting.target is not None and meant.epsilon > setting.target * _ROUNDING:
        asides = (f"This is not the target ε = {setting.target:g}.",)
    return judge(map(vars, found), reason, asides=asides, caveats=caveats)


def missing_premises(setting: AnySetting) -> tuple[str, ...]:
    """Return what the proofs suppose and this setting does not have, one clause each."""
    fitted = _STATEMENTS[type(setting)].fitted
    if fitted is None:
        return ()
    assert not isinstance(setting, SoundSetting | MemoizedSetting)
    return (*fitted(setting), *(() if setting.planned else (_UNPLANNED,)))


def _with_guess(claim: Claim) -> Claim:
    """Return a proved row with how often an attacker is right: of a closed form by its μ, which ε and δ give back."""
    closed = claim.accountant.startswith(_CLOSED) and claim.guess is None and claim.adversary != PAPER
    if not (closed and claim.holds and math.isfinite(claim.epsilon)):
        return claim
    return replace(claim, guess=guess_of(mu_of(claim.epsilon, claim.delta)))
