import threading
from collections.abc import Callable

import pytest

from raydpzv.sim.client_threads import run_threads
from raydpzv.sim.virtual import NOBODY_WAKES


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


def run(*loops: Loop, reasons: list[str], poll: Callable[[], bool] | None = None) -> str:
    """Run loops until a reason is given, as in a run's server loop; return the first reason."""
    try:
        run_threads(loops, reasons.append, poll or (lambda: not reasons))
    finally:
        assert all(loop.over for loop in loops)
    return reasons[0]


def test_it_is_over_when_no_loop_continues() -> None:
    rounds = iter(range(5))
    reason = run(Loop(lambda: next(rounds, None) is None), Loop(lambda: True), reasons=[])
    assert reason == NOBODY_WAKES
    assert next(rounds, None) is None


def test_a_reason_of_the_runs_own_stops_every_loop() -> None:
    reasons: list[str] = []
    spends = Loop(lambda: reasons.append("the budget is spent") or False)  # type: ignore[func-returns-value]
    assert run(spends, Loop(), Loop(), reasons=reasons) == "the budget is spent"


def test_what_a_loop_raised_ends_the_run_and_is_raised() -> None:
    def fail() -> bool:
        raise ZeroDivisionError("of loop 1")

    reasons: list[str] = []
    with pytest.raises(ZeroDivisionError, match="of loop 1"):
        run(Loop(), Loop(fail), reasons=reasons)
    assert reasons[0] == "a client failed"


def test_what_a_poll_raised_leaves_no_loop_behind() -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    reasons: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(Loop(), Loop(), reasons=reasons, poll=interrupt)
    assert reasons[0] == "the run broke off"
