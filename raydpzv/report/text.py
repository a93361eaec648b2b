"""Numbers and privacy claims as text. An ε is never printed without everything that gives it a meaning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NONE = "–"
CLAIMED = "claimed, not proved"
CHANGES = {"replace": "replace", "add_remove": "add or remove", "labels": "change the label of"}
"""What neighbouring data sets differ by, before the word for its unit."""
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

Claim = Mapping[str, Any]


def number(value: Any, digits: int = 4) -> str:
    """Return a number with `digits` significant digits; infinity as ∞; a dash where there is none."""
    if value is None or isinstance(value, str | bool):
        return NONE if value is None else "∞" if value == "infinity" else str(value)
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if isinstance(value, int):
        return f"{value:,}"
    whole = abs(value) >= 10**digits and abs(value) < 1e12
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def percent(value: Any) -> str:
    """Return a share of 1 as a percentage."""
    return NONE if value is None or math.isnan(value) else f"{100 * value:.2f} %"


def known(value: Any) -> bool:
    """Tell whether a summary's number is one: null and NaN are none."""
    return value is not None and not math.isnan(value)


def chosen(summary: Mapping[str, Any]) -> str | None:
    """Return the test accuracy of the model that the validation rows choose, and which that is; None without them."""
    best, update = summary.get("best_accuracy"), summary.get("best_update")
    if not known(best) or update is None:
        return None
    by = percent(summary.get("validation_accuracy"))
    return f"{percent(best)}, chosen by validation ({by}) after update {update:,}"


def size_unit(largest: float) -> tuple[float, str]:
    """Return the divisor and the name of the binary unit in which `largest` bytes read best."""
    power = min(int(math.log2(largest)) // 10, len(_SIZES) - 1) if largest >= 1 else 0
    return 1024.0**power, _SIZES[power]


def size(count: int | None) -> str:
    """Return a number of bytes in its binary unit."""
    if count is None:
        return NONE
    divisor, unit = size_unit(count)
    return f"{count} B" if unit == "B" else f"{count / divisor:.2f} {unit}"


def seconds(value: float | None) -> str:
    """Return a duration; above two minutes also in hours, minutes and seconds."""
    if value is None or math.isnan(value):
        return NONE
    if value < 120:
        return f"{number(float(value))} s"
    minutes, rest = divmod(round(value), 60)
    return f"{value:,.0f} s ({minutes // 60}:{minutes % 60:02d}:{rest:02d})"


def duration(value: float) -> str:
    """Return a duration of real time in words, to the second: "12 s", "3 min 05 s", "2 h 10 min"."""
    minutes, rest = divmod(round(value), 60)
    if minutes < 1:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def epsilon_of(claim: Claim) -> float:
    """Return a claim's ε as a float: infinity for "infinity", NaN where none is stated."""
    value = claim.get("epsilon")
    return math.nan if value is None else math.inf if value == "infinity" else float(value)


def standing(claim: Claim) -> str:
    """Return whether the claim's ε is proved; an infinite ε bounds nothing, whoever states it."""
    if math.isinf(epsilon_of(claim)):
        return "nothing proved"
    return "proved" if claim["holds"] else CLAIMED


def proves(claim: Claim) -> bool:
    """Return whether the claim is a proved, finite ε."""
    return bool(claim["holds"]) and math.isfinite(epsilon_of(claim))


def relation(claim: Claim) -> str:
    """Return the neighbouring relation in words."""
    name = str(claim["relation"])
    return f"{CHANGES[name]} {unit(claim)}" if name in CHANGES else name


def unit(claim: Claim) -> str:
    """Return what privacy is of: "one record" where the claim says nothing else."""
    return str(claim.get("scope") or "").rpartition("unit: ")[2] or "one record"


def of_users(claims: Sequence[Claim]) -> bool:
    """Tell whether privacy is one user's."""
    return any(unit(claim) == "one user" for claim in claims)


def claim_text(claim: Claim) -> str:
    """Return a claim in one line, complete: ε, δ, adversary, mechanism, relation, accountant, standing."""
    reach = claim.get("sensitivity")
    terms = [f"mechanism {claim['mechanism']}", f"relation {relation(claim)}"]
    terms += [f"sensitivity {number(reach)}"] if reach is not None else []
    return (
        f"ε = {number(epsilon_of(claim))}, δ = {number(claim['delta'])}, adversary {claim['adversary']}: "
        f"{', '.join(terms)}, accountant {claim['accountant']}; {standing(claim)}"
    )


def claim_behind(claims: Sequence[Claim], adversary: str, last: float) -> Claim | None:
    """Return the claim that states the terms of a series of ε, or None if the summary states none.

    `adversary` is "paper" (what the paper claims) or "client" (what is proved against clients). Among
    several, as under two neighbouring relations, it is the one with ε nearest to the series' last value.
    """
    chosen = [c for c in claims if c["adversary"] == adversary and (c["holds"] or adversary == "paper")]
    return min(chosen, key=lambda c: _distance(epsilon_of(c), last), default=None)


def _distance(epsilon: float, last: float) -> float:
    return abs(epsilon - last) if math.isfinite(epsilon) else math.inf
