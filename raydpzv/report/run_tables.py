"""Tables of runs: several side by side, what a target took, the clients of one, and the phases of a
protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydpzv.arrow_columns import array
from raydpzv.privacy.claim_words import stated
from raydpzv.records import traffic
from raydpzv.records.store import Rows
from raydpzv.records.traffic import Phase, phases
from raydpzv.report import text
from raydpzv.report.run_summary import is_horizontal
from raydpzv.report.table import Column, Grid, grid
from raydpzv.settings.party_names import label

COMPARE_NOTE = (
    "Staleness: mean age of the cached embeddings used, in server rounds (vertical runs), or mean "
    "number of updates made between reading the model and the upload's own (horizontal runs). Best "
    "by validation: the test accuracy of the model that scores highest on the validation rows "
    "(data.validation_fraction)."
)
CLIENT_NOTE = (
    "Rates: activations per second of the run's clock. Age: of the client's cached embeddings when "
    "they were used, in server rounds. Delay: rounds served between the client's reading its model "
    "and changing it. Late: share of the activations that fell into a running round trip."
)
PHASE_NOTE = (
    "Bytes and CPU seconds of all silos together. CPU seconds are of the messages that the work "
    "ended with, as measured in the processes that did it; the making of the server's key is not "
    "among them."
)
_MOST_CLIENTS = 20


@dataclass(frozen=True)
class RunView:
    """What a picture or a table needs to know of a run: its label in legends, summary.json, its
    rows.
    """

    label: str
    summary: Mapping[str, Any]
    rows: Rows

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the clients' parties; () where they have none."""
        return tuple(self.summary.get("parties") or ())

    @property
    def horizontal(self) -> bool:
        """Whether clients share out rows and train one model."""
        return is_horizontal(self.summary)


def _stated(title: str, key: str, show: Any, *, optional: bool = False) -> Column[RunView]:
    return Column(title, lambda run: run.summary.get(key), show, optional=optional)


COMPARED: tuple[Column[RunView], ...] = (
    Column("run", lambda run: run.label, align="left"),
    Column("status", lambda run: run.summary.get("status", text.NONE), align="left"),
    _stated("accuracy", "accuracy", text.percent),
    _stated("best by validation", "best_accuracy", text.percent, optional=True),
    _stated("ROC AUC", "roc_auc", text.short, optional=True),
    _stated("PR AUC", "pr_auc", text.short, optional=True),
    _stated("balanced accuracy", "balanced_accuracy", text.percent, optional=True),
    _stated("concordance", "concordance", text.short, optional=True),
    _stated("loss", "loss", text.short),
    _stated("updates", "updates", text.number),
    _stated("up", "bytes_up", text.size),
    _stated("down", "bytes_down", text.size),
    _stated("clock", "simulated_seconds", text.seconds),
    Column("staleness", lambda run: (run.summary.get("staleness") or {}).get("mean"), text.short),
    Column(
        "private",
        lambda run: stated(run.summary).private,
        lambda private: "yes" if private else "NO",
        mark=lambda run: "good" if stated(run.summary).private else "bad",
    ),
)
"""Runs side by side. ε is left to the privacy tables, which state its terms."""


@dataclass(frozen=True)
class _Cost:
    """What a run took to reach a test accuracy."""

    run: str
    target: float
    found: traffic.Reached


_TARGETS: tuple[Column[_Cost], ...] = (
    Column("run", lambda c: c.run, align="left"),
    Column("test accuracy", lambda c: f"{100 * c.target:g} %"),
    Column("updates", lambda c: f"{c.found.round:,.0f}" if c.found else "not reached"),
    Column("clock", lambda c: c.found.time, text.seconds),
    Column("up", lambda c: int(c.found.up) if c.found else None, text.size),
    Column("down", lambda c: int(c.found.down) if c.found else None, text.size),
)


def target_grid(runs: Sequence[RunView], targets: Sequence[float]) -> Grid:
    """Return what each run took to reach each accuracy that at least one of them reached."""
    found = []
    for target in targets:
        costs = [
            _Cost(
                r.label, target, traffic.to_target(r.rows["evaluation"], r.rows["message"], target)
            )
            for r in runs
        ]
        found += costs if any(cost.found for cost in costs) else []
    return grid(_TARGETS, found)


@dataclass(frozen=True)
class ClientRow:
    """What a client of a vertical run did; NaN or None: not known. stated: its part of the
    summary's staleness.
    """

    name: str
    uploads: int
    up: int
    down: int
    rate_asked: float
    achieved: float
    stated: Mapping[str, Any]


CLIENTS: tuple[Column[ClientRow], ...] = (
    Column("client", lambda c: c.name),
    Column("uploads", lambda c: c.uploads, text.number),
    Column("up", lambda c: c.up, text.size),
    Column("down", lambda c: c.down, text.size),
    Column("rate asked", lambda c: c.rate_asked, text.short),
    Column("achieved", lambda c: c.achieved, text.short),
    Column("mean age", lambda c: c.stated.get("mean"), text.short),
    Column("max age", lambda c: c.stated.get("max"), text.short),
    Column("mean delay", lambda c: c.stated.get("delay_mean"), text.short),
    Column("max delay", lambda c: c.stated.get("delay_max"), text.short),
    Column("late", lambda c: c.stated.get("late_share"), lambda v: text.percent(v, 1)),
)


def rates_asked(kind: str, rate: float | Sequence[float], clients: int) -> list[float]:
    """Return each client's rate as `[arrivals]` asks for it; NaN where its kind has none (a trace,
    "immediate").
    """
    if kind not in ("poisson", "constant"):
        return [math.nan] * clients
    return [float(r) for r in rate] if isinstance(rate, Sequence) else [float(rate)] * clients


def client_rows(run: RunView, scenario: Mapping[str, Any]) -> list[ClientRow]:
    """Return one row per client; none for horizontal runs, whose clients are summed up.

    scenario: the run's settings as a tree; without its [arrivals] no rate was asked for.
    """
    found = (run.summary.get("staleness") or {}).get("clients") or ()
    if run.horizontal or not isinstance(found, list):
        return []
    count, seconds = len(found), run.summary.get("simulated_seconds") or math.nan
    up, down = traffic.bytes_by_client(run.rows["message"], count)
    uploads = np.bincount(array(run.rows["service"].column("client")), minlength=count).tolist()
    asked = _asked(scenario, count)
    return [
        ClientRow(
            label(c["client"], run.party_names).removeprefix("client "),
            uploads[m],
            int(up[m]),
            int(down[m]),
            asked[m],
            uploads[m] / seconds,
            c,
        )
        for m, c in enumerate(found)
    ]


def _asked(scenario: Mapping[str, Any], clients: int) -> list[float]:
    arrivals = scenario.get("arrivals") or {}
    found = rates_asked(arrivals.get("kind", ""), arrivals.get("rate", math.nan), clients)
    return found if len(found) == clients else [math.nan] * clients


def stalest(rows: Sequence[ClientRow]) -> tuple[list[ClientRow], str]:
    """Return at most 20 clients, those with the oldest embeddings, and what is to be said of the
    others.
    """
    if len(rows) <= _MOST_CLIENTS:
        return list(rows), ""
    ages = [
        float(row.stated["mean"]) if text.known(row.stated.get("mean")) else -1.0 for row in rows
    ]
    order = sorted(range(len(rows)), key=ages.__getitem__, reverse=True)
    said = (
        f"of {len(rows)} clients the {_MOST_CLIENTS} with the oldest embeddings; all: raydpzv "
        "report"
    )
    return [rows[i] for i in sorted(order[:_MOST_CLIENTS])], said


_PHASES: tuple[Column[Phase], ...] = (
    Column("phase", lambda p: p.name, align="left"),
    Column("messages", lambda p: p.messages, text.number),
    Column("up", lambda p: p.up, text.size),
    Column("down", lambda p: p.down, text.size),
    Column("CPU seconds, silos", lambda p: p.silos, text.short),
    Column("CPU seconds, server", lambda p: p.server, text.short),
)


def phase_grid(rows: Rows) -> Grid:
    """Return the phases of a run's protocol; no rows of a run whose CPU time is not on record."""
    return grid(_PHASES, phases(rows["message"], rows["work"]) if rows["work"].num_rows else ())
