"""A wall-clock run in this process: loops side by side, each in a thread, watched by the thread
that started them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from raydpzv.sim.virtual import NOBODY_WAKES

HEAD_START = 0.1
"""Seconds until t = 0 of a wall clock, so that every thread is ready by then."""
_POLL = 0.02
"""Seconds between two polls of the run."""


class Loop(Protocol):
    """What lives in a thread of its own: a client, or a host of clients."""

    def run(self) -> None:
        """Live until the run is over, or `stop` is called."""
        ...

    def stop(self) -> None:
        """Leave at the next opportunity."""
        ...


def run_threads(
    loops: Sequence[Loop], end: Callable[[str], None], poll: Callable[[], bool]
) -> None:
    """Run every loop until the run is over; then none continues. Raises what a loop raised first.

    end: ends the run for a reason; poll: called every 20 ms, returns whether the run continues.
    """
    failures: list[BaseException] = []
    threads = _started(loops, failures, end)
    try:
        while any(thread.is_alive() for thread in threads) and poll():
            time.sleep(_POLL)
        end(NOBODY_WAKES)
    finally:
        end("the run broke off")
        for loop in loops:
            loop.stop()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def run_together(loops: Sequence[Loop], end: Callable[[str], None]) -> None:
    """Run every loop until it ends by itself. `end` ends the others when one fails, whose error is
    then raised.
    """
    failures: list[BaseException] = []
    for thread in _started(loops, failures, end):
        thread.join()
    if failures:
        raise failures[0]


def _started(
    loops: Sequence[Loop], failures: list[BaseException], end: Callable[[str], None]
) -> list[threading.Thread]:
    """Return a running thread for each loop, whose failure ends the run and is left in `failures`
    to be raised.
    """

    def body(loop: Loop) -> None:
        try:
            loop.run()
        except BaseException as error:
            failures.append(error)
            end("a client failed")

    threads = [threading.Thread(target=body, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    return threads
