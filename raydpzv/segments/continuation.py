"""A segment of a run under the wall clock: real time cannot be repeated, so that a resumed run starts a new segment.

The run keeps what was acknowledged: the state at the last checkpoint, and every update that the ledger has beyond it.
Messages under way are lost. The run's clock stops between two segments: the next one starts where the last one ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raydpzv.records.checkpoint import Checkpoint
from raydpzv.sim.interfaces import Observer
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import SegmentStart


class RunSegment:
    """Where a segment starts, and what its checkpoints have in common; checkpoint: None for a run from its start."""

    def __init__(self, server_loop: ServerLoop, observer: Observer, checkpoint: Checkpoint | None) -> None:
        self._loop, self._observer, self._checkpoint = server_loop, observer, checkpoint
        self._run: Mapping[str, Any] = checkpoint.state["run"] if checkpoint else {}
        self._time, self._number = float(self._run.get("time", 0.0)), int(self._run.get("leg", 0)) + 1
        self._served: Mapping[int, int] = {}
        self._origin, self._recovered = math.nan, 0

    @property
    def start(self) -> SegmentStart:
        """Where the segment starts, once roles are there."""
        evaluated = self._checkpoint.round if self._checkpoint else 0
        lost = self._checkpoint is None and self._recovered > 0  # a segment of which the ledger alone is left
        return SegmentStart(self._number + lost, self._time, evaluated, self._served)

    def record_start(self, origin: float) -> None:
        """Record the segment, unless it is the first; origin: of its clock, in real seconds."""
        self._origin = origin
        if (number := self.start.number) == 1:
            return
        # both segments' clocks show the same time where one ended and the other starts
        gap = max(origin - self._run["origin"], 0.0) if self._run else math.nan
        at = {"round": self._loop.updates, "time": self._time}
        self._observer.emit("leg", leg=number, **at, gap=gap, recovered=self._recovered)

    def _restore_loop(self, *, lost: bool) -> None:
        """Restore the server's loop from the checkpoint; lost: messages under way, whose end nobody knows."""
        self._loop.restore(self._run["status"], self._run["services"], lost=lost)
        self._loop.close()  # nobody knows when the answers under way were applied

    def _moment(self, time: float) -> dict[str, Any]:
        """Return what every checkpoint of a segment keeps, taken at this time of its clock."""
        return {
            "time": max(self._time, time),
            "origin": self._origin,
            "leg": self.start.number,
            "status": self._loop.account(),
            "services": self._loop.services(),
        }
