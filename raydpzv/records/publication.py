"""What may leave of a private run, derived here alone: from the adversary that its proved rows speak of.

| proved rows                   | suppose                       | leave of the claims                              |
|-------------------------------|-------------------------------|--------------------------------------------------|
| one client's, all clients'    | the batches may be known      | all                                              |
| an outsider's, ε below theirs | batches, their sizes and      | the outsider's and the server's: the others tell |
|                               | their coins are secret        | how often a record was drawn                     |

In either case what was released leaves, the models, which follow from it, and the settings. What no ε covers stays,
though an adversary may know it: losses, accuracies (of held-out rows, without noise), batches, sizes, times, digests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydpzv.config.paths import PATHS
from raydpzv.privacy.claim_words import judge, of_users, stated

Claim = Mapping[str, Any]

_KNOW_BATCHES = ("all_clients", "client")
WITHHELD_PATH = "withheld"
"""Stands for the path of a file of the operator's."""
STAYS = "accuracies and losses, batches and their sizes, bytes, times, staleness, digests of data, secrets"
"""In words, what a publication lacks."""
_FACTS = (
    *("format", "scenario", "title", "method", "seed", "engine", "parties"),
    *("status", "stopped_by", "updates"),
    *("private", "private_reason", "proved", "privacy_verdict", "privacy_asides"),
    *("evaluated_model", "model_digest", "versions"),
)
_LEDGER = ("updates", "pairs", "digest")
_ENVIRONMENT = (
    *(
        "raydpzv",
        "python",
        "machine",
        "system",
        "threads",
        "device",
        "runner",
        "versions",
        "engine",
        "scenario",
    ),
    *("input_shapes", "input_shape", "classes"),
)


@dataclass(frozen=True)
class Publication:
    """The parts of a private run's record that may leave.

    adversary: whom the published rows are against, such as "client" or "external"; "" if no row holds for whoever sees
    what is published. settings: the scenario as a tree.
    """

    adversary: str
    summary: dict[str, Any]
    settings: dict[str, Any]
    environment: dict[str, Any]


def publication(
    summary: Mapping[str, Any], settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> Publication:
    """Return what may leave of a private run, given its summary, its settings as a tree and its environment."""
    adversary, claims = _leaving(summary.get("epsilon") or ())
    facts = {name: summary[name] for name in _FACTS if name in summary}
    if summary.get("status") != "done":
        facts.pop("stopped_by", None)  # an error's text may say anything
    if adversary == "external":
        facts |= _outsiders(claims, summary)
    facts["epsilon"] = [dict(c) for c in claims]
    if ledger := summary.get("ledger"):
        facts["ledger"] = {name: ledger[name] for name in _LEDGER if name in ledger}
    return Publication(
        adversary,
        facts | {"published": {"adversary": adversary, "withheld": STAYS}},
        _without_paths(settings),
        {name: environment[name] for name in _ENVIRONMENT if name in environment},
    )


def _leaving(claims: Sequence[Claim]) -> tuple[str, list[Claim]]:
    """Return whom the rows speak of that hold where the ledger is seen ("": none does), and the rows that leave."""
    known: dict[str, float] = {}
    for c in (c for c in claims if c["adversary"] in _KNOW_BATCHES):
        known[c["relation"]] = max(_proved(c), known.get(c["relation"], 0.0))
    outsiders = [c for c in claims if c["adversary"] == "external"]
    if any(_proved(c) < known.get(c["relation"], math.inf) for c in outsiders):
        return "external", [c for c in claims if c["adversary"] in ("external", "server")]
    proved = {c["adversary"] for c in claims if _proved(c) < math.inf}
    return next((who for who in (*_KNOW_BATCHES, "server") if who in proved), ""), list(claims)


def _proved(claim: Claim) -> float:
    """Return a claim's ε; infinity where none is proved. summary.json has "infinity" as a word, NaN as null."""
    epsilon = claim["epsilon"]
    return float(epsilon) if claim["holds"] and epsilon is not None else math.inf


def _outsiders(claims: Sequence[Claim], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on what is proved against outsiders alone, as fields of a summary."""
    others = "silos, who know their own part" if of_users(claims) else "the clients, who know their batches"
    sentence = f"Nothing is said here of {others}."
    found = judge(
        (c for c in claims if c["adversary"] == "external"),
        asides=[sentence],
        caveats=stated(summary).caveats,
    )
    reason = None if found.private else found.lead
    return {
        "private": found.private,
        "private_reason": reason,
        "privacy_verdict": found.text,
        "privacy_asides": [sentence],
    }


def _without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's tree in which every path of the operator's is a word."""
    return {
        name: {k: WITHHELD_PATH if (name, k) in PATHS else v for k, v in table.items()}
        if isinstance(table, Mapping)
        else table
        for name, table in settings.items()
    }
