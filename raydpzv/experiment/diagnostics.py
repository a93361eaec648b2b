"""What a person should know before trusting a run's numbers."""

from __future__ import annotations

import numpy as np

from raydpzv.experiment.failure import failure
from raydpzv.experiment.prepare import Prepared
from raydpzv.records import metrics
from raydpzv.records.store import Rows

LATE = 0.1
"""Late share above which the machine, not the scenario, sets the pace (wall clock) or clients are saturated."""


def warnings(experiment: Prepared, rows: Rows) -> list[str]:
    """Return one sentence per finding; an empty list is good news."""
    if experiment.spec.kind == "horizontal":
        return [*_no_result(experiment, rows), *_overall_lateness(rows)]
    found = [*_no_result(experiment, rows), *_lateness(experiment, rows)]
    setting = experiment.setting
    if setting and setting.delta * setting.rows > 1:
        found.append(
            f"δ={setting.delta:g} is above 1/D (D·δ = {setting.delta * setting.rows:.3g}): such an ε permits "
            "revealing whole records"
        )
    return found


def _no_result(experiment: Prepared, rows: Rows) -> list[str]:
    if rows["evaluation"].num_rows == 0 or rows["service"].num_rows == 0:
        return ["no update was made"]
    word, why = failure(rows, experiment.class_shares())
    found = [f"{word.upper()}: {why}"] if word else []
    nonfinite = int(np.sum(rows["release"].column("nonfinite").to_numpy()))
    if nonfinite:
        found.append(f"{nonfinite:,} per-sample slopes were NaN or infinite and counted as 0")
    return found


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
