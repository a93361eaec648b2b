"""Runs that end as a kill ends them: nothing is settled, nothing flushed, no summary written."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scenarios
from raydpzv.experiment.finalize import RowWriter
from raydpzv.experiment.resuming import continued
from raydpzv.sim.pull import PullServerLoop
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import LockedServerLoop
from tests.helpers.runs import run_prepared


class Killed(BaseException):
    """What ends the run."""


def kill_at(updates: int, spec: Any, folder: Path, checkpoints: int = 0) -> None:
    """Begin or continue a run and end it after so many updates and checkpoints, or (wall clock)
    soon after.

    Under the wall clock clients wait where a checkpoint is due, and at the end, a few updates after
    the last one.
    """
    pace = _Pace(updates, checkpoints, spec.record.checkpoint_updates or math.inf)
    wall = spec.clock.kind == "wall"

    def die(status: Any) -> None:
        last = pace.last if wall else updates
        if status.updates >= last and status.checkpoints >= checkpoints:
            raise Killed

    def lost(self: RowWriter, rows: Any) -> None:
        if not any(
            frame.f_code.co_name in _OF_A_RUN for frame, _ in traceback.walk_stack(sys._getframe())
        ):
            raise Killed
        add(self, rows)

    add, patch = RowWriter.add, pytest.MonkeyPatch()
    patch.setattr(RowWriter, "add", lost)
    hold_uploads(patch, pace.limit)
    try:
        with pytest.raises(Killed):
            _begin_or_go_on(spec, folder, die)
    finally:
        patch.undo()


_BEYOND = 5
"""Updates after the last checkpoint, which the ledger alone has."""


_WALLS = (LockedServerLoop, PullServerLoop)


class _Pace:
    """How far a run under the wall clock may come before a checkpoint is taken, or it is killed."""

    def __init__(self, updates: int, checkpoints: int, every: float) -> None:
        self._updates, self._checkpoints, self._every = updates, checkpoints, every
        self._seen, self._due = -1, 0.0
        self.last = float(updates)
        """Updates at which it is killed."""

    def limit(self, loop: ServerLoop) -> float:
        """Return how many updates the run may make for now."""
        now = loop.status()
        if now.checkpoints != self._seen:
            first, self._seen = self._seen < 0, now.checkpoints
            self._due = (
                (now.updates // self._every + 1) * self._every
                if self._every < math.inf
                else math.inf
            )
            if first:
                self._begin(now.updates)
        return min(self.last, self._due)

    def _begin(self, updates: int) -> None:
        self.last = self._updates + _BEYOND if self._updates > updates else updates
        if self._checkpoints > 1 and self._due < math.inf:
            self.last = max(self.last, self._due + self._every * (self._checkpoints - 2) + _BEYOND)


def hold_uploads(patch: pytest.MonkeyPatch, limit: Callable[[ServerLoop], float]) -> None:
    """Let clients under the wall clock wait with their uploads while their run has come to its
    limit.
    """
    for kind in _WALLS:

        def held(wall: Any, *given: Any, exchange: Any = kind.exchange) -> Any:
            loop, warms_up = wall._server_loop, type(wall) not in _WALLS
            while not warms_up and loop.stop_reason is None and loop.updates >= limit(loop):
                time.sleep(0.002)
            return exchange(wall, *given)

        patch.setattr(kind, "exchange", held)


def evaluating_again(rows: Any, every: int) -> list[int]:
    """Return the segments that begin with an evaluation of what one before has evaluated; each
    run's end is apart.
    """
    evaluated, found = [row["round"] for row in rows["evaluation"].to_pylist()[:-1]], []
    for segment in rows["leg"].to_pylist():
        known = (
            segment["round"] - segment["recovered"]
        )  # the checkpoint's: later rows are those of the segment
        later = [at for at in evaluated if at > known] + [known] * (evaluated.count(known) - 1)
        if any(at // every == known // every for at in later):
            found.append(segment["leg"])
    return found


_OF_A_RUN = ("_tick", "tick", "_updated")
"""Where a run writes while it goes on."""


def _begin_or_go_on(spec: Any, folder: Path, progress: Any) -> None:
    if not folder.exists():
        scenarios.run(spec, folder, progress=progress)
    experiment, opened, _ = continued(folder)
    run_prepared(experiment, opened, runner="local", progress=progress)
