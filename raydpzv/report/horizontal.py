"""What a summary says about a horizontal run: its updates, lag, catch-up and ledger, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raydpzv.registry import METHODS
from raydpzv.report import text

if TYPE_CHECKING:
    import pyarrow as pa

Summary = Mapping[str, Any]
Row = tuple[str, str]


def is_horizontal(summary: Summary) -> bool:
    """Tell whether the run's clients share out rows and train one model, rather than share out features."""
    name = summary.get("method")
    return name in METHODS and METHODS[str(name)].kind == "horizontal"


def updates_text(summary: Summary) -> str:
    """Return the number of updates, and what an update was: a round of several uploads, or each upload."""
    updates, uploads = summary.get("updates"), summary.get("uploads")
    count = text.number(updates)
    if not updates or uploads is None or _is_agent(summary):
        return count
    return (
        f"{count} rounds ({uploads:,} uploads)" if uploads > updates else f"{count} updates, one per upload"
    )


def lag_rows(summary: Summary) -> list[Row]:
    """Return what clients missed and how old their models were; nothing of what the method does not have."""
    stale = summary.get("staleness") or {}
    if stale.get("mean") is None or _is_agent(summary):
        return []
    return [*_lag(stale), *_catch_up(stale)]


def user_rows(summary: Summary) -> list[Row]:
    """Return whose privacy a run protects and how sums reach the server; nothing of runs that protect no users."""
    found = summary.get("user_level")
    if not found:
        return []
    held = f"{found['users']:,} users in {found['silos']:,} silos, {found['pairs']:,} pairs of both"
    rows = [("users", held), ("aggregation", f"{found['aggregation']}, {found['weights']} weights")]
    if found.get("sensitivity") is not None:
        rows += [
            ("sensitivity", f"{text.number(found['sensitivity'])} (one user, add or remove; noise is σC)")
        ]
    if part := found.get("took_part"):
        tried = f"{text.number(part['mean'])} of {found['silos']} on average, {part['least']} at the least"
        rows += [("silos that took part", f"{tried}, in {found['attempts']:,} attempts")]
    return rows


def vector_rows(summary: Summary) -> list[Row]:
    """Return DeComFL's communication vector length; nothing of runs that do not have it."""
    length = summary.get("vector_length")
    if length is None:
        return []
    return [("communication vector length", f"{text.number(length)} numbers sent, both ways, per client")]


def ledger_rows(summary: Summary) -> list[Row]:
    """Return size and digest of the run's ledger, and the drift of clients that revert without a snapshot."""
    rows: list[Row] = []
    if ledger := summary.get("ledger"):
        size = f"{text.number(ledger.get('pairs'))} pairs, {text.size(ledger.get('bytes'))}"
        rows += [("ledger", f"{text.number(ledger.get('updates'))} updates, {size} on disk")]
        rows += [("digest of ledger", str(ledger.get("digest", text.NONE)))]
    if drift := summary.get("drift"):
        share = text.percent(drift.get("share"))
        rows += [
            (
                "drift",
                f"largest {text.number(drift.get('largest'), 3)}, up to {share} of a client's parameters",
            )
        ]
    return rows


def client_rows(message: pa.Table) -> list[Row]:
    """Return how many clients took part, and the bytes of the median and of the busiest of them."""
    from raydpzv.records import traffic  # and pyarrow with it: what else is here reads summaries alone

    up, down = traffic.bytes_of_participants(message)
    if not len(up):
        return []
    return [("clients that took part", f"{len(up):,}"), _spread("up", up), _spread("down", down)]


def _is_agent(summary: Summary) -> bool:
    """Tell whether the one client is its own server: what it catches up on never travels."""
    return is_horizontal(summary) and METHODS[str(summary["method"])].agent


def _lag(stale: Summary) -> list[Row]:
    if not stale.get("max") and not stale.get("late_share"):
        return [("lag", "0: every upload was made at the newest model")]
    lag = f"mean {text.number(stale.get('mean'))}, max {text.number(stale.get('max'))} updates"
    return [("lag", lag), ("late", f"{text.percent(stale.get('late_share'))} of the activations")]


def _catch_up(stale: Summary) -> list[Row]:
    missed = f"mean {text.number(stale.get('missed_mean'))}, max {text.number(stale.get('missed_max'))}"
    pairs = f"mean {text.number(stale.get('pairs_mean'))} per activation"
    rows = [("missed updates", f"{missed} per activation"), ("pairs received", pairs)]
    if stale.get("pulled_share"):
        rows += [("model pulled", f"{text.percent(stale['pulled_share'])} of the activations")]
    return rows


def _spread(direction: str, amounts: Sequence[int] | np.ndarray) -> Row:
    median, most = text.size(int(np.median(amounts))), text.size(int(np.max(amounts)))
    return f"bytes {direction} per client", f"median {median}, most {most}"
