"""What happens next in virtual time: a heap of (time, sequence, event)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventQueue(Generic[Event]):
    """Events by time; events of equal time leave in the order in which they were added, so that
    order is total.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time: float, event: Event) -> None:
        """Plan an event; `time` is never NaN."""
        if time != time:
            raise ValueError(f"an event cannot be planned at time NaN: {event!r}")
        heapq.heappush(self._heap, (time, self._sequence, event))
        self._sequence += 1

    def next_time(self) -> float:
        """Return when the next event is due."""
        return self._heap[0][0]

    def pop(self) -> tuple[float, Event]:
        """Remove and return the next event and its time."""
        time, _, event = heapq.heappop(self._heap)
        return time, event

    def change(self, change: Callable[[Event], Event]) -> list[tuple[float, Event]]:
        """Put what `change` returns in every event's place; return times and events in the order of
        leaving.
        """
        self._heap = [
            (time, number, change(event)) for time, number, event in sorted(self._heap, key=_place)
        ]
        return [(time, event) for time, _, event in self._heap]


def _place(entry: tuple[float, int, object]) -> tuple[float, int]:
    return entry[:2]
