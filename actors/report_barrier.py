"""Between a server's loop and a driver that hears of every evaluation before the loop goes on."""

from __future__ import annotations

import threading

from raydpzv.methods.roles import Metrics
from raydpzv.sim.interfaces import Status

Heard = tuple[Status, Metrics]
"""Where the run stood at an evaluation, and what was measured."""


class ReportBarrier:
    """What a server's loop calls at each evaluation: shut until the driver asks to hear of them, it lets all pass.

    holds: does the loop stand still until the driver has heard? Under the wall clock it must not.
    """

    def __init__(self) -> None:
        self._asked = self._holds = False
        self._found: list[Heard] = []
        self._lock = threading.Lock()
        self._passes = threading.Event()

    def open(self, *, holds: bool) -> None:
        """Keep evaluations for the driver from now on."""
        self._asked, self._holds = True, holds

    def __call__(self, status: Status, metrics: Metrics) -> None:
        """Hand over an evaluation, and wait until the driver lets the loop go on."""
        if not self._asked:
            return
        self._passes.clear()
        with self._lock:
            self._found.append((status, metrics))
        if self._holds:
            self._passes.wait()

    def taken(self) -> list[Heard]:
        """Return the evaluations since the last call."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def go_on(self) -> None:
        """Let the loop go on."""
        self._passes.set()


class ReportPort:
    """The calls of a server actor by which its driver hears of evaluations."""

    CALLS = ("hear", "heard", "go_on")

    def __init__(self) -> None:
        self._gate = ReportBarrier()

    def hear(self, holds: bool) -> None:
        """Keep evaluations for the driver from now on; holds: see `ReportBarrier`."""
        self._gate.open(holds=holds)

    def heard(self) -> list[Heard]:
        """Return the evaluations since the last call."""
        return self._gate.taken()

    def go_on(self) -> None:
        """Go on after an evaluation that the driver has heard of."""
        self._gate.go_on()
