"""How often checkpoints of runs without rounds are taken; hosts read this module, which needs no Arrow."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

_FIRST = 1.0
"""Seconds until a first checkpoint, where no setting says how often they are taken."""
_SHARE = 50
"""Where no setting says so, one part in so many of what was computed may be lost."""
_REST = 40
"""Times its own cost that pass between two checkpoints, at the least: they take at most a fortieth of a run's time."""
_LATEST = 5
"""Checkpoints the least of whose costs is taken for what one costs: others were kept waiting by what else runs."""


class Pace:
    """Says when a checkpoint of a run without rounds is due, and keeps account of what they cost.

    seconds: between two of them; None: a share of the time that the run has taken so far, and at most `most`. updates:
    between two of them instead. Of seconds, `_REST` times what one costs pass at the least.
    """

    def __init__(self, seconds: float | None, updates: int | None, most: float) -> None:
        self._seconds, self._updates, self._most = seconds, updates, most
        self._begun = self._last = time.monotonic()
        self._next_update = updates or 0
        self.count, self.spent, self.bytes = 0, 0.0, 0
        self._costs: deque[float] = deque(maxlen=_LATEST)

    def due(self, updates: int) -> bool:
        """Tell whether a checkpoint should be taken after so many updates."""
        if self._updates is not None:
            return updates >= self._next_update
        now = time.monotonic()
        wait = self._seconds
        if wait is None:
            wait = min(max((now - self._begun) / _SHARE, 0.0 if self.count else _FIRST), self._most)
        return now - self._last >= max(wait, _REST * min(self._costs, default=0.0))

    def taken(self, begun: float, updates: int, size: int) -> None:
        """Count a checkpoint of so many bytes that was begun at `begun` of the monotonic clock."""
        self._last = time.monotonic()
        self._costs.append(self._last - begun)
        self.count, self.spent, self.bytes = self.count + 1, self.spent + self._costs[-1], size
        if self._updates is not None:
            self._next_update = (updates // self._updates + 1) * self._updates

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says of checkpoints: how many, what they cost, how large the last one is."""
        return {"checkpoints": {"count": self.count, "seconds": round(self.spent, 6), "bytes": self.bytes}}
