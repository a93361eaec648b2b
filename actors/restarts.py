"""What becomes of a run whose actors were lost: back to its last checkpoint, and on from there.

All actors of the run are ended first, so that nothing that can write continues; then rows beyond
the checkpoint are dropped, and new actors continue as `raydpzv resume` does: under the virtual
clock to the same bits, under the wall clock as a new leg. No call is ever made a second time.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from raydpzv.errors import Lost, ReplayMismatch, RunError, Stalled, TransportError
from raydpzv.experiment.finalize import RowWriter, contradicts
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.resuming import fall_back, go_back
from raydpzv.methods.roles import Metrics
from raydpzv.sim.interfaces import Evaluated, Status

LOST = "Lost"
"""Kind of the faults of actors that were made again."""
_UNLOCKED_WITHIN = 60.0
"""Seconds in which a process that was killed lets go of the run's ledger; one that was stopped
takes longest.
"""


class RestartFromCheckpoint(Exception):
    """Actors of a run were lost, and it continues with others. party: who was lost; status: where
    the run stood.
    """

    def __init__(self, failure: BaseException, party: str, status: Status) -> None:
        super().__init__(str(failure))
        self.failure, self.party, self.status = failure, party, status


class Restarts:
    """Whether a run continues after a loss, and what it continues from.

    A run that has no folder or cannot be resumed does not; nor does one that has lost more than
    `resources.restarts` actors, or the same one twice without coming further.
    """

    def __init__(self, experiment: Prepared, writer: RowWriter, evaluated: Evaluated) -> None:
        self._experiment, self._writer, self._evaluated = experiment, writer, evaluated
        self._limit = experiment.spec.resources.restarts
        self._before = self._faults()
        self._furthest, self._last = -1, ""
        self._heard, self._told = -1, -1
        self.count = 0

    @property
    def possible(self) -> bool:
        """Whether a run like this can continue from a checkpoint at all."""
        resumable = not (self._experiment.unrecorded or self._experiment.no_segment)
        return resumable and self._writer.folder is not None and self._limit > 0

    def explained(self, error: BaseException) -> BaseException:
        """Return the error that ends a run: of a loss that others would survive, with why this one
        does not.
        """
        what, why = self._experiment.unrecorded, self._experiment.no_segment
        if what:
            why = f"{what} came from the operating system and was not kept"
        if not (isinstance(error, Lost) and why):
            return error
        return Lost(f"{error}; the run cannot continue: {why}", error.actor)

    def allow(self, error: BaseException, party: str, status: Status, replaced: int) -> bool:
        """Take note of a loss; return whether the run continues after it.

        party: who was lost, as far as is known; status: where the run stood; replaced: actors that
        were made again without it going back.
        """
        if contradicts(error, self._writer.folder):
            return True
        if not (self.possible and isinstance(error, Lost | TransportError | Stalled)):
            return False
        what = f"{type(error).__name__} {party}"
        stands_still = status.updates <= self._furthest and what == self._last
        self._furthest, self._last = max(self._furthest, status.updates), what
        self.count = max(self.count, replaced, self._faults() - self._before)
        if stands_still or self.count >= self._limit:
            return False
        self.count += 1
        return True

    def go_back(self, error: BaseException, party: str, status: Status) -> Prepared:
        """Restore the run's folder to its last checkpoint; return what continues from there. All
        actors have been ended.

        Raises InputError where it cannot.
        """
        folder = self._writer.folder
        assert folder is not None
        _await_unlocked(folder.ledger / ".lock")
        if isinstance(error, ReplayMismatch):
            experiment = fall_back(self._experiment, self._writer, error, status.time)
            self._before += 1  # nobody was lost
        else:
            done = (
                f"all actors are made again ({self.count} of {self._limit}), and the run continues "
                "from"
            )
            message = f"{' '.join(str(error).split())[:200]}; {done}"
            fault = {"time": status.time, "party": party, "kind": LOST, "message": message}
            experiment = go_back(self._experiment, self._writer, fault)
        self._experiment = experiment
        self._told = self._heard if experiment.spec.clock.kind == "virtual" else -1
        return experiment

    def evaluated(self, status: Status, metrics: Metrics) -> None:
        """Report an evaluation; not of one that is made again."""
        self._heard = max(self._heard, status.updates)
        if status.updates > self._told:
            self._evaluated(status, metrics)

    def _faults(self) -> int:
        folder = self._writer.folder
        return folder.counts.get("fault", 0) if folder else 0


def _await_unlocked(path: Path) -> None:
    """Wait until no process writes a ledger any more, if there is one."""
    if not path.parent.is_dir():
        return
    try:
        with FileLock(path).acquire(timeout=_UNLOCKED_WITHIN):
            return
    except Timeout:
        raise RunError(
            f"{path.parent}: waited {_UNLOCKED_WITHIN:g} s for the process that wrote this ledger "
            "to end; end it, and continue the run with: raydpzv resume"
        ) from None
