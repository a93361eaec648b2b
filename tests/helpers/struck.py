"""Roles of Ray's processes that get a signal in the midst of what they do."""

import dataclasses
import signal
import threading
from pathlib import Path

from raydpzv.experiment.parties import ClientFactory, ServerFactory
from raydpzv.experiment.vertical import prepare_vertical


class Struck:
    """A role whose process gets a signal (kill -9) at the n-th call of a method; each mark, a file,
    allows one.

    after: a path; at the first call from the n-th on at which it is there.
    """

    def __init__(self, role, method, calls, marks, number=signal.SIGKILL, after=""):
        self._role, self._method, self._calls = role, method, calls
        self._marks, self._number, self._after, self._count = marks, number, after, 0

    def __getattr__(self, name):
        found = getattr(self._role, name)
        if name != self._method:
            return found

        def call(*arguments):
            self._count += 1
            if self._due() and any(map(_taken, self._marks)):
                # to this thread: where another takes a signal, this one may go on until that one
                # has its turn
                signal.pthread_kill(threading.get_ident(), self._number)
            return found(*arguments)

        return call

    def _due(self):
        return (
            self._count >= self._calls and Path(self._after).exists()
        )  # "" is the folder it works in


def _taken(mark):
    """Tell whether this process is the one that takes a mark away."""
    try:
        Path(mark).unlink()
    except FileNotFoundError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class StruckClient(ClientFactory):
    call: str = "process"
    calls: int = 40
    marks: tuple[str, ...] = ()
    number: int = signal.SIGKILL

    def make(self, device="cpu"):
        return Struck(
            ClientFactory.make(self, device), self.call, self.calls, self.marks, self.number
        )


@dataclasses.dataclass(frozen=True)
class StruckServer(ServerFactory):
    calls: int = 150
    marks: tuple[str, ...] = ()
    number: int = signal.SIGKILL
    after: str = ""

    def make(self, device="cpu"):
        how = (self.calls, self.marks, self.number, self.after)
        return Struck(ServerFactory.make(self, device), "receive", *how)


def strikes(folder, **usual):
    """Return what makes an experiment in which client 1's process, or the server's, gets a signal,
    `times` times.

    folder: where marks are; usual: by party, settings of `StruckClient` and `StruckServer`.
    """

    def make(spec, party, times=1, **how):
        marks = tuple(str(folder / f"mark {n}") for n in range(times))
        for mark in marks:
            Path(mark).touch()
        how = {**usual.get(party, {}), **how, "marks": marks}
        experiment = prepare_vertical(spec)
        if party == "server":
            return dataclasses.replace(
                experiment, server=StruckServer(**vars(experiment.server), **how)
            )
        clients = list(experiment.clients)
        clients[1] = StruckClient(**vars(clients[1]), **how)
        return dataclasses.replace(experiment, clients=tuple(clients))

    return make
