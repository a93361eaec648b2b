"""The privacy claims of a run as one table: what all rows share once above it, each note once below
it.

A claim is a row of summary.json's "epsilon": a dict of `raydpzv.privacy.claims.Claim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from raydpzv.config.catalog import scenario_of
from raydpzv.config.public_lists import stated_lists
from raydpzv.config.scenario import AnyScenario
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.notebook import table_html
from raydpzv.privacy import claim_words
from raydpzv.privacy.release import ReleasePlan, Verdict, verdict
from raydpzv.report import text
from raydpzv.report.table import Column, Grid, HeadTable, Mark, grid

CONDITION = "* No guarantee: what ε would be, all else equal, if nobody kept hidden state."
"""The meaning of the conditional column, printed below a table that has one."""

_CONDITIONAL = "if no hidden state*"
_NOISE = "z (noise\n/sens.)"
_ROOMY = 100  # columns from which the table needs not be squeezed


@dataclass(frozen=True)
class ClaimRow:
    """What rows of privacy tables share: against whom, for which neighbours, and numbers of notes,
    from 1.
    """

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
    """Claims side by side. `columns` leave out the conditional one where no row has such a number.

    measured: what the sensitivity is of.
    """

    shared: tuple[str, ...]
    rows: tuple[PrivacyRow, ...]
    notes: tuple[str, ...]
    conditional: bool
    measured: str = ""

    @property
    def columns(self) -> list[Column[PrivacyRow]]:
        """The columns; the numbers of a row's notes are with the adversary."""
        reach = f"sensitivity\n({self.measured})" if self.measured else "sensitivity"
        found: list[Column[PrivacyRow]] = [
            Column(
                "adversary",
                lambda r: " ".join([r.adversary, *(f"[{n}]" for n in r.notes)]),
                align="left",
            ),
            Column("relation", lambda r: r.relation, align="left"),
            Column("ε", lambda r: r.epsilon),
            Column("guess", lambda r: r.guess),
            Column("standing", lambda r: r.standing, align="left", mark=proved_mark),
            Column(reach, lambda r: r.sensitivity),
            Column(_NOISE, lambda r: r.multiplier),
            Column("accountant", lambda r: r.accountant, align="left"),
        ]
        return (
            [*found, Column(_CONDITIONAL, lambda r: r.conditional)] if self.conditional else found
        )

    @property
    def grid(self) -> Grid:
        """The rows as text under all columns."""
        return grid(self.columns, self.rows)

    @property
    def beside(self) -> Grid:
        """The rows as text without numbers of notes, for a page that has the notes beside the
        rows.
        """
        return grid(self.columns, [replace(row, notes=()) for row in self.rows])

    @property
    def notes_by_row(self) -> list[list[str]]:
        """The notes of each row."""
        return [[self.notes[n - 1] for n in row.notes] for row in self.rows]

    def console(self, width: int) -> HeadTable:
        """Return the table for a console, which has no room for the noise over the sensitivity
        beside the condition.

        A narrow one has none for it at all, nor for the guess beside the condition.
        """
        narrow = width < _ROOMY
        left_out = {_NOISE} if narrow or self.conditional else set()
        left_out |= {"guess"} if narrow and self.conditional else set()
        shown = grid([column for column in self.columns if column.title not in left_out], self.rows)
        return shown.console(gap=0 if narrow else 1)


def proved_mark(row: Any) -> Mark:
    """Return whether a row of a privacy table is proved, which is good news."""
    return "good" if row.standing == "proved" else "bad"


def privacy_table(
    claims: Sequence[claim_words.Claim], *, explained: bool = True
) -> PrivacyTable | None:
    """Return the claims side by side; None where no noise is added, so that a table would say
    nothing.

    explained: with notes and the conditional column, which no one should read without its own note.
    """
    if not explained:
        claims = [{**c, "direct_only": None} for c in claims]
    noised = [c for c in claims if c["mechanism"] != "none"]
    if not noised:
        return None
    notes = list(
        dict.fromkeys(note for c in claims if explained for note in claim_words.notes_of(c))
    )
    return PrivacyTable(
        shared=_shared(noised[0]),
        rows=tuple(merged([_row(c, notes) for c in claims])),
        notes=tuple(notes),
        conditional=any(c.get("direct_only") is not None for c in claims),
        measured=str(noised[0].get("measured") or ""),
    )


R = TypeVar("R", bound=ClaimRow)


def merged(rows: Sequence[R]) -> list[R]:
    """Return rows with those that differ in adversary or relation alone as one; their notes add
    up.
    """
    order = list(dict.fromkeys(row.adversary for row in rows))
    found = list(rows)
    for name in ("relation", "adversary"):
        once: dict[R, R] = {}
        for row in found:
            key = _changed(row, {name: "", "notes": ()})
            first = once.setdefault(key, row)
            if first is not row:
                notes = tuple(dict.fromkeys(first.notes + row.notes))
                both = dict.fromkeys([*getattr(first, name).split(", "), getattr(row, name)])
                once[key] = _changed(first, {name: ", ".join(both), "notes": notes})
        found = list(once.values())
    return sorted(found, key=lambda row: order.index(row.adversary.partition(", ")[0]))


def _changed(row: R, fields: Mapping[str, Any]) -> R:
    return replace(row, **fields)


@dataclass(frozen=True)
class PrivacyBlock:
    """The table for a console of 80 columns and more, with what belongs above and below it.

    explain: with its notes; else without them and without the conditional column, which no one
    should read alone.
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
        yield found.console(options.max_width)
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
        epsilon=claim_words.cut(claim) or text.number(claim_words.epsilon_of(claim)),
        guess=claim_words.guess(claim) or text.NONE,
        standing="claimed" if standing == claim_words.CLAIMED else standing,
        sensitivity=text.number(claim.get("sensitivity")),
        multiplier=text.number(claim.get("multiplier")),
        accountant=claim_words.accountant_cell(claim),
        conditional=text.number(claim.get("direct_only")),
        notes=tuple(notes.index(note) + 1 for note in claim_words.notes_of(claim) if note in notes),
    )


def _notes(notes: Sequence[str]) -> Table:
    """Numbered notes, wrapped to the console's width and indented behind their numbers."""
    lines = Table.grid(padding=(0, 1, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for number, note in enumerate(notes, 1):
        lines.add_row(Text(f"[{number}]"), Text(note))
    return lines


@dataclass(frozen=True)
class ScenarioPrivacy:
    """What a scenario claims before it trains.

    plan: its releases, None without noise; verdict: on its claims; lists: what is public of labels
    and categories.
    planned: is a number of updates planned, or is all of this for one update?
    """

    plan: ReleasePlan | None
    verdict: Verdict
    lists: tuple[str, ...]
    planned: bool

    @property
    def claims(self) -> list[dict[str, Any]]:
        """Every ε as a row with its adversary, relation, mechanism, accountant and whether it is
        proved.
        """
        return [asdict(claim) for claim in self.plan.claims()] if self.plan else []

    def __repr__(self) -> str:
        return self.verdict.text

    def _repr_html_(self) -> str:
        found = privacy_table(self.claims)
        rows, heads = (found.grid.rows, found.grid.heads) if found else ((), ())
        notes = [*(found.shared if found else ()), *(found.notes if found else ()), *self.lists]
        return table_html(self.verdict.headline(), rows, heads, notes)


def privacy(scenario: AnyScenario | str, rows: int | None = None) -> ScenarioPrivacy:
    """Return every ε of a scenario before it trains; rows: of training, if the data are not here.
    Raises InputError.
    """
    spec = scenario_of(scenario)
    plan = planned_privacy(spec, rows)
    lists = stated_lists(spec.data, spec.goal) if plan else ()
    return ScenarioPrivacy(
        plan, verdict(plan), lists, plan.planned if plan else spec.budget.updates is not None
    )
