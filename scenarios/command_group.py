"""The group of all commands: it checks a command line before any command gets it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from raydpzv.config.tree import is_text
from scenarios.screen import complain, forgiving_streams

NAME = "raydpzv"
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a command line it cannot read. Newer versions have their own, older ones have click's."""


class CommandGroup(TyperGroup):
    """Says in one line what is wrong with a command line, and ends with status 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command that `args` (default: the process's) ask for, and end the process with its status."""
        forgiving_streams()
        given = list(sys.argv[1:] if args is None else args)
        for text in given:
            if not is_text(text):
                complain(
                    f"wanted arguments of UTF-8 text without control characters, got {text!r}; rename the file"
                )
                sys.exit(2)
        if given[:1] == ["tune"] and any(word.split("=")[0] == "--space" for word in given):
            complain("note: `tune SCENARIO --space FILE` is `search SCENARIO --space FILE` now")
            given[0] = "search"
        try:
            status = super().main(given, NAME, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            _explain(error)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


def _explain(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else NAME
    complain(f"{error.format_message().rstrip('.')}; see: {command} --help")
