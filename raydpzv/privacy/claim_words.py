"""Privacy claims in words: the one place that says PRIVATE or NOT PRIVATE, and what an ε means.

A claim here is a row of a privacy table as a mapping: the fields of `raydpzv.privacy.claims.Claim`,
or a row of summary.json's "epsilon", in which infinity is a word and NaN is null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydpzv.files import json_number
from raydpzv.grouping import grouped
from raydpzv.privacy.claims import COUNTS_KNOWN, figure

USEFUL = 10.0
"""The largest ε that a verdict calls useful: above it an attacker with all else at hand is nearly
always right.
"""
PAPER = "paper"
"""Stands in the place of an adversary where a row says what the paper's accountant states."""
CLAIMED, TOO_LARGE, NOTHING = "claimed, not proved", "no useful ε", "nothing proved"
CHANGES = {"replace": "replace", "add_remove": "add or remove", "labels": "change the label of"}
"""What neighbouring data sets differ by, before the word for its unit."""
RELATIONS = {"replace": "replace", "add_remove": "add/remove"}
"""The same in a table's cell."""
_BOTH = "add, remove or replace"
_TOLD = {
    "replace": "tells two versions of {unit} apart",
    "labels": "tells two labels of {unit} apart",
    "add_remove": "tells whether {unit} took part",
}
_ROUNDING = 1 + 1e-6
_MIND = " Mind: "
_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z])")
_TOO_LARGE, _NO_EPSILON = "no useful ε is proved", "no ε is proved"

Claim = Mapping[str, Any]


def epsilon_of(claim: Claim) -> float:
    """Return a claim's ε as a float: infinity for "infinity", NaN where none is stated."""
    return json_number(claim.get("epsilon"))


def proves(claim: Claim) -> bool:
    """Return whether the claim is a proved, finite ε."""
    return bool(claim["holds"]) and math.isfinite(epsilon_of(claim))


def small(epsilon: Any) -> Any:
    """Return whether an ε is small enough to mean something, bool; of an array, for each value."""
    return epsilon <= USEFUL * _ROUNDING


def useful(claim: Claim) -> bool:
    """Return whether the claim is a proved ε that is small enough to mean something."""
    return proves(claim) and bool(small(epsilon_of(claim)))


def standing(claim: Claim) -> str:
    """Return whether the claim's ε is proved; an infinite ε bounds nothing."""
    if math.isinf(epsilon_of(claim)):
        return NOTHING
    if not claim["holds"]:
        return CLAIMED
    return "proved" if useful(claim) else TOO_LARGE


def cut(claim: Claim) -> str:
    """Return "> 10" in place of a proved ε that is too large to mean something; "" for others."""
    return f"> {USEFUL:g}" if standing(claim) == TOO_LARGE else ""


def notes_of(claim: Claim) -> list[str]:
    """Return what belongs below a table with this claim: its note, and the ε that its cell cuts."""
    whom, bound = f"{adversary_cell(claim)}, {relation_cell(claim)}", _figure(epsilon_of(claim))
    beyond = f"Proved ({whom}): ε = {bound}, which hardly limits an attacker." if cut(claim) else ""
    return [str(note) for note in (claim.get("note"), beyond) if note]


def unit(claim: Claim) -> str:
    """Return what privacy is of: "one record" where the claim says nothing else."""
    return str(claim.get("scope") or "").rpartition("unit: ")[2] or "one record"


def of_users(claims: Sequence[Claim]) -> bool:
    """Return whether privacy is one user's."""
    return any(unit(claim).startswith("one user") for claim in claims)


def relation(claim: Claim) -> str:
    """Return the neighbouring relation in words."""
    name = str(claim["relation"])
    return f"{CHANGES[name]} {unit(claim)}" if name in CHANGES else name


def relation_cell(claim: Claim) -> str:
    """Return the neighbouring relation for a table's cell."""
    name = str(claim["relation"])
    return RELATIONS.get(name, name)


def adversary_cell(claim: Claim) -> str:
    """Return against whom a row speaks, for a table's cell.

    A number of the paper's accountant holds against outsiders if it holds at all; else it names
    nobody.
    """
    if claim["adversary"] == PAPER:
        return "external" if claim["holds"] else "–"
    return f"{claim['adversary']}{' (knows counts)' if unit(claim).endswith(COUNTS_KNOWN) else ''}"


def accountant_cell(claim: Claim) -> str:
    """Return who or what states the number, for a table's cell."""
    stated = str(claim["accountant"])
    return f"paper's {stated}" if claim["adversary"] == PAPER and stated != "none" else stated


def guess(claim: Claim) -> str:
    """Return how often an attacker is right at most, as a percentage; "" where the claim does not
    say.
    """
    chance = claim.get("guess")
    if chance is None or not proves(claim) or math.isnan(chance):
        return ""
    up = math.ceil(1000 * chance - 1e-6) / 10  # a bound: never rounded down
    return f"{up:.{0 if up == 100 else 1}f} %"


def claim_text(claim: Claim) -> str:
    """Return a claim in one line, complete: ε, δ, adversary, mechanism, relation, accountant,
    standing.
    """
    reach = claim.get("sensitivity")
    terms = [f"mechanism {claim['mechanism']}", f"relation {relation(claim)}"]
    terms += [f"sensitivity {_figure(reach)}"] if reach is not None else []
    whom = "external" if claim["adversary"] == PAPER and claim["holds"] else claim["adversary"]
    against = "" if whom == PAPER else f", adversary {whom}"
    return (
        f"ε = {_figure(epsilon_of(claim))}, δ = {_figure(claim['delta'])}{against}: "
        f"{', '.join(terms)}, accountant {accountant_cell(claim)}; {standing(claim)}"
    )


def claim_behind(claims: Sequence[Claim], adversary: str, last: float) -> Claim | None:
    """Return the claim that states the terms of a series of ε, or None if the summary states none.

    `adversary` is `PAPER` (what the paper's accountant states) or whom it is proved against. Among
    several, as under two neighbouring relations, it is the one with ε nearest to the series' last
    value.
    """
    chosen = [
        c for c in claims if c["adversary"] == adversary and (c["holds"] or adversary == PAPER)
    ]
    return min(chosen, key=lambda c: _distance(epsilon_of(c), last), default=None)


@dataclass(frozen=True)
class Verdict:
    """What a privacy table comes to, for a reader who reads one line.

    reason: why it is not private, a clause without a full stop, "" if it is. lead: PRIVATE, with
    whom it is against where others see more, or NOT PRIVATE and the reason. bounds: each ε in
    words. proved: is any ε proved of those whom the noise is meant to hide, however large? premise:
    what its user states to be public, in a sentence, "" for nothing. asides:
    sentences on what else a reader must know; caveats: clauses on what no ε covers.
    """

    reason: str
    proved: bool
    lead: str
    bounds: str
    premise: str = ""
    asides: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        """Whether a useful ε is proved."""
        return not self.reason

    @property
    def text(self) -> str:
        """The headline, and what no ε covers."""
        return " ".join(filter(None, (self.lead, self.bounds, self.premise, *self._notes)))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Each ε in words, a sentence each."""
        return tuple(_SENTENCE_END.split(self.bounds))

    @property
    def rest(self) -> tuple[str, ...]:
        """What follows lead and premise, for a page."""
        return tuple(filter(None, (self.bounds, *self._notes)))

    @property
    def _notes(self) -> tuple[str, ...]:
        return (*self.asides, f"Mind: {'; '.join(self.caveats)}." if self.caveats else "")

    def headline(self, score: str = "") -> str:
        """Return the first line; score: a sentence on the accuracy, which never comes before NOT
        PRIVATE.
        """
        said = (score, self.bounds) if self.private else (self.bounds, score)
        return " ".join(filter(None, (self.lead, *said, self.premise, *self.asides)))


def judge(
    claims: Iterable[Claim],
    reason: str = "",
    *,
    asides: Sequence[str] = (),
    caveats: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on a table; reason: why nothing private is made whatever its numbers are,
    "" if none is known.

    A table without a useful ε is not private, whatever is proved.
    """
    rows = [c for c in claims if c["mechanism"] != "none" or proves(c)]
    proved = [c for c in rows if proves(c) and c["adversary"] != PAPER]
    good = [c for c in proved if useful(c)]
    found = reason or ("" if good else _TOO_LARGE if proved else _NO_EPSILON)
    stated = [
        c
        for c in rows
        if c["adversary"] == PAPER and not c["holds"] and math.isfinite(epsilon_of(c))
    ]
    said = found in (_TOO_LARGE, _NO_EPSILON) or not rows
    bounds = _bounds(proved) if good else "" if said else "No useful ε is proved."
    if stated:
        bounds += (
            f" The paper's accountant states ε = {_figure(epsilon_of(stated[0]))}, which is not "
            "proved."
        )
    lead = f"NOT PRIVATE: {found}." if found else f"PRIVATE{_alone(proved)}."
    premises = dict.fromkeys(str(c.get("premise") or "") for c in proved)
    return Verdict(
        found,
        bool(proved) and not reason,
        lead,
        bounds.strip(),
        " ".join(filter(None, premises)),
        tuple(asides),
        tuple(caveats),
    )


def smallest(claims: Sequence[Claim]) -> tuple[str, str]:
    """Return the smallest useful ε and against whom it is proved, in words; ("", "") without
    one.
    """
    good = [c for c in claims if useful(c) and c["adversary"] != PAPER]
    if not good:
        return "", ""
    least = min(map(epsilon_of, good))
    return _figure(least), _named([c["adversary"] for c in good if epsilon_of(c) == least], good)


def stated(summary: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a run's summary: private only where it says so and a useful ε is among
    its claims.
    """
    said = str(summary.get("privacy_verdict") or "")
    _, _, mind = said.partition(_MIND)
    reason = ""
    if summary.get("private") is not True:
        given = str(summary.get("private_reason") or said or "the summary gives no reason")
        reason = _SENTENCE_END.split(given)[0].removeprefix("NOT PRIVATE: ").removesuffix(".")
    asides = tuple(map(str, summary.get("privacy_asides") or ()))
    caveats = (mind.removesuffix("."),) if mind else ()
    return judge(summary.get("epsilon") or (), reason, asides=asides, caveats=caveats)


def withheld(summary: Mapping[str, Any]) -> bool:
    """Return whether what no ε covers stays with the operator: an ε is proved, useful or not."""
    return summary.get("proved", summary.get("private")) is True


def _alone(proved: Sequence[Claim]) -> str:
    """Return against whom alone a table is private; "" where it is against everybody of whom it
    speaks.
    """
    who = {c["adversary"]: False for c in proved}
    for claim in proved:
        who[claim["adversary"]] |= useful(claim)
    good = [name for name, holds in who.items() if holds]
    return "" if all(who.values()) else f" against {_named(good, proved)} alone"


def _bounds(proved: Sequence[Claim]) -> str:
    """Return each ε in words, adversaries with equal ones together, the smallest first."""
    tables = grouped((str(claim["adversary"]), claim) for claim in proved)
    groups = grouped(
        (tuple(map(_terms, rows)) if any(map(useful, rows)) else (), who)
        for who, rows in tables.items()
    )
    ordered = sorted(groups.values(), key=lambda names: min(map(epsilon_of, tables[names[0]])))
    said = [
        _bound(tables[names[0]], _named(names, proved), first=i == 0)
        for i, names in enumerate(ordered)
    ]
    return " ".join(said)


def _bound(rows: Sequence[Claim], whom: str, *, first: bool) -> str:
    """Return in a sentence or two what is proved against some adversaries under each relation."""
    good = [c for c in rows if useful(c)]
    if not good:
        return f"Against {whom} no useful ε is proved."
    head, *others = good
    equal = [c for c in others if _numbers(c) == _numbers(head)]
    both = {c["relation"] for c in (head, *equal)} >= {"replace", "add_remove"}
    change = f"{_BOTH} {unit(head)}" if both else relation(head)
    figures, chance = f"ε = {_figure(epsilon_of(head))}", guess(head)
    if first:
        told = _TOLD.get(str(head["relation"]), "tells two versions of {unit} apart").format(
            unit=unit(head).partition(",")[0]
        )
        words = (
            f": an attacker who knows all else {told} at most {chance} of the time (50 % is "
            "guessing)"
            if chance
            else ""
        )
        said = (
            f"{figures} (δ = {_figure(head['delta'])}, {change}) is proved against {whom}{words}."
        )
    else:
        said = f"Against {whom} it is {figures} ({change}){f': {chance}' if chance else ''}."
    for claim in (c for c in rows if c is not head and c not in equal):
        what = relation(claim)
        what = what[0].upper() + what[1:]
        if useful(claim):
            chance = guess(claim)
            said += f" {what}: ε = {_figure(epsilon_of(claim))}{f', {chance}' if chance else ''}."
        else:
            said += f" {what}: {_TOO_LARGE}."
    return said


def _named(names: Sequence[str], proved: Sequence[Claim]) -> str:
    """Return adversaries in words; a lone client sees no more than all of them."""
    users, known = of_users(proved), {c["adversary"] for c in proved}
    shown = [n for n in names if not (n == "client" and "all_clients" in names)]
    words = {
        "all_clients": "all clients together",
        "client": (
            "one silo"
            if users
            else "one client"
            if "all_clients" in known
            else "all clients together"
        ),
        "external": (
            "anyone who sees the released models" if users else "anyone who sees the final model"
        ),
        "server": "the server",
    }
    ordered = [n for n in words if n in shown] + [n for n in shown if n not in words]
    said = [words.get(n, n) for n in ordered]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _terms(claim: Claim) -> tuple[Any, ...]:
    return claim["relation"], unit(claim), *_numbers(claim)


def _numbers(claim: Claim) -> tuple[str, ...]:
    return _figure(epsilon_of(claim)), _figure(claim["delta"]), guess(claim)


def _figure(value: Any) -> str:
    return "∞" if value == "infinity" else "–" if value is None else figure(float(value))


def _distance(epsilon: float, last: float) -> float:
    return abs(epsilon - last) if math.isfinite(epsilon) else math.inf
