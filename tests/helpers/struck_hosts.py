"""Horizontal scenarios of whose processes one gets a signal or waits at a gate in the midst of its
work.
"""

import dataclasses
import signal
import threading
from pathlib import Path

from raydpzv.experiment.horizontal import PreparedHorizontal
from tests.helpers.gate import Gate
from tests.helpers.struck import Struck


@dataclasses.dataclass(frozen=True)
class Mortal(PreparedHorizontal):
    """A prepared one of whose hosts ends by kill -9 (or ends the ledger) in the midst of its work,
    `deaths` times.
    """

    marks: str = ""
    deaths: int = 1
    after: int = 8
    victim: str = "host"
    number: int = signal.SIGKILL

    def client_group(self, updates=None, device="cpu"):
        client_group = PreparedHorizontal.client_group(self, updates, device)
        process, calls = client_group.process, []

        def dying(orders):
            calls.append(len(orders))
            if len(calls) == self.after:
                self._die(updates)
            return process(orders)

        client_group.process = dying
        return client_group

    def _die(self, updates):
        marks = Path(self.marks)
        number = next(i for i in range(100) if _first(marks / str(i)))
        if number >= self.deaths:
            return
        if self.victim == "ledger":
            import ray

            ray.kill(updates._connection._actor)
        else:
            signal.pthread_kill(threading.get_ident(), self.number)


@dataclasses.dataclass(frozen=True)
class Gated(PreparedHorizontal):
    """A prepared one whose hosts wait at a gate."""

    gate: Gate | None = None

    def client_group(self, updates=None, device="cpu"):
        client_group = PreparedHorizontal.client_group(self, updates, device)
        process, calls = client_group.process, []

        def waiting(orders):
            calls.append(len(orders))
            self.gate.passed(len(calls))
            return process(orders)

        client_group.process = waiting
        return client_group


@dataclasses.dataclass(frozen=True)
class StruckServerOfHosts(Gated):
    """A prepared one whose hosts wait at a gate, and whose server's process is killed at its n-th
    upload, once.
    """

    mark: str = ""
    calls: int = 100

    def server(self, ledger=None, device="cpu"):
        return Struck(
            PreparedHorizontal.server(self, ledger, device), "receive", self.calls, (self.mark,)
        )


def as_kind(kind, prepared, **more):
    """Return a prepared scenario as one of the classes above."""
    return kind(
        **{field.name: getattr(prepared, field.name) for field in dataclasses.fields(prepared)},
        **more,
    )


def mortal(prepared, folder, **how):
    """Return a prepared scenario whose host dies, once unless `deaths` is given; folder: for its
    marks.
    """
    marks = folder / "deaths"
    marks.mkdir()
    return as_kind(Mortal, prepared, marks=str(marks), **how)


def _first(mark):
    """Tell whether this process is the one that makes the mark."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
