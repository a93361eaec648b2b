"""What time is it? Seconds since the run began; simulated time is the events' own
(`raydpzv.sim.virtual`).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that knows the run's time."""

    def now(self) -> float:
        """Return the seconds since the run began."""
        ...


def time_on_record(clock: Clock) -> float:
    """Return the time as rows have it: what is done in the head start before t = 0 counts as done
    at t = 0.
    """
    return max(0.0, clock.now())


class WallClock:
    """Real time, comparable between the processes of a run that share its origin.

    origin: seconds since the epoch at which the run began; None: now. Machines' clocks must agree
    (NTP) as far as times of different machines are compared.
    """

    def __init__(self, origin: float | None = None) -> None:
        self.origin = time.time() if origin is None else origin  # noqa: TID251  (this is the clock to be asked)

    @classmethod
    def starting_in(cls, seconds: float, at: float = 0.0) -> WallClock:
        """Return a clock whose t = `at` is that much later; until then its time is before that."""
        return cls(time.time() + seconds - at)  # noqa: TID251

    def now(self) -> float:
        return time.time() - self.origin  # noqa: TID251
