"""Looks at a run in progress: how many updates, when, and at what cost in CPU time."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from processes import Census

from raydpzv.errors import RunError
from raydpzv.sim.interfaces import Status

_BETWEEN = 0.05
"""Seconds between looks, at least: a look reads one file per process."""


@dataclass(frozen=True)
class Look:
    """Where a run stood: updates served, seconds on a monotonic clock, CPU seconds by group of
    processes.
    """

    updates: int
    time: float
    cpu: Counter[str]


@dataclass(frozen=True)
class Pace:
    """A steady state: updates per second, CPU seconds per update by group, updates it was measured
    over.
    """

    rate: float
    cpu: dict[str, float]
    updates: int

    @property
    def total(self) -> float:
        """CPU seconds per update of all processes together."""
        return sum(self.cpu.values())


class Watch:
    """A run's progress callback; takes looks from `warm` updates on, `total` being the run's
    end.
    """

    def __init__(self, warm: int, total: int) -> None:
        self._warm, self._total = warm, total
        self._census: Census | None = None
        self._looks: list[Look] = []

    def __call__(self, status: Status) -> None:
        """Take a look if it is time for one."""
        self.look(status.updates)

    def look(self, updates: int) -> None:
        """Take a look if it is time for one."""
        if updates < self._warm:
            return
        if self._census is None:
            self._census = Census.take()
            return
        now = time.monotonic()
        if not self._looks or now - self._looks[-1].time >= _BETWEEN or updates >= self._total:
            self._looks.append(Look(updates, now, self._census.cpu_seconds()))

    def pace(self) -> Pace:
        """Return the steady state. Raises RunError if the run was too short to see one."""
        # the last look may come after the finalizer evaluation
        looks = [look for look in self._looks if look.updates < self._total]
        if len(looks) < 2 or looks[-1].updates <= looks[0].updates:
            looks = self._looks
        if len(looks) < 2 or looks[-1].updates <= looks[0].updates:
            raise RunError(
                f"wanted two looks at a run of {self._total} updates after its first {self._warm}, "
                f"got {len(self._looks)}: use a longer run"
            )
        first, last = looks[0], looks[-1]
        updates, cpu = last.updates - first.updates, last.cpu - first.cpu
        rate = updates / (last.time - first.time)
        return Pace(rate, {group: seconds / updates for group, seconds in cpu.items()}, updates)
