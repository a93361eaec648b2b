"""The clock of a run's rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.errors import RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import run_local
from raydpzv.records.callbacks import StatusCallback
from raydpzv.sim.interfaces import Status

_BETWEEN = 1e-5
"""Seconds between two looks at a run, for each update that counts: a status after every one is a
tenth of a small one.
"""


@dataclass(frozen=True)
class Pace:
    """Seconds per round by the clock on the wall and by this process's CPU time."""

    wall: float
    cpu: float


class Rounds:
    """A run's progress callback: when each round was first seen done."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}

    def __call__(self, status: Status) -> None:
        """Note the time if a round has been done since the last call."""
        self._seen.setdefault(status.updates, (time.perf_counter(), time.process_time()))

    @property
    def latest(self) -> int:
        """The last round seen."""
        return max(self._seen, default=0)

    def done(self, round: int) -> float:
        """Return when a round was seen done, on the performance counter."""
        return self._seen[round][0]

    def pace(self, warm: int) -> Pace:
        """Return the mean pace after the first `warm` rounds. Raises RunError if there were no
        others.
        """
        after = sorted(round for round in self._seen if round >= warm)
        if len(after) < 2:
            raise RunError(
                f"wanted rounds after the first {warm}, saw {sorted(self._seen)}: use a longer run"
            )
        first, last = (np.array(self._seen[round]) for round in (after[0], after[-1]))
        return Pace(*((last - first) / (after[-1] - after[0])).tolist())

    def median_pace(self, warm: int) -> Pace:
        """Return the median pace from one round seen to the next, after the first `warm`."""
        after = sorted(round for round in self._seen if round >= warm)
        times = np.array([self._seen[round] for round in after])
        return Pace(*np.median(np.diff(times, axis=0) / np.diff(after)[:, None], axis=0).tolist())


def update_pace(prepared: Any, warm: int, count: int, folder: Path | None = None) -> Pace:
    """Return the pace of updates in the local runner after the first `warm`, everything
    recorded.
    """
    rounds = Rounds()

    def look(status: Status) -> None:
        if not status.stop_reason:  # the last one comes after the evaluation at the end
            rounds(status)

    callbacks = [StatusCallback(look, _BETWEEN * count)]
    run_local(prepared, RunOptions(folder, callbacks=callbacks, until=warm + count))
    return rounds.pace(warm)
