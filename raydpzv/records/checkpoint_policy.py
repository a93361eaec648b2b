"""How often checkpoints are taken; hosts read this module, which needs no Arrow."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from statistics import median_low
from typing import Any

_FIRST = 0.5
"""Seconds until a first checkpoint, where no setting says how often they are taken."""
_SHARE = 100
"""Where no setting says so, one part in so many of what was computed may be lost."""
_REST = 40
"""Times its own cost that pass between two checkpoints, at the least: they take at most a fortieth of a run's time."""
_FIRST_REST = 10
"""The same after the first one, which costs more than those that follow: what it calls is called for the first time."""
_LATEST = 5
"""Checkpoints, whose costs have a low median that is taken for what one costs: some wait, and the first writes more."""
_WAITED = Path("/proc/thread-self/schedstat")
"""CPU nanoseconds of the thread, and those for which it waited for a processor that others had."""


def own_seconds() -> float:
    """Return the seconds of the monotonic clock without those for which this thread waited for a processor.

    What else runs on the machine moves it little, and waiting for disks or other processes counts. Where the system
    does not tell, it is the monotonic clock.
    """
    now = time.monotonic()
    try:
        return now - int(_WAITED.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return now


class CheckpointPolicy:
    """Says when a checkpoint is due, and keeps account of what they cost.

    seconds: between two of them; None: a share of the time that the run has taken so far, and at most `most`. updates:
    between two of them instead. Of seconds, `_REST` times what one costs pass at the least. It is used by one thread.
    """

    def __init__(self, seconds: float | None, updates: int | None, most: float) -> None:
        self._seconds, self._updates, self._most = seconds, updates, most
        self._begun = self._last = own_seconds()
        self.look = 0.0
        """The monotonic clock before which none can be due: who asks often looks at it first."""
        self._next_update = updates or 0
        self.count, self.spent, self.bytes = 0, 0.0, 0
        self._costs: deque[float] = deque(maxlen=_LATEST)

    def due(self, updates: int) -> bool:
        """Tell whether a checkpoint should be taken after so many updates."""
        if self._updates is not None:
            return updates >= self._next_update
        if (clock := time.monotonic()) < self.look:
            return False
        now, wait = own_seconds(), self._seconds
        if wait is None:
            wait = min(max((now - self._begun) / _SHARE, 0.0 if self.count else _FIRST), self._most)
        rest = _REST if self.count > 1 else _FIRST_REST
        missing = max(wait, rest * (median_low(self._costs) if self._costs else 0.0)) - (now - self._last)
        self.look = clock + missing
        return missing <= 0

    def begin(self) -> None:
        """Note that a checkpoint is begun."""
        self._last = own_seconds()

    def taken(self, updates: int, size: int) -> float:
        """Count the checkpoint that was begun, of so many bytes; return the seconds that it took."""
        begun, self._last = self._last, own_seconds()
        if self.count == 2:
            self._costs.popleft()  # that of the first one
        self._costs.append(self._last - begun)
        self.count, self.spent, self.bytes = self.count + 1, self.spent + self._costs[-1], size
        if self._updates is not None:
            self._next_update = (updates // self._updates + 1) * self._updates
        return self._costs[-1]

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says of checkpoints: how many, what they cost, how large the last one is."""
        return {"checkpoints": {"count": self.count, "seconds": round(self.spent, 6), "bytes": self.bytes}}
