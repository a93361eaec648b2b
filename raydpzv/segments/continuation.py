"""A leg of a run under the wall clock: real time does not come again, so that what broke off goes on as a new leg.

What stays is what was acknowledged: the state at the last checkpoint, and every update that the ledger has beyond it.
Messages under way are lost. The run's clock stands still between two legs: where one ended the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raydpzv.records.checkpoint import Checkpoint
from raydpzv.sim.interfaces import Observer
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.wall import LegBegin


class Leg:
    """Where a leg begins, and what its checkpoints have in common; checkpoint: None for a run from its start."""

    def __init__(self, server_loop: ServerLoop, observer: Observer, checkpoint: Checkpoint | None) -> None:
        self._loop, self._observer, self._checkpoint = server_loop, observer, checkpoint
        self._run: Mapping[str, Any] = checkpoint.state["run"] if checkpoint else {}
        self._time, self._number = float(self._run.get("time", 0.0)), int(self._run.get("leg", 0)) + 1
        self._served: Mapping[int, int] = {}
        self._origin, self._recovered = math.nan, 0

    @property
    def place(self) -> LegBegin:
        """Where the leg begins, once roles were brought there."""
        evaluated = self._checkpoint.round if self._checkpoint else 0
        lost = self._checkpoint is None and self._recovered > 0  # a leg of which the ledger alone is left
        return LegBegin(self._number + lost, self._time, evaluated, self._served)

    def begin(self, origin: float) -> None:
        """Put the leg on record, unless it is the first; origin: of its clock, in real seconds."""
        self._origin = origin
        if (number := self.place.number) == 1:
            return
        # both legs' clocks show the same time where one ended and the other begins
        gap = max(origin - self._run["origin"], 0.0) if self._run else math.nan
        place = {"round": self._loop.updates, "time": self._time}
        self._observer.emit("leg", leg=number, **place, gap=gap, recovered=self._recovered)

    def _taken_up(self, *, lost: bool) -> None:
        """Bring the server's loop to the checkpoint; lost: messages were under way, of which nobody knows the end."""
        self._loop.take_up(self._run["status"], self._run["services"], lost=lost)
        self._loop.close()  # nobody knows when the answers under way were applied

    def _moment(self, time: float) -> dict[str, Any]:
        """Return what every checkpoint of a leg keeps, taken at this time of its clock."""
        return {
            "time": max(self._time, time),
            "origin": self._origin,
            "leg": self.place.number,
            "status": self._loop.account(),
            "services": self._loop.services(),
        }
