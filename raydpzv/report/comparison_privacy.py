"""What is proved against whom, for all lines of a comparison: equal rows appear once, each note
once below.

A claim is a row of `raydpzv.report.comparison_table.CLAIMS`. Of the seeds of a line the largest ε
counts, and it is proved only if it is for every seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from raydpzv.grouping import grouped
from raydpzv.privacy import claim_words
from raydpzv.report import text
from raydpzv.report.comparison_lines import CALIBRATED, calibrated, named
from raydpzv.report.privacy import ClaimRow, merged, proved_mark
from raydpzv.report.table import Column, Grid, grid

MEANING = (
    "ε: the largest over the seeds, infinite (∞) where nothing is bounded. The ε that noise is "
    "calibrated to is what a calibration aims at; proved is what this table says is proved, "
    "against the adversary in the same row alone."
)
Place = tuple[str, float | None]
"""A line: its label and the ε that its noise is calibrated to."""


@dataclass(frozen=True)
class ComparedClaim(ClaimRow):
    """A row as text, of all the lines for which it is the same; the scope is among its notes."""

    who: tuple[Place, ...]
    epsilon: str
    guess: str
    standing: str
    delta: str
    mechanism: str
    accountant: str

    def together(self) -> dict[str, str]:
        """Return the labels that share the same values of ε, by these."""
        spent = grouped((label, calibrated(epsilon)) for label, epsilon in self.who)
        together = grouped((", ".join(values), label) for label, values in spent.items())
        return {values: "; ".join(labels) for values, labels in together.items()}


def _numbers(row: ComparedClaim) -> str:
    return "".join(f"[{n}]" for n in row.notes)


_COLUMNS: tuple[Column[ComparedClaim], ...] = (
    Column("method", lambda r: "\n".join(r.together().values()), align="left"),
    Column(CALIBRATED, lambda r: "\n".join(r.together()), align="left"),
    Column("adversary", lambda r: r.adversary, align="left"),
    Column("relation", lambda r: r.relation, align="left"),
    Column("ε", lambda r: r.epsilon),
    Column("guess", lambda r: r.guess),
    Column("standing", lambda r: r.standing, align="left", mark=proved_mark),
    Column("δ", lambda r: r.delta),
    Column("mechanism", lambda r: r.mechanism, align="left"),
    Column("accountant", lambda r: r.accountant, align="left"),
    Column("notes", _numbers, align="left"),
)
"""Methods with other values of ε have lines of their own."""


@dataclass(frozen=True)
class ComparedPrivacy:
    """Rows and the notes they number; `without`: sentences on the lines of which no ε is stated."""

    rows: tuple[ComparedClaim, ...]
    without: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def grid(self) -> Grid:
        """The rows as text."""
        return grid(_COLUMNS, self.rows)

    @property
    def beside(self) -> Grid:
        """The rows as text without numbers of notes, for a page that has the notes beside the
        rows.
        """
        return grid(_COLUMNS[:-1], self.rows)


def compared_privacy(claims: pa.Table, runs: pa.Table) -> ComparedPrivacy:
    """Return what is claimed for the lines with noise, and which lines have none."""
    stated = claims.to_pylist()
    noised = {_place(c) for c in stated if c["mechanism"] != "none"}
    chosen = [_largest(g) for g in _groups(c for c in stated if _place(c) in noised)]
    notes = list(dict.fromkeys(note for c in chosen for note in _notes(c)))
    of_line = grouped((_place(c), _row(c, notes)) for c in chosen)
    rows = _shared([merged(group) for group in of_line.values()])
    return ComparedPrivacy(tuple(rows), tuple(_without(runs, noised)), tuple(notes))


def privacy_line(claims: pa.Table, runs: pa.Table) -> str:
    """Return in a line how many lines with noise are private, and in words the smallest and the
    largest ε of these.
    """
    stated = claims.to_pylist()
    noised = {_place(c) for c in stated if c["mechanism"] != "none"}
    if not noised and any(_asked(r) and r["outcome"] != "ok" for r in runs.to_pylist()):
        return "Privacy: of the lines with noise no run has a result; nothing can be said."
    if not noised:
        return "Privacy: no line adds noise; there is no ε, and nothing is private."
    exposed = {_place(r) for r in runs.to_pylist() if not r["private"]}
    largest = map(_largest, _groups(c for c in stated if _place(c) in noised - exposed))
    worst = grouped((_place(claim), _stated(claim)) for claim in largest)
    found = {place: claim_words.judge(rows) for place, rows in worst.items()}
    private = sorted((p for p in found if found[p].private), key=lambda p: _least(worst[p]))
    if not private:
        some = "the only line" if len(noised) == 1 else f"any of the {len(noised)} lines"
        return f"Privacy: NOT PRIVATE, no useful ε is proved for {some} with noise."
    some = "the only line" if len(noised) == 1 else f"{len(private)} of {len(noised)} lines"
    said = f"Privacy: {some} with noise {'is' if len(private) == 1 else 'are'} private"
    left = "" if len(private) == len(noised) else "; the others are NOT PRIVATE"
    words = {
        place: f"{named(*place)}: {found[place].headline()}" for place in (private[0], private[-1])
    }
    return " ".join([f"{said}{left}.", *words.values()])


def _least(rows: Sequence[Mapping[str, Any]]) -> float:
    return min(float(row["epsilon"]) for row in rows if claim_words.useful(row))


def _asked(run: Mapping[str, Any]) -> bool:
    """Return whether noise was asked for."""
    return any(run[name] is not None for name in ("epsilon", "multiplier", "sigma"))


def _place(row: Mapping[str, Any]) -> Place:
    return row["label"], row["epsilon"]


def _groups(claims: Iterable[Mapping[str, Any]]) -> Iterable[list[Mapping[str, Any]]]:
    """Return what the seeds of a line say on one adversary under one relation, line by line."""
    of_line = grouped((_place(c), c) for c in claims)
    return [
        group
        for own in of_line.values()
        for group in grouped(((c["adversary"], c["relation"]), c) for c in own).values()
    ]


def _largest(seeds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the claim with the largest ε; one that is not stated bounds nothing. Proved: for every
    seed.
    """
    known = [
        c if not math.isnan(c["claimed"]) else {**c, "claimed": math.inf, "holds": False}
        for c in seeds
    ]
    worst = max(known, key=lambda c: float(c["claimed"]))
    return {**worst, "holds": all(c["holds"] for c in known)}


def _notes(claim: Mapping[str, Any]) -> list[str]:
    scope = f"Scope: {claim['scope']}." if claim["scope"] and claim["mechanism"] != "none" else ""
    return [*claim_words.notes_of(_stated(claim)), *([scope] if scope else [])]


def _row(claim: Mapping[str, Any], notes: Sequence[str]) -> ComparedClaim:
    return ComparedClaim(
        who=(_place(claim),),
        adversary=claim_words.adversary_cell(claim),
        relation=claim_words.relation_cell(claim),
        epsilon=claim_words.cut(_stated(claim)) or text.number(claim["claimed"]),
        guess=claim_words.guess(_stated(claim)) or text.NONE,
        standing=claim_words.standing(_stated(claim)),
        delta=text.number(claim["delta"]),
        mechanism=str(claim["mechanism"]),
        accountant=claim_words.accountant_cell(claim),
        notes=tuple(notes.index(note) + 1 for note in _notes(claim)),
    )


def _stated(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of CLAIMS as a claim: in `CLAIMS`, epsilon is what the line's noise is
    calibrated to.
    """
    return {**claim, "epsilon": claim["claimed"]}


def _shared(groups: Sequence[Sequence[ComparedClaim]]) -> list[ComparedClaim]:
    """Return the rows of all lines, of lines with equal rows once; rows without a mechanism come
    last, each once.
    """
    blocks: dict[tuple[ComparedClaim, ...], tuple[Place, ...]] = {}
    for plain in (False, True):
        for rows in groups:
            own = tuple(replace(row, who=()) for row in rows if (row.mechanism == "none") is plain)
            blocks[own] = blocks.get(own, ()) + rows[0].who
    return [replace(row, who=who) for block, who in blocks.items() for row in block]


def _without(runs: pa.Table, noised: set[Place]) -> Iterable[str]:
    places = {_place(r): _asked(r) for r in runs.to_pylist()}
    plain = [place[0] for place, asked in places.items() if not asked and place not in noised]
    if plain:
        yield f"{'; '.join(plain)}: no noise, no ε."
    yield from (
        f"{named(*place)}: no run has finished, no ε is stated."
        for place, asked in places.items()
        if asked and place not in noised
    )
