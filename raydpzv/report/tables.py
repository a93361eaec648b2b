"""A run's summary as rows of text, and as tables for the console.

A function ending in `_rows` returns plain text for any medium; one ending in `_table` renders those rows with
rich, readable at 100 columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from raydpzv.report import text

Summary = Mapping[str, Any]

_LEAST_WIDTHS = {"adversary": 12, "epsilon": 6, "mechanism": 18, "accountant": 16, "standing": 10}

CLAIM = "privacy claim"
"""The name of the summary rows that hold a claim; a page with a privacy table leaves them out."""

COMPARE_HEAD = (
    "run", "status", "accuracy", "best", "loss", "updates", "up", "down", "clock", "staleness", "private",
)  # fmt: skip
STALENESS_HEAD = ("client", "mean age", "max age", "mean delay", "max delay", "late share")


@dataclass(frozen=True)
class PrivacyRow:
    """One claim, every term as text."""

    adversary: str
    epsilon: str
    delta: str
    mechanism: str
    relation: str
    accountant: str
    standing: str
    note: str


@dataclass(frozen=True)
class Verdict:
    """Whether a run may be called private, and the reason or the claims that say so."""

    private: bool
    lines: tuple[str, ...]


def verdict(summary: Summary) -> Verdict:
    """Return PRIVATE only if the summary says so and states at least one proved, finite, complete claim."""
    reason = summary.get("private")
    if reason is not True:
        said = str(reason or "the summary gives no reason").removeprefix("NOT PRIVATE: ")
        return Verdict(False, (said,))
    proved = tuple(text.claim_text(c) for c in summary.get("epsilon") or () if text.proves(c))
    if not proved:
        return Verdict(False, ("no claim of the summary is a proved, finite ε",))
    return Verdict(True, proved)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return (name, value) for everything a summary says except the staleness of single clients."""
    judged = verdict(summary)
    stale = summary.get("staleness") or {}
    rows = [
        ("scenario", str(summary.get("scenario", text.NONE))),
        ("method", str(summary.get("method", text.NONE))),
        ("seed", str(summary.get("seed", text.NONE))),
        ("status", _status(summary)),
        ("test accuracy", text.percent(summary.get("accuracy"))),
        ("best test accuracy", text.percent(summary.get("best_accuracy"))),
        ("test loss", text.number(summary.get("loss"))),
        ("updates", text.number(summary.get("updates"))),
        ("bytes up", text.size(summary.get("bytes_up"))),
        ("bytes down", text.size(summary.get("bytes_down"))),
        ("wall time", text.seconds(summary.get("seconds"))),
        ("simulated time", text.seconds(summary.get("simulated_seconds"))),
        ("staleness", f"mean {text.number(stale.get('mean'))}, max {text.number(stale.get('max'))} rounds"),
        ("private", "yes" if judged.private else f"NOT PRIVATE: {judged.lines[0]}"),
    ]
    rows += [(CLAIM, text.claim_text(c)) for c in summary.get("epsilon") or ()]
    rows += [("digest of rows", str(summary.get("digest", text.NONE)))]
    rows += [("digest of model", str(summary.get("model_digest", text.NONE)))]
    versions = summary.get("versions") or {}
    return [*rows, ("versions", ", ".join(f"{k} {v}" for k, v in versions.items()) or text.NONE)]


def privacy_rows(claims: Sequence[text.Claim]) -> list[PrivacyRow]:
    """Return the claims side by side, every term as text."""
    return [
        PrivacyRow(
            adversary=str(c["adversary"]),
            epsilon=text.number(text.epsilon_of(c)),
            delta=text.number(c["delta"]),
            mechanism=str(c["mechanism"]),
            relation=text.relation(c),
            accountant=str(c["accountant"]),
            standing=text.standing(c),
            note=text.note(c),
        )
        for c in claims
    ]


def staleness_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return one row per client under STALENESS_HEAD: ages and delays in server rounds, late share."""
    return [
        (
            str(c["client"]),
            *(text.number(c.get(k)) for k in ("mean", "max", "delay_mean", "delay_max")),
            text.percent(c.get("late_share")),
        )
        for c in (summary.get("staleness") or {}).get("clients", ())
    ]


def compare_rows(labels: Sequence[str], summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Return one row per run under COMPARE_HEAD. ε is left to the privacy tables, which state its terms."""
    return [
        (
            label,
            str(s.get("status", text.NONE)),
            text.percent(s.get("accuracy")),
            text.percent(s.get("best_accuracy")),
            text.number(s.get("loss"), 3),
            text.number(s.get("updates")),
            text.size(s.get("bytes_up")),
            text.size(s.get("bytes_down")),
            text.seconds(s.get("simulated_seconds")),
            text.number((s.get("staleness") or {}).get("mean"), 3),
            "yes" if verdict(s).private else "NO",
        )
        for label, s in zip(labels, summaries, strict=True)
    ]


def summary_table(summary: Summary) -> Table:
    """Return the summary as a two-column console table."""
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in summary_rows(summary):
        bad = name == "private" and value != "yes"
        table.add_row(name, Text(value, style="bold red" if bad else ""))
    return table


def privacy_table(claims: Sequence[text.Claim]) -> Table:
    """Return the claims side by side; their notes stand below, by number."""
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, caption_justify="left"
    )
    heads = {"epsilon": "ε", "delta": "δ", "standing": "holds"}
    for field in fields(PrivacyRow)[:-1]:
        least = _LEAST_WIDTHS.get(field.name)
        table.add_column(heads.get(field.name, field.name), overflow="fold", min_width=least)
    notes: list[str] = []
    for row in privacy_rows(claims):
        cells = [Text(cell) for cell in astuple(row)[:-1]]
        if row.note:
            notes.append(row.note)
            cells[0].append(f" ({len(notes)})")
        cells[-1].stylize("green" if row.standing == "proved" else "red")
        table.add_row(*cells)
    table.caption = Text("\n".join(f"({i}) {note}" for i, note in enumerate(notes, 1))) if notes else None
    return table


def compare_table(labels: Sequence[str], summaries: Sequence[Summary]) -> Table:
    """Return one console row per run; ε is in `privacy_table`, where its terms have room."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    for i, head in enumerate(COMPARE_HEAD):
        table.add_column(head, overflow="fold", justify="left" if i < 2 else "right")
    for row in compare_rows(labels, summaries):
        cells = [Text(cell) for cell in row]
        cells[-1].stylize("green" if row[-1] == "yes" else "bold red")
        table.add_row(*cells)
    return table


def labels(summaries: Sequence[Summary]) -> list[str]:
    """Return labels that tell the runs apart: the method, and what differs of scenario and seed."""
    differing = [k for k in ("scenario", "seed") if len({str(s.get(k)) for s in summaries}) > 1]
    parts = {"method": [str(s.get("method")) for s in summaries]}
    parts |= {
        k: [str(s.get(k)) if k == "scenario" else f"{k} {s.get(k)}" for s in summaries] for k in differing
    }
    names = [", ".join(p) for p in zip(*parts.values(), strict=True)]
    if len(set(names)) < len(names):
        return [f"{name}, run {i}" for i, name in enumerate(names, 1)]
    return parts["method"] if len(set(parts["method"])) == len(names) else names


def _status(summary: Summary) -> str:
    status, by = str(summary.get("status", text.NONE)), summary.get("stopped_by")
    return f"{status} ({by})" if by else status
