"""The privacy claims of a run as one table: what all rows share once above it, each note once below it.

A claim is a row of summary.json's "epsilon": a dict of `raydpzv.privacy.claims.Claim`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from raydpzv.privacy import claim_words
from raydpzv.report import text
from raydpzv.report.table import HeadTable

CONDITION = "* No guarantee: what ε would be, all else equal, if nobody kept hidden state."
"""What the conditional column means; stands below a table that has one."""

_CONDITIONAL = "if no hidden state*"
_NOISE = "z (noise\n/sens.)"
_RIGHT = ("ε", "guess", _NOISE, _CONDITIONAL)
_ROOMY = 100  # columns from which the table needs not be squeezed


@dataclass(frozen=True)
class ClaimRow:
    """What rows of privacy tables share: against whom, for which neighbours, and numbers of notes, from 1."""

    adversary: str
    relation: str
    notes: tuple[int, ...]


@dataclass(frozen=True)
class PrivacyRow(ClaimRow):
    """A claim as text, or several that differ in adversary or relation alone."""

    epsilon: str
    guess: str
    standing: str
    sensitivity: str
    multiplier: str
    accountant: str
    conditional: str


@dataclass(frozen=True)
class PrivacyTable:
    """Claims side by side. `heads` leaves out the conditional column where no row has such a number.

    measured: what the sensitivity is of.
    """

    shared: tuple[str, ...]
    rows: tuple[PrivacyRow, ...]
    notes: tuple[str, ...]
    conditional: bool
    measured: str = ""

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the columns, as `cells` fills them."""
        reach = f"sensitivity\n({self.measured})" if self.measured else "sensitivity"
        fixed = ("adversary", "relation", "ε", "guess", "standing", reach, _NOISE, "accountant")
        return (*fixed, _CONDITIONAL) if self.conditional else fixed

    def cells(self, row: PrivacyRow) -> tuple[str, ...]:
        """Return a row's cells under `heads`; the numbers of its notes are with the adversary."""
        who = " ".join([row.adversary, *(f"[{n}]" for n in row.notes)])
        first = (who, row.relation, row.epsilon, row.guess, row.standing)
        fixed = (*first, row.sensitivity, row.multiplier, row.accountant)
        return (*fixed, row.conditional) if self.conditional else fixed


def privacy_table(claims: Sequence[claim_words.Claim], *, explained: bool = True) -> PrivacyTable | None:
    """Return the claims side by side; None where no noise is added, so that a table would say nothing.

    explained: with notes and the conditional column, which no one should read without its own note.
    """
    if not explained:
        claims = [{**c, "note": "", "direct_only": None} for c in claims]
    noised = [c for c in claims if c["mechanism"] != "none"]
    if not noised:
        return None
    notes = list(dict.fromkeys(str(c["note"]) for c in claims if c.get("note")))
    return PrivacyTable(
        shared=_shared(noised[0]),
        rows=tuple(merged([_row(c, notes) for c in claims])),
        notes=tuple(notes),
        conditional=any(c.get("direct_only") is not None for c in claims),
        measured=str(noised[0].get("measured") or ""),
    )


R = TypeVar("R", bound=ClaimRow)


def merged(rows: Sequence[R]) -> list[R]:
    """Return rows with those that differ in adversary or relation alone as one; their notes add up."""
    order = list(dict.fromkeys(row.adversary for row in rows))
    found = list(rows)
    for name in ("relation", "adversary"):
        once: dict[R, R] = {}
        for row in found:
            key = _changed(row, {name: "", "notes": ()})
            there = once.setdefault(key, row)
            if there is not row:
                notes = tuple(dict.fromkeys(there.notes + row.notes))
                both = dict.fromkeys([*getattr(there, name).split(", "), getattr(row, name)])
                once[key] = _changed(there, {name: ", ".join(both), "notes": notes})
        found = list(once.values())
    return sorted(found, key=lambda row: order.index(row.adversary.partition(", ")[0]))


def _changed(row: R, fields: Mapping[str, Any]) -> R:
    return replace(row, **fields)


@dataclass(frozen=True)
class PrivacyBlock:
    """The table for a console of 80 columns and more, with what belongs above and below it.

    explain: with its notes; else without them and without the conditional column, which no one should read alone.
    """

    claims: Sequence[claim_words.Claim]
    explain: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the block's parts; nothing where no noise is added."""
        found = privacy_table(self.claims, explained=self.explain)
        if found is None:
            return
        yield from map(Text, found.shared)
        yield Text()
        yield _grid(found, options.max_width)
        if not self.explain:
            return
        yield Text()
        if found.conditional:
            yield Text(CONDITION)
        yield _notes(found.notes)


def verdict_line(said: str) -> Text:
    """Return a verdict for the console; NOT PRIVATE stands out."""
    line = Text(said)
    line.highlight_words(["NOT PRIVATE"], "bold white on red")
    return line


def _shared(claim: claim_words.Claim) -> tuple[str, ...]:
    lines = [f"Mechanism: {claim['mechanism']}; δ = {text.number(claim['delta'])}."]
    if scope := claim.get("scope"):
        lines.append(f"Scope: {scope}.")
    return tuple(lines)


def _row(claim: claim_words.Claim, notes: Sequence[str]) -> PrivacyRow:
    standing = claim_words.standing(claim)
    return PrivacyRow(
        adversary=claim_words.adversary_cell(claim),
        relation=claim_words.relation_cell(claim),
        epsilon=text.number(claim_words.epsilon_of(claim)),
        guess=claim_words.guess(claim) or text.NONE,
        standing="claimed" if standing == claim_words.CLAIMED else standing,
        sensitivity=text.number(claim.get("sensitivity")),
        multiplier=text.number(claim.get("multiplier")),
        accountant=claim_words.accountant_cell(claim),
        conditional=text.number(claim.get("direct_only")),
        notes=(notes.index(str(claim["note"])) + 1,) if claim.get("note") else (),
    )


def _grid(found: PrivacyTable, width: int) -> HeadTable:
    """Every column keeps its words whole; for want of room those of words alone take two lines a row.

    The noise over the sensitivity, and squeezed the guess beside the conditional column, are left out for it.
    """
    squeezed = width < _ROOMY
    gap = 0 if squeezed else 1
    table = HeadTable(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    unshown = {_NOISE} if squeezed or found.conditional else set()
    unshown |= {"guess"} if squeezed and found.conditional else set()
    shown = [head for head in found.heads if head not in unshown]
    rows = [dict(zip(found.heads, found.cells(row), strict=True)) for row in found.rows]
    columns = {head: [*head.split("\n"), *(row[head] for row in rows)] for head in shown}
    if found.conditional:
        columns[_CONDITIONAL] = ["hidden", *(row[_CONDITIONAL] for row in rows)]
    widths = {head: max(map(len, cells)) for head, cells in columns.items()}
    for head in ("accountant", "relation", "adversary", "standing"):
        if sum(widths.values()) + len(shown) * (1 + gap) > width:
            widths[head] = _two_lines(columns[head])
    for head in shown:
        number = head in _RIGHT or head.startswith("sensitivity")
        table.add_column(head, justify="right" if number else "left", width=widths[head])
    for row, cells in zip(found.rows, rows, strict=True):
        style = "green" if row.standing == "proved" else "red"
        table.add_row(*(Text(cells[head], style if head == "standing" else "") for head in shown))
    return table


def _two_lines(cells: Sequence[str]) -> int:
    """Return the least width at which no cell takes more than two lines or breaks a word."""
    least = max(len(word) for cell in cells for word in cell.split())
    widest = max(map(len, cells))
    return next(w for w in range(least, widest + 1) if all(len(textwrap.wrap(c, w)) <= 2 for c in cells))


def _notes(notes: Sequence[str]) -> Table:
    """Numbered notes, wrapped to the console's width and indented behind their numbers."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for number, note in enumerate(notes, 1):
        grid.add_row(Text(f"[{number}]"), Text(note))
    return grid
