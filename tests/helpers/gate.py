"""A gate in the midst of a run, so that a test stops or kills it there however fast it goes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydpzv.compare import run_comparison
from raydpzv.sim.interfaces import Status
from raydpzv.sim.server_loop import ServerLoop


@dataclass(frozen=True)
class Gate:
    """Parties in whatever process wait at their `at`-th call until the file is there."""

    file: Path
    at: int

    def passed(self, call: int) -> None:
        """Count a call from 1 on: waits at the one with the gate."""
        if call == self.at and not self.file.exists():
            self.file.with_name(f"{self.file.name} {os.getpid()}").touch()
            while not self.file.exists():
                time.sleep(0.005)

    def waiting(self) -> int:
        """Return how many processes have come to the gate."""
        return len(list(self.file.parent.glob(f"{self.file.name} *")))

    def hold_runs(self) -> None:
        """Let every run of this process wait at the gate, after so many uploads."""
        serve = ServerLoop.serve

        def held(loop: ServerLoop, *given: Any) -> Any:
            self.passed(loop.uploads)
            return serve(loop, *given)

        ServerLoop.serve = held  # type: ignore[method-assign]


def held_work(gate: Gate, *given: Any) -> None:
    """Make the runs of a comparison in a process of its own; each waits at the gate."""
    gate.hold_runs()
    run_comparison._work(*given)


@dataclass
class StopWaiting:
    """Progress of a comparison that asks for a stop once `runs` wait, and opens the gate once they
    have been told.
    """

    gate: Gate
    runs: int
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, standing: Mapping[str, Status]) -> None:
        """Look at the runs: they are told before the next look."""
        if self.stop.is_set():
            self.gate.file.touch()
        elif self.gate.waiting() == self.runs:
            self.stop.set()


@dataclass
class StopAtGate:
    """Progress that asks for a stop after `after` updates, and opens the gate once the run has been
    told.
    """

    gate: Gate
    after: int
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, status: Status) -> None:
        """Look at the run; a driver passes a stop on before it shows the next status."""
        if self.stop.is_set():
            self.gate.file.touch()
        elif status.updates > self.after:
            self.stop.set()
