"""Loops side by side: whatever ends a run, every thread is over after it, and what went wrong is raised."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import scenarios
from raydpzv.config.scenario import VerticalScenario
from raydpzv.experiment.client_threads import run_threads
from raydpzv.sim.clock import WallClock
from raydpzv.sim.virtual import NOBODY_WAKES


class ServerLoop:
    """Counts updates and keeps the first reason, as the server loop of a run does."""

    def __init__(self) -> None:
        self.updates, self.stop_reason = 0, None

    def stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason


class Loop:
    """Lives until it is stopped, or until its work returns true."""

    def __init__(self, work: Callable[[], bool] = lambda: False) -> None:
        self._work, self._stopping, self.over = work, threading.Event(), False

    def run(self) -> None:
        try:
            while not self._work() and not self._stopping.wait(0.002):
                pass
        finally:
            self.over = True

    def stop(self) -> None:
        self._stopping.set()


def spec(*overrides: str) -> Any:
    found = scenarios.load("digits_dpzv", ["privacy.mode=none", "evaluate.every=10", *overrides])
    assert isinstance(found, VerticalScenario)
    return found


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def run(
    server_loop: ServerLoop,
    stop: threading.Event,
    *loops: Loop,
    given: Any = None,
    evaluate: Any = None,
    poll: Any = None,
) -> None:
    nothing = lambda: None  # noqa: E731
    try:
        run_threads(
            loops,
            server_loop,  # type: ignore[arg-type]
            server_loop.stop,
            WallClock(),
            given or spec(),
            stop=stop,
            evaluate=evaluate or nothing,
            poll=poll or nothing,
        )
    finally:
        assert all(loop.over for loop in loops)


def test_it_is_over_when_no_loop_goes_on(stop: threading.Event) -> None:
    server_loop, rounds = ServerLoop(), iter(range(5))
    run(server_loop, stop, Loop(lambda: next(rounds, None) is None), Loop(lambda: True))
    assert server_loop.stop_reason == NOBODY_WAKES
    assert next(rounds, None) is None


def test_a_reason_of_the_runs_own_stops_every_loop(stop: threading.Event) -> None:
    server_loop = ServerLoop()
    run(server_loop, stop, Loop(lambda: server_loop.stop("the budget is spent") or False), Loop(), Loop())
    assert server_loop.stop_reason == "the budget is spent"


def test_the_user_and_the_budget_of_seconds_stop_it(stop: threading.Event) -> None:
    server_loop, looks = ServerLoop(), []
    run(server_loop, stop, Loop(), poll=lambda: looks.append(stop.set()))
    assert server_loop.stop_reason == "stopped by the user"
    assert len(looks) == 2
    other = ServerLoop()
    run(other, threading.Event(), Loop(), given=spec("budget.seconds=0.1"))
    assert other.stop_reason == "the budget of 0.1 seconds is spent"


def test_what_a_loop_raised_ends_the_run_and_is_raised(stop: threading.Event) -> None:
    def fail() -> bool:
        raise ZeroDivisionError("of loop 1")

    server_loop = ServerLoop()
    with pytest.raises(ZeroDivisionError, match="of loop 1"):
        run(server_loop, stop, Loop(), Loop(fail))
    assert server_loop.stop_reason == "a client failed"


def test_what_the_watch_raised_leaves_no_loop_behind(stop: threading.Event) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    server_loop = ServerLoop()
    with pytest.raises(KeyboardInterrupt):
        run(server_loop, stop, Loop(), Loop(), poll=interrupt)
    assert server_loop.stop_reason == "the run broke off"


def test_an_evaluation_is_made_whenever_it_is_due(stop: threading.Event) -> None:
    """Every ten updates, once however many looks fall between them; two that are due at once are one."""
    server_loop, evaluated = ServerLoop(), []
    updates = iter([5, 10, 19, 20, 20, 41, 45])

    def look() -> None:
        server_loop.updates = next(updates, 0)
        if not server_loop.updates:
            stop.set()

    run(server_loop, stop, Loop(), evaluate=lambda: evaluated.append(server_loop.updates), poll=look)
    assert evaluated == [10, 20, 41]
