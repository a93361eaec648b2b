"""Every error the program raises on purpose.

RaydpzvError
├── InputError            the user asked for something that cannot be done      exit status 2
│   ├── SpecError         a scenario's setting is unknown, mistyped or out of range
│   ├── DataError         a data file is missing, malformed or does not fit the scenario
│   ├── NotRecomputable   a run cannot continue or be replayed: its noise was not kept
│   └── Unplaceable       Ray cannot place an actor: says what was asked and what there is
└── RunError              the run itself failed                                 exit status 1
    ├── Lost              an actor is gone: its process ended, or its machine
    ├── Stalled           a wait passed its time limit: says what was waited for
    ├── TransportError    a connection of two actors broke, or what came is not what was promised
    ├── Diverged          parameters or losses are no longer finite
    ├── ReplayMismatch    a replayed run does not reproduce what was recorded
    └── StoppedEarly      the user stopped before there was anything to keep    exit status 130

A message says in one line what was wanted, what came and what to do.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path


class RaydpzvError(Exception):
    """Root of the tree; catches everything the program raises on purpose."""


class RunWarning(UserWarning):
    """What to look at before a run's result is believed; `Run.warnings` has all of them."""


class InputError(RaydpzvError):
    """The input is wrong; nothing was started and nothing was written."""


class SpecError(InputError):
    """A scenario's setting is unknown, mistyped, out of range or contradicts another."""


class DataError(InputError):
    """A data file is missing, malformed, or its table does not fit the scenario."""


class NotRecomputable(InputError):
    """A run that its record cannot reproduce: what it drew was not kept, or depended on the times
    of messages.
    """


class Unplaceable(InputError):
    """The cluster cannot place what the scenario asks for."""


class RunError(RaydpzvError):
    """A run that had started failed; its folder stays readable."""


class Lost(RunError):
    """An actor is gone. actor: Ray's number of it, "" if that is not known."""

    def __init__(self, message: str, actor: str = "") -> None:
        super().__init__(message)
        self.actor = actor


class Stalled(RunError):
    """Something did not arrive within its time limit."""


class TransportError(RunError):
    """A connection between two actors did not open, broke, or carried an unexpected message."""


class Diverged(RunError):
    """Parameters or losses are no longer finite."""


class ReplayMismatch(RunError):
    """A replay does not reproduce the recorded run."""


class StoppedEarly(RunError):
    """The user stopped before there was anything new to keep; everything is as it was."""


def command(*words: object) -> str:
    """Return a command of the program as a hint has it, quoted for the shell."""
    # the path of a file called -x is no option
    found = (f"./{w}" if isinstance(w, Path) and str(w).startswith("-") else str(w) for w in words)
    return shlex.join(["raydpzv", *found])


def missing(library: str, extra: str, instead: str = "") -> InputError:
    """Return the error for a library that is not installed; extra: what installs it; instead: what
    works without it.
    """
    return InputError(f"{library} is not installed: pip install 'raydpzv[{extra}]'{instead}")


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return `Did you mean "x"? ` for the nearest known name, or nothing."""
    near = difflib.get_close_matches(wrong, list(known), n=1)
    return f'Did you mean "{near[0]}"? ' if near else ""


def plain(text: str) -> str:
    """Return text as one line, `escaped`."""
    return escaped(" ".join(text.split()))


def escaped(text: str) -> str:
    """Return text in which what a terminal would obey, and what is no character, is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise SpecError unless a value is None or a whole number of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and value >= least):  # type: ignore[operator]
        raise SpecError(f"{name}: wanted a whole number of at least {least}, got {value!r:.60}")
