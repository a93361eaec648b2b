"""When checkpoints are due. Hosts import this module, so it does without Arrow."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from statistics import median_low
from typing import Any

_FIRST = 0.5
"""Seconds until the first checkpoint, without a setting."""
_SHARE = 100
"""Without a setting, a crash loses at most one part in so many of the work."""
_SEEN = 0.5
"""Most seconds between two, without a setting: who watches a run sees what a checkpoint has."""
_REST = 40
"""Least time between two checkpoints, in times their cost: they take at most a fortieth of a run's
time.
"""
_FIRST_REST = 10
"""The same after the first one, which costs more than later ones: its calls are the first of their
kind.
"""
_LATEST = 5
"""Checkpoints whose low median is the estimated cost: some wait, and the first writes more."""
_WAITED = Path("/proc/thread-self/schedstat")
"""CPU nanoseconds of the thread, and those for which it waited for a processor."""


def own_seconds() -> float:
    """Return the seconds of the monotonic clock without those for which this thread waited for a
    processor.

    Other load of the machine changes it little. Waiting for disks or other processes counts.
    Systems without this count use the monotonic clock.
    """
    now = time.monotonic()
    try:
        return now - int(_WAITED.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return now


class CheckpointPolicy:
    """Decides when a checkpoint is due, and counts their cost.

    seconds: between two of them; None: a share of the run's time so far, at most `most` or `_SEEN`.
    updates: instead of seconds. Between two pass at least `_REST` times the seconds that one costs.
    One thread uses it.
    """

    def __init__(self, seconds: float | None, updates: int | None, most: float) -> None:
        self._seconds, self._updates, self._most = seconds, updates, min(most, _SEEN)
        self._begun = self._last = own_seconds()
        self.look = 0.0
        """The monotonic clock before which none can be due. Frequent callers compare it first."""
        self._next_update = updates or 0
        self.count, self.spent, self.bytes = 0, 0.0, 0
        self._costs: deque[float] = deque(maxlen=_LATEST)

    def due(self, updates: int) -> bool:
        """Return whether a checkpoint should be taken after so many updates."""
        if self._updates is not None:
            return updates >= self._next_update
        if (clock := time.monotonic()) < self.look:
            return False
        now, wait = own_seconds(), self._seconds
        if wait is None:
            wait = min(max((now - self._begun) / _SHARE, 0.0 if self.count else _FIRST), self._most)
        rest = _REST if self.count > 1 else _FIRST_REST
        missing = max(wait, rest * (median_low(self._costs) if self._costs else 0.0)) - (
            now - self._last
        )
        self.look = clock + missing
        return missing <= 0

    def begin(self) -> None:
        """Note the start of a checkpoint."""
        self._last = own_seconds()

    def taken(self, updates: int, size: int) -> float:
        """Count the checkpoint that started, with its bytes; return the seconds that it took."""
        begun, self._last = self._last, own_seconds()
        if self.count == 2:
            self._costs.popleft()  # that of the first one
        self._costs.append(self._last - begun)
        self.count, self.spent, self.bytes = self.count + 1, self.spent + self._costs[-1], size
        if self._updates is not None:
            self._next_update = (updates // self._updates + 1) * self._updates
        return self._costs[-1]

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says of checkpoints: their number and seconds, and the bytes of
        the last one.
        """
        return {
            "checkpoints": {
                "count": self.count,
                "seconds": round(self.spent, 6),
                "bytes": self.bytes,
            }
        }
