"""What a run or a scenario comes to, in three lines: accuracy; ε and against whom; private or not, and why."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from raydpzv.records.outcome_words import shown
from raydpzv.report import horizontal, text

Summary = Mapping[str, Any]

_AGAINST = {"client": "the clients", "server": "the server", "external": "whoever sees the final model"}
_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z])")


def verdict_lines(summary: Summary) -> tuple[str, str, str]:
    """Return the three lines of a run's summary."""
    claims, stated = summary.get("epsilon") or (), str(summary.get("privacy_verdict") or "")
    return accuracy_line(summary), epsilon_line(claims), private_line(claims, stated)


def accuracy_line(summary: Summary) -> str:
    """Return the final test accuracy, or concordance, after how many updates, and what is wrong with it if anything."""
    updates = (
        horizontal.updates_text(summary)
        if horizontal.is_horizontal(summary)
        else text.number(summary.get("updates"))
    )
    unit = "" if "rounds" in updates or "updates" in updates else " updates"
    best = text.chosen(summary)
    ranked, accuracy = summary.get("concordance"), summary.get("accuracy")
    scored = (
        f"concordance {text.number(ranked)}" if text.known(ranked) else f"accuracy {text.percent(accuracy)}"
    )
    line = f"Test {scored} after {updates}{unit}"
    line += f" (best model: {best})" if best else ""
    if failure := summary.get("failure"):
        return f"{line}: NO RESULT, {shown(str(failure))}."
    if summary.get("status") != "done":
        return f"{line}; the run {shown(str(summary.get('stopped_by') or 'did not finish'))}."
    return f"{line}."


def epsilon_line(claims: Sequence[text.Claim]) -> str:
    """Return the ε that is proved, against whom and for which neighbours, and what the paper claims beside it.

    Of the claims against one adversary the largest ε counts: it holds under every relation that is stated.
    """
    if not any(c["mechanism"] != "none" for c in claims):
        return "No ε: no noise is added."
    proved = [c for c in claims if text.proves(c) and c["adversary"] in _AGAINST]
    against: dict[str, list[str]] = {}
    for who in (who for who in _AGAINST if any(c["adversary"] == who for c in proved)):
        bound = _bound([c for c in proved if c["adversary"] == who])
        against.setdefault(bound, []).append(
            "one silo" if who == "client" and text.of_users(claims) else _AGAINST[who]
        )
    said = [f"{bound} is proved against {' and '.join(who)}" for bound, who in against.items()]
    line = "; ".join(said) if said else "No finite ε is proved"
    if said and not any(c["adversary"] == "client" for c in proved):
        line += ", nothing against the clients"
    claimed = [c for c in claims if c["adversary"] == "paper" and math.isfinite(text.epsilon_of(c))]
    if claimed and not claimed[0]["holds"]:
        line += f"; the claimed ε = {text.number(text.epsilon_of(claimed[0]))} is not proved"
    return f"{line}."


def private_line(claims: Sequence[text.Claim], stated: str) -> str:
    """Return the first sentence of a privacy verdict that is no, or on what ε a yes rests."""
    sentences = _SENTENCE_END.split(stated)
    if stated.startswith("NOT PRIVATE"):
        return sentences[0]
    if not any(text.proves(c) for c in claims):
        return "NOT PRIVATE: no claim of the summary is a proved, finite ε."
    reservations = [s for s in sentences[1:] if not s.startswith("Mind:")]
    whom = "" if text.of_users(claims) else " against the clients"
    unit = text.unit(claims[0])
    return " ".join([f"PRIVATE{whom}, {unit} at a time, by the ε above.", *reservations])


def _bound(claims: Sequence[text.Claim]) -> str:
    """Return the largest ε of claims against one adversary, with δ and what neighbours differ in.

    Of users it is that of adding or removing one, as calibrations have it; the table has both.
    """
    stated = [c for c in claims if c["relation"] == "add_remove"] if text.of_users(claims) else claims
    worst = max(stated, key=text.epsilon_of)
    unit = text.unit(worst)
    change = text.CHANGES.get(str(worst["relation"]), str(worst["relation"]))
    return f"ε = {text.number(text.epsilon_of(worst))} (δ = {text.number(worst['delta'])}, {change} {unit})"
