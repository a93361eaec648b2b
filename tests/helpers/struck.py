"""Roles of Ray's processes that get a signal in the midst of what they do."""

from __future__ import annotations

import os
import signal
from pathlib import Path


class Struck:
    """A role whose process gets a signal (kill -9) at the n-th call of a method; each mark, a file, allows one."""

    def __init__(self, role, method, calls, marks, number=signal.SIGKILL):
        self._role, self._method, self._calls = role, method, calls
        self._marks, self._number, self._count = marks, number, 0

    def __getattr__(self, name):
        found = getattr(self._role, name)
        if name != self._method:
            return found

        def call(*arguments):
            self._count += 1
            if self._count == self._calls and any(map(_taken, self._marks)):
                os.kill(os.getpid(), self._number)
            return found(*arguments)

        return call


def _taken(mark):
    """Tell whether this process is the one that takes a mark away."""
    try:
        Path(mark).unlink()
    except FileNotFoundError:
        return False
    return True
