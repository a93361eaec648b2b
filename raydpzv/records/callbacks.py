"""Watch a run: one protocol for all callbacks, in the process that drives the run."""

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
"""Default seconds between two statuses: one after every update took a twentieth of a comparison's
CPU time.
"""
_SCORES = ("auc", "balanced_accuracy", "concordance")
"""Row types with further scores of an evaluation."""
_PLACE = ("round", "time", "part")


@dataclass(frozen=True)
class RunStart:
    """A run that starts: the scenario, its recorded name, the runner, the folder (None: nothing is
    written).
    """

    spec: AnyScenario
    scenario: str
    runner: str
    folder: Path | None

    @property
    def name(self) -> str:
        """The run's name: its folder's, or scenario and seed."""
        return self.folder.name if self.folder else f"{self.scenario}-seed{self.spec.seed}"


class Evaluation(NamedTuple):
    """An evaluation: updates of the model, seconds of the run's clock, "test" or "validation",
    scores by name.

    scores: accuracy, loss, top_share; where there are two classes or survival times also roc_auc,
    pr_auc, balanced_accuracy, concordance; of numbers rmse, r2; and your own measures. NaN: not
    defined.
    """

    update: int
    time: float
    part: str
    scores: Mapping[str, float]


class Fault(NamedTuple):
    """A row of type fault: seconds of the run's clock, who ("client actor 1", "host 0", "run"),
    what, in words.
    """

    time: float
    party: str
    kind: str
    message: str


class Callback:
    """Events of a run; override those that you want. They run in the driver, which waits for them.

    An error in a callback is a warning and ends the callback, never the run. interval: seconds
    between two statuses; 0: every status, which is one after every update with the local runner.
    """

    interval: float = PACE

    def start(self, run: RunStart) -> None:
        """The run's folder is there, and its actors are up."""

    def status(self, status: Status) -> None:
        """The run's progress: before `start` only `Status.stage`, which it waits for; once more at
        its end.
        """

    def rows(self, rows: Rows) -> None:
        """Rows since the last call, an Arrow table for each row type, at most `record.flush`
        seconds old.
        """

    def evaluation(self, evaluation: Evaluation) -> None:
        """The model was evaluated; called after `rows`, with the test rows first."""

    def fault(self, fault: Fault) -> None:
        """Something was lost or failed; called after `rows`."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The run has ended in any way: the content of summary.json; None: there is no summary."""


class StatusCallback(Callback):
    """Calls a function with each status."""

    def __init__(self, function: Callable[[Status], None], interval: float = PACE) -> None:
        self._function, self.interval = function, interval

    def status(self, status: Status) -> None:
        """Call it."""
        self._function(status)


class Callbacks:
    """The callbacks of one run, called in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        # without a callback that overrides `status`, none is made
        self._due = {id(c): 0.0 for c in callbacks if type(c).status is not Callback.status}
        self._next = 0.0 if self._due else math.inf
        self._summary: Mapping[str, Any] | None = None

    @contextmanager
    def told(self, run: RunStart) -> Iterator[None]:
        """Call `start` and, however the block ends, `end`."""
        self._tell("start", run)
        try:
            yield
        finally:
            self._tell("end", self._summary)

    def due(self) -> bool:
        """Return whether a callback is due for a status."""
        return time.monotonic() >= self._next

    def status(self, status: Status) -> None:
        """Call the callbacks that are due; for a stage of the start all of them."""
        now = time.monotonic()
        for callback in list(self._callbacks):
            due = self._due.get(id(callback), math.inf)
            if now >= due and not status.stage:
                self._due[id(callback)] = now + callback.interval
            if now >= due or (status.stage and due < math.inf):
                self._call(callback, "status", status)
        self._next = min(self._due.values(), default=math.inf)

    def last_status(self, status: Status) -> None:
        """Call callbacks with an interval once more at the run's end; the others have the last
        status.
        """
        for callback in list(self._callbacks):
            if id(callback) in self._due and callback.interval > 0:
                self._call(callback, "status", status)

    def rows(self, rows: Rows) -> None:
        """Call `rows`, and `evaluation` and `fault` for each such row."""
        if not self._callbacks:
            return
        self._tell("rows", rows)
        for evaluation in _evaluations(rows):
            self._tell("evaluation", evaluation)
        for row in rows["fault"].to_pylist():
            self._tell("fault", Fault(**row))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Keep the summary for `end`."""
        self._summary = summary

    def _tell(self, event: str, value: Any) -> None:
        for callback in list(self._callbacks):
            self._call(callback, event, value)

    def _call(self, callback: Callback, event: str, value: Any) -> None:
        try:
            getattr(callback, event)(value)
        except Exception as error:
            self._callbacks.remove(callback)
            self._due.pop(id(callback), None)
            warnings.warn(
                f"{type(callback).__name__}.{event}: {type(error).__name__}: "
                f"{' '.join(str(error).split())}; the run continues, and this callback receives "
                "nothing more",
                RuntimeWarning,
                stacklevel=2,
            )


def _evaluations(rows: Rows) -> Iterator[Evaluation]:
    """Yield the evaluations among rows, each with the scores of all row types."""
    others: dict[tuple[Any, ...], dict[str, float]] = {}
    for name in _SCORES:
        for row in rows[name].to_pylist():
            place = tuple(row.pop(key) for key in _PLACE)
            others.setdefault(place, {}).update(row)
    for row in rows["measure"].to_pylist():
        others.setdefault(tuple(row[key] for key in _PLACE), {})[row["name"]] = row["value"]
    for row in rows["evaluation"].to_pylist():
        update, at, part = place = tuple(row.pop(key) for key in _PLACE)
        yield Evaluation(update, at, part, row | others.get(place, {}))
