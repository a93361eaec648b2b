"""What a run tells of itself: one protocol for everybody who watches it, in the process that drives it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from raydpzv.config.scenario import AnyScenario
from raydpzv.records.store import Rows
from raydpzv.sim.interfaces import Status

PACE = 0.1
"""Seconds between two statuses of a callback that does not say otherwise.

To put one together after every update was a twentieth of a comparison's CPU time.
"""
_SCORES = ("auc", "balanced_accuracy", "concordance")
"""Row types of scores that stand beside those of an evaluation's own row."""
_PLACE = ("round", "time", "part")


@dataclass(frozen=True)
class RunStart:
    """What has begun: the scenario, its name on record, the runner, the folder (None: nothing is written)."""

    spec: AnyScenario
    scenario: str
    runner: str
    folder: Path | None

    @property
    def name(self) -> str:
        """The run's name: its folder's, or scenario and seed."""
        return self.folder.name if self.folder else f"{self.scenario}-seed{self.spec.seed}"


class Evaluation(NamedTuple):
    """An evaluation: updates of the model, seconds of the run's clock, "test" or "validation", scores by name.

    scores: accuracy, loss, top_share; where there are two classes or survival times also roc_auc, pr_auc,
    balanced_accuracy, concordance; NaN: not defined.
    """

    update: int
    time: float
    part: str
    scores: Mapping[str, float]


class Fault(NamedTuple):
    """A row of type fault: seconds of the run's clock, who ("client actor 1", "host 0", "run"), what, in words."""

    time: float
    party: str
    kind: str
    message: str


class Callback:
    """What is told of a run; override what you want to hear. It runs in the driver, which waits for it.

    An error in it is warned of once and ends the callback, never the run. interval: seconds between two statuses; 0:
    each that there is, which is after every update with the local runner.
    """

    interval: float = PACE

    def start(self, run: RunStart) -> None:
        """The run's folder is there, and its actors are up."""

    def status(self, status: Status) -> None:
        """Where the run stands: before `start` only what it waits for (`Status.stage`); once more at its end."""

    def rows(self, rows: Rows) -> None:
        """Facts since the last call, an Arrow table for each row type, at the latest `record.flush` seconds old."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """The model was evaluated; told with the rows that say so, the test rows first."""

    def fault(self, fault: Fault) -> None:
        """Something was lost or failed; told with the rows that say so."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The run is over, however it ended: what summary.json holds; None: there is no summary."""


class StatusCallback(Callback):
    """Tells a function where the run stands."""

    def __init__(self, told: Callable[[Status], None], interval: float = PACE) -> None:
        self._told, self.interval = told, interval

    def status(self, status: Status) -> None:
        """Tell it."""
        self._told(status)


class Callbacks:
    """The callbacks of one run, told in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        # of those that do not ask for a status none is put together
        self._due = {id(c): 0.0 for c in callbacks if type(c).status is not Callback.status}
        self._next = 0.0 if self._due else math.inf
        self._summary: Mapping[str, Any] | None = None

    @contextmanager
    def told(self, run: RunStart) -> Iterator[None]:
        """Tell that the run starts and, however the block ends, that it is over."""
        self._tell("start", run)
        try:
            yield
        finally:
            self._tell("end", self._summary)

    def due(self) -> bool:
        """Tell whether anybody is to hear where the run stands by now."""
        return time.monotonic() >= self._next

    def status(self, status: Status) -> None:
        """Tell those who are due; of a stage of the start everybody."""
        now = time.monotonic()
        for callback in list(self._callbacks):
            due = self._due.get(id(callback), math.inf)
            if now >= due and not status.stage:
                self._due[id(callback)] = now + callback.interval
            if now >= due or (status.stage and due < math.inf):
                self._call(callback, "status", status)
        self._next = min(self._due.values(), default=math.inf)

    def last_status(self, status: Status) -> None:
        """Tell those at their own pace where the run ended; the others have heard it."""
        for callback in list(self._callbacks):
            if id(callback) in self._due and callback.interval > 0:
                self._call(callback, "status", status)

    def rows(self, rows: Rows) -> None:
        """Tell what is new on record."""
        if not self._callbacks:
            return
        self._tell("rows", rows)
        for evaluation in _evaluations(rows):
            self._tell("evaluation", evaluation)
        for row in rows["fault"].to_pylist():
            self._tell("fault", Fault(**row))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Keep what the end is told with."""
        self._summary = summary

    def _tell(self, event: str, what: Any) -> None:
        for callback in list(self._callbacks):
            self._call(callback, event, what)

    def _call(self, callback: Callback, event: str, what: Any) -> None:
        try:
            getattr(callback, event)(what)
        except Exception as error:
            self._callbacks.remove(callback)
            self._due.pop(id(callback), None)
            warnings.warn(
                f"{type(callback).__name__}.{event}: {type(error).__name__}: {' '.join(str(error).split())}; the run "
                "goes on, and this callback is told nothing more",
                RuntimeWarning,
                stacklevel=2,
            )


def _evaluations(rows: Rows) -> Iterator[Evaluation]:
    """The evaluations among rows, each with the scores of all row types, which are written together."""
    others: dict[tuple[Any, ...], dict[str, float]] = {}
    for name in _SCORES:
        for row in rows[name].to_pylist():
            place = tuple(row.pop(key) for key in _PLACE)
            others.setdefault(place, {}).update(row)
    for row in rows["evaluation"].to_pylist():
        update, at, part = place = tuple(row.pop(key) for key in _PLACE)
        yield Evaluation(update, at, part, row | others.get(place, {}))
