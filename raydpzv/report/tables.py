"""A run's summary as rows of text, and as tables for the console.

A function ending in `_rows` returns plain text for any medium; one ending in `_table` renders those rows with
rich, readable at 100 columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from raydpzv.privacy.claim_words import stated, withheld
from raydpzv.records import traffic
from raydpzv.records.store import Rows
from raydpzv.records.summary_fields import NEWEST, shown
from raydpzv.report import horizontal, text
from raydpzv.report.head_table import HeadTable

Summary = Mapping[str, Any]

_DIGEST = 16  # hex digits shown on a console: enough to compare by eye

_COMPARED = (
    "run", "status", "accuracy", "best by validation", "ROC AUC", "PR AUC",
    "balanced accuracy", "concordance", "loss", "updates", "up", "down", "clock",
    "staleness", "private",
)  # fmt: skip
_IF_KNOWN = slice(3, 8)  # columns that stand only where a run has something in them
COMPARE_NOTE = (
    "Staleness: mean age of the cached embeddings used, in server rounds (vertical runs), or mean number of updates "
    "made between reading the model and the upload's own (horizontal runs). Best by validation: the test accuracy of "
    "the model that scores highest on the validation rows (data.validation_fraction)."
)
TARGET_HEAD = ("run", "test accuracy", "updates", "clock", "up", "down")


def summary_rows(summary: Summary, clock: str = "virtual") -> list[tuple[str, str]]:
    """Return (name, value) for what a summary says, but for privacy and the staleness of single clients.

    clock: the run's, "virtual" or "wall": its seconds are simulated or real.
    """
    across = horizontal.is_horizontal(summary)
    rows = [
        ("scenario", str(summary.get("scenario", text.NONE))),
        ("method", str(summary.get("method", text.NONE))),
        ("seed", str(summary.get("seed", text.NONE))),
        ("engine", str(summary.get("engine", "torch"))),
        ("status", _status(summary)),
        *_evaluated(summary),
        *([] if survives(summary) else [("test accuracy", text.percent(summary.get("accuracy")))]),
        *_best(summary),
        *_scores(summary),
        ("test loss", text.number(summary.get("loss"))),
        ("updates", horizontal.updates_text(summary) if across else text.number(summary.get("updates"))),
        ("bytes up", text.size(summary.get("bytes_up"))),
        ("bytes down", text.size(summary.get("bytes_down"))),
        *horizontal.user_rows(summary),
        *horizontal.vector_rows(summary),
        *_times(summary, clock),
        *_compiling(summary),
        *(horizontal.lag_rows(summary) if across else [_staleness(summary)]),
        *horizontal.ledger_rows(summary),
    ]
    rows += [("digest of rows", str(summary.get("digest", text.NONE)))]
    rows += [("digest of model", str(summary.get("model_digest", text.NONE)))]
    return [*rows, ("versions", _versions(summary))]


def published_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return (name, value) for what was published of a run's summary, but for privacy."""
    names = ("scenario", "method", "seed", "engine")
    rows = [(name, str(summary.get(name, text.NONE))) for name in names]
    rows += [("status", _status(summary)), ("updates", text.number(summary.get("updates")))]
    rows += _evaluated(summary)
    if ledger := summary.get("ledger"):
        rows += [("releases in the ledger", text.number(ledger.get("pairs")))]
        rows += [("digest of ledger", str(ledger.get("digest", text.NONE)))]
    rows += [("digest of model", str(summary.get("model_digest", text.NONE)))]
    return [*rows, ("versions", _versions(summary))]


def _evaluated(summary: Summary) -> list[tuple[str, str]]:
    """Return which model accuracy and digest speak of, where it is not the newest."""
    found = str(summary.get("evaluated_model", NEWEST))
    return [] if found == NEWEST else [("model", found)]


def compare_rows(
    labels: Sequence[str], summaries: Sequence[Summary]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads, and one row per run under them. ε is left to the privacy tables, which state its terms."""
    rows = [
        (
            label,
            str(s.get("status", text.NONE)),
            text.percent(s.get("accuracy")),
            text.percent(s.get("best_accuracy")),
            text.number(s.get("roc_auc"), 3),
            text.number(s.get("pr_auc"), 3),
            text.percent(s.get("balanced_accuracy")),
            text.number(s.get("concordance"), 3),
            text.number(s.get("loss"), 3),
            text.number(s.get("updates")),
            text.size(s.get("bytes_up")),
            text.size(s.get("bytes_down")),
            text.seconds(s.get("simulated_seconds")),
            text.number((s.get("staleness") or {}).get("mean"), 3),
            "yes" if stated(s).private else "NO",
        )
        for label, s in zip(labels, summaries, strict=True)
    ]
    places = range(len(_COMPARED))
    empty = {i for i in places[_IF_KNOWN] if all(row[i] == text.NONE for row in rows)}
    heads, *kept = (tuple(row[i] for i in places if i not in empty) for row in (_COMPARED, *rows))
    return heads, kept


def target_rows(
    labels: Sequence[str], rows: Sequence[Rows], targets: Sequence[float]
) -> list[tuple[str, ...]]:
    """Return, under TARGET_HEAD, what each run took to reach each accuracy that at least one of them reached."""
    found = []
    for target in targets:
        costs = [traffic.to_target(r["evaluation"], r["message"], target) for r in rows]
        if any(costs):
            found += [
                (label, f"{100 * target:g} %", *_cost(c)) for label, c in zip(labels, costs, strict=True)
            ]
    return found


def summary_table(summary: Summary, clock: str = "virtual") -> Table:
    """Return the summary as a two-column console table, digests shortened. clock: see `summary_rows`."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    # a private run's rows hold losses: whoever knows all but a label would find it by their digest
    unshown = ("versions", "digest of rows") if withheld(summary) else ("versions",)
    for name, value in summary_rows(summary, clock):
        if name not in unshown:
            table.add_row(name, Text(value[:_DIGEST] if name.startswith("digest") else value))
    return table


def compare_table(labels: Sequence[str], summaries: Sequence[Summary]) -> HeadTable:
    """Return one console row per run; ε is in the privacy tables, where its terms have room."""
    table = HeadTable(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    heads, rows = compare_rows(labels, summaries)
    for i, head in enumerate(heads):
        table.add_column(head, overflow="fold", justify="left" if i < 2 else "right")
    for row in rows:
        cells = [Text(cell) for cell in row]
        cells[-1].stylize("green" if row[-1] == "yes" else "bold red")
        table.add_row(*cells)
    return table


def _best(summary: Summary) -> list[tuple[str, str]]:
    """Return the test accuracy of the model that the validation rows choose; nothing without them."""
    if (best := text.chosen(summary)) is None:
        return []
    return [("test accuracy of the best model", best)]


def survives(summary: Summary) -> bool:
    """Tell whether a run's test rows are survival times, which have a concordance and no accuracy."""
    return text.known(summary.get("concordance"))


def _scores(summary: Summary) -> list[tuple[str, str]]:
    """Return the scores of two classes, or of survival times; nothing of more classes."""
    named = (
        ("area under the ROC curve", "roc_auc", text.number),
        ("average precision (PR curve)", "pr_auc", text.number),
        ("balanced accuracy", "balanced_accuracy", text.percent),
        ("concordance", "concordance", text.number),
    )
    return [(name, shown(summary[key])) for name, key, shown in named if text.known(summary.get(key))]


def _versions(summary: Summary) -> str:
    return ", ".join(f"{k} {v}" for k, v in (summary.get("versions") or {}).items()) or text.NONE


def _status(summary: Summary) -> str:
    status, by = str(summary.get("status", text.NONE)), summary.get("stopped_by")
    return f"{status} ({shown(str(by))})" if by else status


def _times(summary: Summary, clock: str) -> list[tuple[str, str]]:
    """Return how long the run took, really and simulated, and its updates per second of each."""
    updates, real, run = (summary.get(name) for name in ("updates", "seconds", "simulated_seconds"))
    if legs := summary.get("legs"):
        return [
            (
                "real time",
                f"{text.seconds(run)} by the run's clock, in {legs['count']} legs; the last of them took "
                f"{text.seconds(real)} with its begin and end",
            ),
            ("gaps between legs", _gaps(legs)),
            *_rate("real", updates, run),
        ]
    if clock == "wall":
        return [
            ("real time", f"{text.seconds(real)}, of which the run {text.seconds(run)}"),
            *_rate("real", updates, run),
        ]
    simulated = "0 s (no delays simulated)" if run == 0 else text.seconds(run)
    before = summary.get("updates_before", 0)
    since = f", since it was continued after update {before:,}" if before else ""
    return [
        ("real time", f"{text.seconds(real)}{since}"),
        ("simulated time", simulated),
        *_rate("simulated", updates, run),
        *_rate("real", updates - before if text.known(updates) else updates, real),
    ]


def _compiling(summary: Summary) -> list[tuple[str, str]]:
    """Return what was compiled, of a run that found not all on its machines; others load it from there."""
    found = summary.get("kernels")
    if not found:
        return []
    return [("kernels", f"{found['compiled']} compiled in {text.seconds(found['seconds'])}")]


def _gaps(legs: Mapping[str, Any]) -> str:
    gaps = ", ".join(text.NONE if gap is None else text.seconds(gap) for gap in legs["gaps"])
    again = f"; {legs['recovered']:,} updates were on the ledger alone" if legs["recovered"] else ""
    return f"{gaps} (in no time of the run's){again}"


def _rate(kind: str, updates: int | None, seconds: float | None) -> list[tuple[str, str]]:
    if not updates or not seconds or math.isnan(seconds):
        return []
    return [(f"updates per {kind} second", text.number(updates / seconds))]


def _staleness(summary: Summary) -> tuple[str, str]:
    stale = summary.get("staleness") or {}
    return "staleness", f"mean {text.number(stale.get('mean'))}, max {text.number(stale.get('max'))} rounds"


def _cost(found: traffic.Reached) -> tuple[str, ...]:
    if not found:
        return ("not reached", *[text.NONE] * 3)
    sizes = (text.size(int(found.up)), text.size(int(found.down)))
    return f"{found.round:,.0f}", text.seconds(found.time), *sizes
