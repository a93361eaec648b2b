"""Metrics of a run on Ray's metrics endpoint (Prometheus), folded from its rows as the driver gets
them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydpzv.records import metrics
from raydpzv.records.callbacks import Callback, Evaluation, Fault, RunStart
from raydpzv.records.store import Rows
from raydpzv.sim.interfaces import Status

MOST_CLIENTS = 64
"""The first clients have a value each; the others share one."""
OTHERS = "other"
INTERVAL = 10.0
"""Seconds between updates of Ray's metrics, as often as Ray exports them.

Between exports Ray keeps up to 4 KB in the driver for every value that it gets, and an export's
thread may not give its memory back.
"""
_RUN, _CLIENT = ("run", "scenario"), ("run", "scenario", "client")


class Metric(NamedTuple):
    """One exported metric: Ray's class, its tags, its description; leaves: exported for a private
    run too.
    """

    kind: str
    tags: tuple[str, ...]
    description: str
    leaves: bool = False

    def exported(self, name: str) -> str:
        """Return the name on the endpoint."""
        return f"ray_{name}_total" if self.kind == "Counter" else f"ray_{name}"


METRICS = {
    "raydpzv_updates": Metric("Counter", _RUN, "Updates of the model", leaves=True),
    "raydpzv_uploads": Metric("Counter", _CLIENT, "Uploads served", leaves=True),
    "raydpzv_late_epochs": Metric(
        "Counter", _CLIENT, "Activations that fell into a running round trip"
    ),
    "raydpzv_round_trips": Metric("Counter", _CLIENT, "Uploads whose answer was applied"),
    "raydpzv_round_trip_seconds": Metric(
        "Counter", _CLIENT, "From waking to applying, on the run's clock"
    ),
    "raydpzv_reads": Metric("Counter", _CLIENT, "Cached embeddings used, or models worked at"),
    "raydpzv_staleness": Metric("Counter", _CLIENT, "Age of all that was read, in updates"),
    "raydpzv_bytes": Metric(
        "Counter", (*_RUN, "direction"), "Tensor bytes on the wire, up or down"
    ),
    "raydpzv_checkpoint_seconds": Metric("Counter", _RUN, "Real seconds that checkpoints took"),
    "raydpzv_restarts": Metric(
        "Counter", _RUN, "Actors that were lost and made again", leaves=True
    ),
    "raydpzv_ledger_updates": Metric("Gauge", _RUN, "Updates that the ledger holds", leaves=True),
    "raydpzv_epsilon": Metric(
        "Gauge",
        (*_RUN, "adversary"),
        "Epsilon so far; no value where nothing is proved",
        leaves=True,
    ),
    "raydpzv_accuracy": Metric("Gauge", (*_RUN, "part"), "Accuracy of the last evaluation"),
    "raydpzv_loss": Metric("Gauge", (*_RUN, "part"), "Loss of the last evaluation"),
    "raydpzv_concordance": Metric("Gauge", (*_RUN, "part"), "Concordance of the last evaluation"),
}
_EPSILONS = {
    "release": {"paper": "epsilon_paper", "client": "epsilon_client"},
    "user_epsilon": {who: who for who in ("external", "client", "server")},
}
"""Row types whose last row has the epsilons, and its columns by adversary ("paper": claimed, not
proved).
"""


class RayMetrics(Callback):
    """Exports the metrics above; each folds all rows so far, except the seconds of checkpoints.

    private: everybody on the cluster can read the endpoint, so only metrics that the run's ε covers
    are exported. Like `raydpzv publish`, it withholds scores, sizes and times.
    """

    interval = INTERVAL

    def __init__(self, *, private: bool) -> None:
        self._exported = {
            name: metric for name, metric in METRICS.items() if metric.leaves or not private
        }

    def start(self, run: RunStart) -> None:
        """Register the metrics; Ray is up."""
        from ray.util import metrics as library

        # Ray takes ASCII alone
        self._tags = {
            tag: value.encode("ascii", "backslashreplace").decode()
            for tag, value in (("run", run.name), ("scenario", run.scenario))
        }
        self._ledger = run.folder / "ledger" if run.folder else None
        self._updates, self._checkpoint_seconds = 0, 0.0
        # values that Ray has not got yet, by name, and by client or by the value of the further tag
        self._sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._by_client: dict[str, NDArray[Any]] = {}
        self._values: dict[tuple[str, str], float] = {}
        self._metrics: dict[str, Any] = {
            name: getattr(library, m.kind)(name, description=m.description, tag_keys=m.tags)
            for name, m in self._exported.items()
        }

    def status(self, status: Status) -> None:
        """Add the seconds of checkpoints, which restart from 0 after a loss; update Ray's
        metrics.
        """
        if not status.stage:
            before, self._checkpoint_seconds = self._checkpoint_seconds, status.checkpoint_seconds
            self._add("raydpzv_checkpoint_seconds", max(0.0, status.checkpoint_seconds - before))
            self._hand_over()

    def rows(self, rows: Rows) -> None:
        """Add new rows."""
        self._services(rows["service"])
        ages, lags = rows["staleness"], rows["sync"]
        used = _column(ages, "rows") - _column(ages, "missing")
        for table, reads, age in ((ages, used, "age_sum"), (lags, np.ones(lags.num_rows), "lag")):
            self._add_each("raydpzv_reads", _column(table, "client"), reads)
            self._add_each("raydpzv_staleness", _column(table, "client"), _column(table, age))
        self._add("raydpzv_bytes", metrics.bytes_up(rows["message"]), "up")
        self._add("raydpzv_bytes", metrics.bytes_down(rows["message"]), "down")
        for name, columns in _EPSILONS.items():
            table = rows[name]
            for adversary, column in columns.items() if table.num_rows else ():
                self._set("raydpzv_epsilon", table.column(column)[-1].as_py(), adversary)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Set its scores."""
        for name in ("accuracy", "loss", "concordance"):
            self._set(f"raydpzv_{name}", evaluation.scores.get(name, math.nan), evaluation.part)

    def fault(self, fault: Fault) -> None:
        """Count a restarted actor; a loss that ends the run has the party "run"."""
        if fault.party != "run":
            self._add("raydpzv_restarts", 1)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Set the ledger's final updates; update Ray's metrics."""
        if summary and "ledger" in summary:
            self._set("raydpzv_ledger_updates", summary["ledger"]["updates"])
        self._hand_over()

    def _services(self, service: pa.Table) -> None:
        client = _column(service, "client")
        trip = _column(service, "applied") - _column(service, "woke")
        applied = ~np.isnan(trip)
        self._add_each("raydpzv_uploads", client, np.ones(len(client)))
        self._add_each("raydpzv_late_epochs", client, _column(service, "late"))
        self._add_each("raydpzv_round_trips", client, applied)
        self._add_each("raydpzv_round_trip_seconds", client[applied], trip[applied])
        before, self._updates = self._updates, max(self._updates, metrics.updates(service))
        self._add("raydpzv_updates", self._updates - before)
        if self._ledger and self._ledger.is_dir():
            self._set("raydpzv_ledger_updates", self._updates)

    def _add_each(self, name: str, client: NDArray[Any], values: NDArray[Any]) -> None:
        sums = np.bincount(
            np.minimum(client, MOST_CLIENTS), weights=values, minlength=MOST_CLIENTS + 1
        )
        self._by_client[name] = sums + self._by_client.get(name, 0.0)

    def _add(self, name: str, value: float, tag: str = "") -> None:
        self._sums[name, tag] += value

    def _set(self, name: str, value: float, tag: str = "") -> None:
        if math.isfinite(value):
            self._values[name, tag] = value

    def _hand_over(self) -> None:
        for name, sums in self._by_client.items():
            for m in np.flatnonzero(sums).tolist():
                self._add(name, float(sums[m]), str(m) if m < MOST_CLIENTS else OTHERS)
        for (name, tag), value in self._sums.items():
            if value and name in self._metrics:  # Ray refuses to count 0
                self._metrics[name].inc(value, self._tagged(name, tag))
        for (name, tag), value in self._values.items():
            if name in self._metrics:
                self._metrics[name].set(value, self._tagged(name, tag))
        for given in (self._by_client, self._sums, self._values):
            given.clear()

    def _tagged(self, name: str, tag: str) -> dict[str, str]:
        return self._tags | dict.fromkeys(METRICS[name].tags[len(_RUN) :], tag)


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    return table.column(name).combine_chunks().to_numpy(zero_copy_only=False)
