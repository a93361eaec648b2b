"""What every driver does: watch the server actor, write what it hands over, end the run well however it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from actors.remote import get
from raydpzv.errors import RaydpzvError, RunError, Stalled
from raydpzv.experiment.finalize import RowWriter, Run, RunFinalizer, RunOptions, run_folder
from raydpzv.experiment.prepare import Prepared
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.checkpoint import Piece
from raydpzv.records.store import joined
from raydpzv.sim.interfaces import USER, Evaluated, Spent, Status, unheard

C = TypeVar("C")

LOOK = 0.2
"""Seconds between looks at a run."""
HEAD_START = 0.5
"""Seconds until t = 0 of a wall clock: time for every loop to be ready, or its first epochs would all be late."""
STARTING_RAY = "Ray to start"
"""The first stage of a run on actors (see `Status.stage`)."""
_LOST = 0.01
"""Share of the time so far after which checkpoints are fetched, which is lost with the server if they are not."""
CONTROL_TIMEOUT = 60.0
"""Seconds a control call may take: status, rows, stop."""


@dataclass(frozen=True)
class RunHooks:
    """What a driver is given besides the actors: where rows go, how the run is closed, who watches, when to stop.

    evaluated: called at each evaluation, which the loop waits for if the driver `holds` it.
    """

    writer: RowWriter
    finalizer: RunFinalizer
    callbacks: Callbacks
    stop: threading.Event
    evaluated: Evaluated
    holds: bool


class Driver:
    """Nothing here trains. A subclass says what the run is (`_work`) and what comes of it (`_models`)."""

    def __init__(self, server: Any, watch: RunHooks) -> None:
        self._server, self._writer, self._finalizer = server, watch.writer, watch.finalizer
        self._callbacks, self._stop = watch.callbacks, watch.stop
        self._evaluated, self._holds = watch.evaluated, watch.holds
        self._stop_sent = False
        self._begun = self._fetched = time.monotonic()
        self._status = Status()

    def run(self) -> Run:
        """Run, and write what there is however the run ends."""
        try:
            if self._evaluated is not unheard:
                self._control(self._server.hear.remote(self._holds), "the server to hand over evaluations")
            self._work()
            self._poll()
            models = self._models()
            self._write(self._control(self._server.drain.remote(), "the last rows"))
            facts = self._facts()
            spent = self._control(self._server.spent.remote(), "the privacy account")
        except BaseException as error:
            failure = translated(error)
            self._rescue()
            self._finalizer.failed(failure, self._status, self._rescued_spent(), self._rescued_facts())
            if failure is error:
                raise
            raise failure from error
        return self._finalizer.done(models, self._status, spent, facts)

    def leave(self) -> None:
        """Release the ledger, so that whoever goes on next finds it free."""
        raise NotImplementedError

    def _work(self) -> None:
        raise NotImplementedError

    def _models(self) -> Mapping[str, np.ndarray]:
        raise NotImplementedError

    def _facts(self) -> Mapping[str, Any]:
        """Return more for summary.json."""
        return {}

    def _write(self, drained: Sequence[Piece]) -> None:
        """Write what the server handed over: rows, and of checkpoints the last one."""
        taken = [place for place, (_, checkpoint) in enumerate(drained) if checkpoint]
        before = taken[-1] + 1 if taken else 0
        if taken and (checkpoint := drained[taken[-1]][1]):
            self._writer.hold(joined([rows for rows, _ in drained[:before]]))
            self._writer.write_checkpoint(checkpoint)
        for rows, _ in drained[before:]:
            self._writer.add(rows)

    def _await(self, work: Any) -> None:
        """Wait for the server's loop, and look at it meanwhile."""
        import ray

        while not ray.wait([work], timeout=LOOK)[0]:
            self._poll()
        ray.get(work)

    def _poll(self) -> None:
        """Ask where the run stands, write rows that are due, tell of evaluations, pass on the user's wish to stop."""
        heard = (
            [] if self._evaluated is unheard else self._control(self._server.heard.remote(), "evaluations")
        )
        for status, metrics in heard:
            self._evaluated(status, metrics)
        if self._stop.is_set() and not self._stop_sent:
            self._stop_sent = True
            self._control(self._server.stop.remote(USER), "the server to stop")
        if heard:
            self._control(self._server.go_on.remote(), "the server to go on")
        self._status = self._control(self._server.status.remote(), "the server's status")
        self._callbacks.status(self._status)
        now = time.monotonic()
        if (due := self._writer.due()) or now - self._fetched >= _LOST * (now - self._begun):
            self._fetched = now
            self._write(self._control(self._server.drain.remote(rest=due), "rows"))

    def _control(self, reference: Any, what: str) -> Any:
        return get(reference, CONTROL_TIMEOUT, what)

    def _rescue(self) -> None:
        """Save the rows of a run that broke off, if the server still lives."""
        try:
            self._status = get(self._server.status.remote(), 5.0, "the server's status")
            self._write(get(self._server.drain.remote(), 5.0, "the last rows"))
        except Exception as error:
            if not is_ray_error(error):
                raise

    def _rescued_facts(self) -> Mapping[str, Any]:
        try:
            return self._facts()
        except Exception as error:
            if not is_ray_error(error):
                raise
            return {}

    def _rescued_spent(self) -> Spent | None:
        try:
            spent: Spent | None = get(self._server.spent.remote(), 5.0, "the privacy account")
            return spent
        except Exception as error:
            if not is_ray_error(error):
                raise
            return None


def drive(
    experiment: Prepared,
    options: RunOptions,
    actor_set: AbstractContextManager[C],
    make: Callable[[C, RunHooks], Driver],
) -> Run:
    """Run an experiment with its actors; nothing is written before all have come up.

    actor_set: creates the actors, and dismisses them at the end; make: its driver.
    """
    with (
        actor_set as actors,
        run_folder(options, experiment, runner="ray", device="as placed by Ray") as folder,
    ):
        writer = RowWriter(folder, experiment.spec.record.flush, options.watch)
        watch = RunHooks(
            *(writer, RunFinalizer(experiment, writer, options), options.watch, options.stop),
            *(options.evaluated, experiment.spec.clock.kind == "virtual"),
        )
        driver = make(actors, watch)
        try:
            return driver.run()
        finally:
            driver.leave()


def translated(error: BaseException) -> BaseException:
    """Return an error of ours in place of Ray's: the actor's own error, or which actor was lost."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        inner = translated(cause) if isinstance(cause, BaseException) else error
        if isinstance(inner, RaydpzvError):
            return inner
        return RunError(f"an actor failed: {type(inner).__name__}: {' '.join(str(inner).split())[:400]}")
    if isinstance(error, ray.exceptions.RayActorError):
        return RunError(f"an actor was lost: {' '.join(str(error).split())[:300]}")
    return error


def is_ray_error(error: BaseException) -> bool:
    """Tell whether an actor failed, died or did not answer in time."""
    import ray

    return isinstance(error, ray.exceptions.RayError | Stalled)
