"""Consoles and complaints: text is printed unchanged, never read as markup, and printing never
fails.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

from rich.console import Console

from raydpzv.errors import escaped, plain

LONGEST = 2000
"""Characters of the longest complaint: a number of five thousand digits helps nobody."""


def console(*, stderr: bool = False, width: int | None = None, quiet: bool = False) -> Console:
    """Return a console that prints square brackets and colons in names, paths and messages
    unchanged.
    """
    return Console(stderr=stderr, width=width, quiet=quiet, markup=False, emoji=False)


def forgiving_streams() -> None:
    """Let stdout and stderr escape what their encoding has no bytes for, such as names that are not
    UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """Return text as a complaint prints it: one line without control characters, not too long."""
    return _shortened(plain(text))


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def complain(line: str, notes: Iterable[str] = ()) -> None:
    """Print one line to stderr, and below it the rows of an error's notes, such as a table."""
    print(f"raydpzv: {printable(line)}", file=sys.stderr)
    for note in notes:
        print("\n".join(_shortened(escaped(row)) for row in note.splitlines()), file=sys.stderr)
