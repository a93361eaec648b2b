"""What every row of a privacy table says, whatever was noised, and what no ε ever includes."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNCHARGED = (
    "hyper-parameter search",
    "evaluation (every accuracy and loss that is shown)",
    "the choice of the best model",
    "the timing of messages",
)
"""What no ε here ever includes."""

COUNTS_KNOWN = ", its record counts known"
"""Ends the unit of a claim against somebody who knows how many records a user has in each silo."""


@dataclass(frozen=True)
class Claim:
    """One row of the table. `holds`: is ε proved against this adversary? `note`: why, or on what
    condition.

    `sensitivity` is how far one record is taken to move what is released in this row's accounting,
    NaN where nothing is accounted, and `measured` says what of. `scope`: what the accounting spans.
    `direct_only` is no
    guarantee: it is what ε would be if the server kept no hidden state, None where the question
    does not arise.
    `guess`: how often an attacker who knows all else is right at most, who must tell the neighbours
    apart; None where
    no ε is proved. `multiplier`: the noise of one release over what one record moves of it.
    `premise`: a sentence on what its user states to be public, "" where nothing is proved or stated.
    """

    adversary: str
    epsilon: float
    delta: float
    mechanism: str
    sensitivity: float
    relation: str
    accountant: str
    holds: bool
    note: str
    scope: str
    direct_only: float | None = None
    guess: float | None = None
    multiplier: float | None = None
    measured: str = ""
    premise: str = ""


def figure(value: float) -> str:
    """Return a number as verdicts and notes print it."""
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if 1e4 <= value < 1e12 else f"{value:.4g}"
