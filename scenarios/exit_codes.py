"""How a command ends: one line on stderr, and the exit status."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from raydpzv.errors import InputError, RaydpzvError, RunError, StoppedEarly, command
from raydpzv.files import keep_traceback
from raydpzv.limits import shortage
from raydpzv.settings.party_names import named
from scenarios.screen import complain, console

STOPPED = 130


@contextmanager
def failures(folder: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Keep the traceback of a run that failed in its folder; what nobody foresaw becomes a
    RunError.

    names: those of the clients' parties, for messages.
    """
    try:
        yield
    except (InputError, StoppedEarly):
        raise
    except Exception as error:
        if not folder.is_dir():
            raise
        foreseen = str(error) if isinstance(error, RaydpzvError) else shortage(error)
        line = named(foreseen or f"{type(error).__name__}: {error}", names)
        try:
            log = keep_traceback(folder)
        except OSError:  # a full disk, which the line names
            raise RunError(line) from error
        raise RunError(f"{line} (details in {log})") from error


def leave(folder: Path, runs: str, failed: Sequence[str], *, stopped: bool, nothing: str) -> None:
    """End a command of many runs, with 130 if the user stopped it. Raises RunError if runs failed
    or none has a result.

    runs: how many there are, and of what; failed: name and reason of each; nothing: the line if
    none has a result.
    """
    if stopped:
        console(stderr=True).print(
            f"stopped; continue with: {command('resume', folder)}", soft_wrap=True
        )
        raise typer.Exit(STOPPED)
    if failed:
        again = f"try them again with: {command('resume', folder)}"
        raise RunError(f"{len(failed)} of {runs} failed, first {failed[0]}; {again}")
    if nothing:
        raise RunError(nothing)


@contextmanager
def errors(verbose: bool = False) -> Iterator[None]:
    """Turn errors into one line and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(STOPPED) from None
    except RaydpzvError as error:
        _finish(error, str(error), _status(error), verbose)
    except BrokenPipeError:
        raise  # nobody reads on: `raydpzv list | head`
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        if line := shortage(error):
            _finish(error, line, 2, verbose)
        if isinstance(error, typer.Exit | typer.Abort):
            raise
        if not isinstance(error, OSError):
            _unforeseen(error, verbose)
        # a path that is too long, a folder that is a file: wrong input that no check foresaw
        _finish(
            error,
            f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "),
            2,
            verbose,
        )
    except typer.BadParameter:
        raise
    except Exception as error:
        _unforeseen(error, verbose)


def _unforeseen(error: Exception, verbose: bool) -> NoReturn:
    line = (
        f"internal error, {type(error).__name__}: {error} (--verbose shows where, if the command "
        "has it)"
    )
    _finish(error, line, 1, verbose)


def _status(error: RaydpzvError) -> int:
    if isinstance(error, StoppedEarly):
        return STOPPED
    return 2 if isinstance(error, InputError) else 1


def _finish(error: BaseException, line: str, status: int, verbose: bool) -> NoReturn:
    if verbose:
        traceback.print_exception(error)
    complain(line, getattr(error, "__notes__", ()))
    raise typer.Exit(status) from None
