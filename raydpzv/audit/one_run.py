"""The audit of one more run: many canaries, each in or out by a coin, and guesses counted.

Source: Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run". It needs no ledger and speaks of an
outsider, who has the final model and both versions of each canary.
"""

# m canaries

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from raydpzv.audit.canaries import Canary, neighbour
from raydpzv.audit.final_model import evidence
from raydpzv.audit.lower_bounds import CONFIDENCE, SURE, epsilon_of_guesses
from raydpzv.audit.recorded import RecordedRun
from raydpzv.audit.rerun import check_rerunnable, final_models
from raydpzv.errors import SpecError
from raydpzv.keys import Key

FEWEST = 4
"""Canaries, of which half are guessed."""


@dataclass(frozen=True)
class GuessesAudit:
    """`right` of `guesses` about `canaries` coins; epsilon, surely: what they rule out at δ, at 95 and 99.9 %."""

    canaries: int
    guesses: int
    right: int
    epsilon: float
    surely: float
    delta: float


def audit_guesses(
    run: RecordedRun,
    canaries: Sequence[Canary],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> GuessesAudit:
    """Make one run like this one in which every canary is changed by a coin of its own, and guess the coins.

    The quarter with most evidence of being as read is guessed so, that with least to be changed; how many is fixed
    beforehand. Raises InputError.
    """
    check_rerunnable(run)
    if len(canaries) < FEWEST or len({canary.number for canary in canaries}) < len(canaries):
        raise SpecError(f"--canaries: wanted at least {FEWEST} different records, got {len(canaries)}")
    coins = (Key(0) / "audit" / "coins").generator().integers(2, size=len(canaries)).astype(bool)
    mixed = neighbour(run.prepared, [canary for canary, coin in zip(canaries, coins, strict=True) if coin])
    all_changed = neighbour(run.prepared, canaries)
    models = final_models(mixed)
    progress(1, 1)
    order, each = np.argsort(evidence(run.prepared, all_changed, canaries, models)), len(canaries) // 4
    right = int(coins[order[:each]].sum() + (~coins[order[-each:]]).sum())
    delta = run.delta("external")
    shown, surely = (
        epsilon_of_guesses(len(canaries), 2 * each, right, delta, level) for level in (CONFIDENCE, SURE)
    )
    return GuessesAudit(len(canaries), 2 * each, right, shown, surely, delta)
