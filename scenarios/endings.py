"""How a command ends: one line on stderr, and the exit status."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from raydpzv.errors import InputError, RaydpzvError, RunError

STOPPED = 130


@contextmanager
def failures(folder: Path) -> Iterator[None]:
    """Keep the traceback of a run that failed in its folder; what nobody foresaw becomes a RunError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        line, log = f"{type(error).__name__}: {error}", folder / "error.log"
        if folder.is_dir():
            log.write_text(traceback.format_exc())
            line += f" (details in {log})"
        raise RunError(str(error) if isinstance(error, RaydpzvError) else line) from error


@contextmanager
def errors(verbose: bool = False) -> Iterator[None]:
    """Turn errors into one line and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(STOPPED) from None
    except RaydpzvError as error:
        if verbose:
            traceback.print_exc()
        complain(str(error))
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from None


def complain(line: str) -> None:
    """Print one line to stderr."""
    print(f"raydpzv: {' '.join(line.split())}", file=sys.stderr)
