"""What a person should know before trusting a run's numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow.compute as pc

from raydpzv.experiment.failure import CONSTANT, collapsed, fallen
from raydpzv.experiment.prepare import Prepared
from raydpzv.records import metrics
from raydpzv.records.store import Rows

LATE = 0.1
"""Late share above which the machine, not the scenario, sets the pace (wall clock) or clients are saturated."""


def warnings(experiment: Prepared, rows: Rows, failed: tuple[str, str]) -> list[str]:
    """Return one sentence per finding; an empty list is good news.

    failed: why the run is no result, in a word and in a sentence, as `raydpzv.experiment.failure.failure` says it.
    """
    found = _of_result(experiment, rows, failed)
    if experiment.spec.kind == "horizontal":
        return [*found, *_overall_lateness(rows)]
    found += _lateness(experiment, rows)
    setting = experiment.setting
    if setting and setting.delta * setting.rows > 1:
        found.append(
            f"δ={setting.delta:g} is above 1/D (D·δ = {setting.delta * setting.rows:.3g}): such an ε permits "
            "revealing whole records"
        )
    return found


def _of_result(experiment: Prepared, rows: Rows, failed: tuple[str, str]) -> list[str]:
    if rows["evaluation"].num_rows == 0 or rows["service"].num_rows == 0:
        return ["no update was made"]
    word, why = failed
    found = [f"{word.upper()}: {why}"] if word else []
    found += [*_collapse(rows, max(experiment.class_shares()), word), *_fall(rows)]
    nonfinite = int(np.sum(rows["release"].column("nonfinite").to_numpy()))
    if nonfinite:
        found.append(f"{nonfinite:,} per-sample slopes were NaN or infinite and counted as 0")
    return found


def _collapse(rows: Rows, largest: float, failed: str) -> list[str]:
    tested = _tested(rows)
    if not tested or failed == CONSTANT or not collapsed(tested[-1]["top_share"], largest):
        return []
    top, accuracy = tested[-1]["top_share"], tested[-1]["accuracy"]
    return [
        f"COLLAPSED: {top:.1%} of the held-out rows are predicted as one class, and the largest class is {largest:.1%} "
        f"of them: accuracy {accuracy:.1%} is next to a constant prediction's; add less noise or lower the step sizes"
    ]


def _fall(rows: Rows) -> list[str]:
    tested = [row for row in _tested(rows) if not math.isnan(row["accuracy"])]
    best = max(tested, key=lambda row: row["accuracy"], default=None)
    if best is None or not fallen(best["accuracy"], tested[-1]["accuracy"]):
        return []
    return [
        f"FALLEN: the final accuracy {tested[-1]['accuracy']:.1%} is far below the run's best, {best['accuracy']:.1%} "
        f"after update {best['round']:,}; add less noise, lower the step sizes or end the run earlier"
    ]


def _tested(rows: Rows) -> list[dict[str, Any]]:
    """Return the evaluations on held-out rows, in order."""
    return rows["evaluation"].filter(pc.equal(rows["evaluation"]["part"], "test")).to_pylist()


def _lateness(experiment: Prepared, rows: Rows) -> list[str]:
    # at a barrier epochs pass while a client waits for the others: late is then the protocol's doing, not a finding
    if experiment.barrier > 1:
        return []
    shares = metrics.late_share(rows["service"], experiment.spec.split.clients)
    late = [f"client {m} {share:.0%}" for m, share in enumerate(shares) if share > LATE]
    if not late:
        return []
    return [
        f"epochs fell into running round trips ({', '.join(late)}): these clients could not keep their rates"
    ]


def _overall_lateness(rows: Rows) -> list[str]:
    service = rows["service"]
    share = float(np.mean(service.column("late").to_numpy())) if service.num_rows else 0.0
    if share <= LATE:
        return []
    return [
        f"{share:.0%} of the activations began late: their clients, or under the wall clock their hosts, were still at "
        "work; lower arrivals.rate or clock.compute to let the rates set the pace"
    ]
