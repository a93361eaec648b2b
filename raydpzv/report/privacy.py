"""The privacy claims of a run as one table: what all rows share once above it, each note once below it.

A claim is a row of summary.json's "epsilon": a dict of `raydpzv.privacy.mean_claims.Claim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from raydpzv.privacy.gdp import mu_of
from raydpzv.report import text
from raydpzv.report.head_table import HeadTable

CONDITION = "* No guarantee: what ε would be, all else equal, if nobody kept hidden state."
"""What the conditional column means; stands below a table that has one."""

_CONDITIONAL = "if no hidden state*"
_RIGHT = ("ε", "sensitivity", _CONDITIONAL)
_ROOMY = 100  # columns from which the table needs not be squeezed
_RELATIONS = {"replace": "replace", "add_remove": "add/remove"}


@dataclass(frozen=True)
class PrivacyRow:
    """One claim as text; `note` is the number of its note, 0 without one."""

    adversary: str
    relation: str
    epsilon: str
    standing: str
    sensitivity: str
    accountant: str
    conditional: str
    note: int


@dataclass(frozen=True)
class PrivacyTable:
    """Claims side by side. `heads` leaves out the conditional column where no row has such a number."""

    shared: tuple[str, ...]
    rows: tuple[PrivacyRow, ...]
    notes: tuple[str, ...]
    conditional: bool

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the columns, as `cells` fills them."""
        fixed = ("adversary", "relation", "ε", "standing", "sensitivity", "accountant")
        return (*fixed, _CONDITIONAL) if self.conditional else fixed

    def cells(self, row: PrivacyRow) -> tuple[str, ...]:
        """Return a row's cells under `heads`; the number of its note stands with the adversary."""
        who = f"{row.adversary} [{row.note}]" if row.note else row.adversary
        fixed = (who, row.relation, row.epsilon, row.standing, row.sensitivity, row.accountant)
        return (*fixed, row.conditional) if self.conditional else fixed


def privacy_table(claims: Sequence[text.Claim]) -> PrivacyTable | None:
    """Return the claims side by side; None where no noise is added, so that a table would say nothing."""
    noised = [c for c in claims if c["mechanism"] != "none"]
    if not noised:
        return None
    notes = list(dict.fromkeys(str(c["note"]) for c in claims if c.get("note")))
    return PrivacyTable(
        shared=_shared(noised[0]),
        rows=tuple(_row(c, notes) for c in claims),
        notes=tuple(notes),
        conditional=any(c.get("direct_only") is not None for c in claims),
    )


@dataclass(frozen=True)
class PrivacyBlock:
    """The table for a console of 80 columns and more, with what belongs above and below it.

    explain: with its notes; else without them and without the conditional column, which no one should read alone.
    """

    claims: Sequence[text.Claim]
    explain: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the block's parts; nothing where no noise is added."""
        found = privacy_table(self.claims)
        if found is None:
            return
        yield from map(Text, found.shared)
        yield Text()
        yield _grid(found, squeezed=options.max_width < _ROOMY, numbered=self.explain)
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


def calibration(facts: Mapping[str, Any]) -> str:
    """Return where σ comes from; `facts` are the fields of a `raydpzv.privacy` setting."""
    if "on" in facts:
        return _row_calibration(facts)
    if "users" in facts:
        return _user_calibration(facts)
    if "width" in facts:
        return _memoized_calibration(facts)
    if "noise_multiplier" in facts:
        return _sound_calibration(facts)
    sigma, target, delta = text.number(facts["sigma"]), facts["target"], facts["delta"]
    if target is None:
        return f"σ = {sigma} on the released mean is given by the scenario; it follows from no ε."
    clip, releases, rows = text.number(facts["clip"]), f"{facts['releases']:,}", f"{facts['rows']:,}"
    mu = text.number(mu_of(target, delta))
    return (
        f"Calibration: σ = 2C√T/(Dμ) = 2·{clip}·√{releases} / ({rows}·{mu}) = {sigma} on the released mean "
        f"(DPZV journal Theorem VI.5), from the target ε = {text.number(target)} at δ = {text.number(delta)} "
        f"(replace one record, as the paper claims it). Clip C = {clip}; T = {releases} planned "
        f"{'release' if releases == '1' else 'releases'}; D = {rows} training rows; μ = {mu} is the Gaussian DP "
        "that gives this ε and δ (closed form)."
    )


def _row_calibration(facts: Mapping[str, Any]) -> str:
    """The same for a `raydpzv.privacy.row_setting.RowSetting`."""
    sigma, target, what = text.number(facts["sigma"]), facts["target"], facts["on"]
    if target is None:
        return f"σ = {sigma} on each coordinate of every {what} row is given by the scenario; it follows from no ε."
    mu = text.number(mu_of(target, facts["delta"]))
    form = {
        "counted": "2S√n/μ, n releases of one record's rows if every client makes its expected share of the updates",
        "sampled": "2S (B/D) √K/μ, K releases of batches, the argument of DPZV journal Theorem VI.5",
    }[facts["calibration"]]
    return (
        f"Calibration: σ = {form}: {sigma} on each coordinate of every {what} row, from the target "
        f"ε = {text.number(target)} at δ = {text.number(facts['delta'])}. S = {text.number(facts['clip'])}; "
        f"μ = {mu} is the Gaussian DP that gives this ε and δ (closed form). The DPZV papers do not state how they "
        "calibrated their baselines' noise."
    )


def _sound_calibration(facts: Mapping[str, Any]) -> str:
    """The same for a `raydpzv.privacy.sound_setting.SoundSetting`."""
    z, updates = text.number(facts["noise_multiplier"]), f"{facts['updates']:,}"
    noise = f"noise of z = {z} times a record's largest part, and {updates} updates"
    if facts["target"] is None:
        return f"{noise[0].upper()}{noise[1:]}, are given by the scenario; ε follows from them."
    target, delta = text.number(facts["target"]), text.number(facts["delta"])
    return (
        f"Calibration: {noise}, for ε = {target} at δ = {delta}: μ² = n (c/z)² with n the most releases that one "
        "record takes part in by the plan, c = 2 (replace, labels) or 1 (add/remove), and μ the Gaussian DP that gives "
        "this ε and δ (closed form); against an outsider who knows no batches, by Poisson sampling (PLD)."
    )


def _user_calibration(facts: Mapping[str, Any]) -> str:
    """The same for a `raydpzv.privacy.user_setting.UserSetting`."""
    sigma = f"σ = {text.number(facts['multiplier'])}"
    if facts["target"] is None:
        return f"{sigma}, the noise in units of C, is given by the scenario; ε follows from it."
    noun = "releases" if facts["asynchronous"] else "rounds"
    return (
        f"Calibration: {sigma}, the noise in units of C, for ε = {text.number(facts['target'])} at δ = "
        f"{text.number(facts['delta'])} (add or remove one user, adversary {facts['against']}) over "
        f"{facts['releases']:,} {noun}: by μ, the Gaussian DP that gives this ε and δ, in closed form; by PLD where "
        "coins hide users or records."
    )


def _memoized_calibration(facts: Mapping[str, Any]) -> str:
    """The same for a `raydpzv.privacy.memoized_setting.MemoizedSetting`."""
    noise = f"σ = zS with z = {text.number(facts['noise_multiplier'])} and S = {text.number(facts['clip'])}"
    if facts["target"] is None:
        return f"{noise}, on each coordinate of every embedding, once, is given by the scenario; ε follows from it."
    return (
        f"Calibration: {noise}, on each coordinate of every embedding, once: z = 2/μ, for ε = "
        f"{text.number(facts['target'])} at δ = {text.number(facts['delta'])} (replace one record's features at one "
        "client), and μ the Gaussian DP that gives this ε and δ (closed form)."
    )


def _shared(claim: text.Claim) -> tuple[str, ...]:
    lines = [f"Mechanism: {claim['mechanism']}; δ = {text.number(claim['delta'])}."]
    if scope := claim.get("scope"):
        lines.append(f"Scope: {scope}.")
    return tuple(lines)


def _row(claim: text.Claim, notes: Sequence[str]) -> PrivacyRow:
    standing = text.standing(claim)
    return PrivacyRow(
        adversary=str(claim["adversary"]),
        relation=_RELATIONS.get(str(claim["relation"]), str(claim["relation"])),
        epsilon=text.number(text.epsilon_of(claim)),
        standing="claimed" if standing == text.CLAIMED else standing,
        sensitivity=text.number(claim.get("sensitivity")),
        accountant=str(claim["accountant"]),
        conditional=text.number(claim.get("direct_only")),
        note=notes.index(str(claim["note"])) + 1 if claim.get("note") else 0,
    )


def _grid(found: PrivacyTable, squeezed: bool, numbered: bool) -> HeadTable:
    """Every column keeps its words whole; squeezed, only the accountant's gives way, to two lines a row.

    numbered: with the numbers of the notes, and with the conditional column, which has a note of its own.
    """
    found = found if numbered else _without_notes(found)
    gap = 0 if squeezed else 1
    table = HeadTable(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    narrow = max([len("hidden"), *(len(row.conditional) for row in found.rows)])
    widths = {_CONDITIONAL: narrow} | (
        {"standing": len("standing")} if squeezed and found.conditional else {}
    )
    for head in found.heads:
        wraps = head == "accountant" or head in widths
        justify: Literal["left", "right"] = "right" if head in _RIGHT else "left"
        table.add_column(head, justify=justify, no_wrap=not wraps, width=widths.get(head))
    for row in found.rows:
        cells = [Text(cell) for cell in found.cells(row)]
        cells[found.heads.index("standing")].stylize("green" if row.standing == "proved" else "red")
        table.add_row(*cells)
    return table


def _without_notes(found: PrivacyTable) -> PrivacyTable:
    return replace(found, rows=tuple(replace(row, note=0) for row in found.rows), notes=(), conditional=False)


def _notes(notes: Sequence[str]) -> Table:
    """Numbered notes, wrapped to the console's width and indented behind their numbers."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for number, note in enumerate(notes, 1):
        grid.add_row(Text(f"[{number}]"), Text(note))
    return grid
