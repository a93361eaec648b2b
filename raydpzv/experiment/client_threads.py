"""A wall-clock run in this process: loops side by side, each in a thread, watched by the thread that started them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from raydpzv.sim.clock import Clock
from raydpzv.sim.interfaces import USER
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import NOBODY_WAKES

if TYPE_CHECKING:
    from raydpzv.config.scenario import HorizontalScenario, VerticalScenario

HEAD_START = 0.1
"""Seconds until t = 0 of a wall clock, so that every thread is ready by then."""
_LOOK = 0.02
"""Seconds between looks at the run."""


class Loop(Protocol):
    """What lives in a thread of its own: a client, or a host of clients."""

    def run(self) -> None:
        """Live until the run is over, or `stop` is called."""
        ...

    def stop(self) -> None:
        """Leave at the next opportunity."""
        ...


def run_threads(
    loops: Sequence[Loop],
    server_loop: ServerLoop,
    end: Callable[[str], None],
    clock: Clock,
    spec: VerticalScenario | HorizontalScenario,
    *,
    stop: threading.Event,
    evaluate: Callable[[], None],
    poll: Callable[[], None],
    evaluated: int = 0,
) -> None:
    """Run every loop until the run is over; whatever ends it, none goes on after this. Raises what a loop raised first.

    end: ends the run for a reason; stop: the user's wish; evaluate: called whenever it is due, neither before the first
    update nor after the last; poll: called every 20 ms; evaluated: after how many updates the last evaluation was.
    """
    failures: list[BaseException] = []
    seconds, evaluations = spec.budget.seconds, evaluated // spec.evaluate.every
    threads = [threading.Thread(target=_kept(loop.run, failures, end), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and server_loop.stop_reason is None:
            if stop.is_set():
                end(USER)
            if seconds is not None and clock.now() >= seconds:
                end(f"the budget of {seconds:g} seconds is spent")
            if server_loop.updates // spec.evaluate.every > evaluations:
                evaluations = server_loop.updates // spec.evaluate.every
                evaluate()
            poll()
            time.sleep(_LOOK)
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
    """Run every loop until it ends by itself. `end` ends the others when one fails, whose error is then raised."""
    failures: list[BaseException] = []
    threads = [threading.Thread(target=_kept(loop.run, failures, end), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _kept(
    work: Callable[[], None], failures: list[BaseException], end: Callable[[str], None]
) -> Callable[[], None]:
    """Return a thread's work whose failure ends the run and is left for the thread that started it to raise."""

    def body() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            end("a client failed")

    return body
