"""A gate in the midst of a run, so that a test stops it there however fast it goes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from raydpzv.sim.interfaces import Status


@dataclass(frozen=True)
class Gate:
    """Parties in whatever process wait at their `at`-th call until the file is there."""

    file: Path
    at: int

    def passed(self, call: int) -> None:
        """Count a call from 1 on: waits at the one with the gate."""
        while call == self.at and not self.file.exists():
            time.sleep(0.005)


@dataclass
class StopAtGate:
    """Progress that asks for a stop after `after` updates, and opens the gate once the run has been told."""

    gate: Gate
    after: int
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, status: Status) -> None:
        """Look at the run; a driver passes a stop on before it shows the next status."""
        if self.stop.is_set():
            self.gate.file.touch()
        elif status.updates > self.after:
            self.stop.set()
