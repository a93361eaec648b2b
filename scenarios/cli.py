"""The command line. Exit status: 0 done, 1 the run failed, 2 wrong input, 130 stopped by the
user.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import raydpzv
from raydpzv.config.tree import is_text
from scenarios import command_options as options
from scenarios.screen import complain, forgiving_streams
from scenarios.typer_options import as_command

NAME = "raydpzv"
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a command line it cannot read. Newer versions have their own, older ones
have click's.
"""

_GONE = {
    "fetch": "`raydpzv report URI` and `raydpzv resume URI` download a storage to runs/",
    "search": "use `raydpzv tune SCENARIO --space FILE`",
    "submit": "use `ray job submit`, see docs/cluster.md",
}
"""Commands of before, and what to use instead."""


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
        """Run the command that `args` (default: the process's) ask for, and end the process with
        its status.
        """
        forgiving_streams()
        given = list(sys.argv[1:] if args is None else args)
        for text in given:
            if not is_text(text):
                complain(
                    f"wanted arguments of UTF-8 text without control characters, got {text!r}; "
                    "rename the file"
                )
                sys.exit(2)
        if given and given[0] in _GONE:
            complain(f"{given[0]}: is no command any more; {_GONE[given[0]]}")
            sys.exit(2)
        try:
            status = super().main(given, NAME, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            _explain(error)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


def _explain(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else NAME
    complain(f"{error.format_message().rstrip('.')}; see: {command} --help")


app = typer.Typer(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.")
    ] = False,
) -> None:
    """Asynchronous, differentially private, zeroth-order federated learning, simulated on Ray
    actors.
    """
    if version:
        print(f"raydpzv {raydpzv.__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


COMMANDS: dict[str, type[options.Options]] = {
    "run": options.RunCommand,
    "new": options.NewCommand,
    "compare": options.CompareCommand,
    "tune": options.TuneCommand,
    "privacy": options.PrivacyCommand,
    "check": options.CheckCommand,
    "resume": options.ResumeCommand,
    "replay": options.ReplayCommand,
    "step": options.StepCommand,
    "export": options.ExportCommand,
    "audit": options.AuditCommand,
    "report": options.ReportCommand,
    "watch": options.WatchCommand,
    "publish": options.PublishCommand,
    "list": options.ListCommand,
}
"""What each command takes; `scenarios.commands.NAME` has its work."""
for name, taken in COMMANDS.items():
    app.command(name)(as_command(name, taken))


def main() -> None:
    """Run the command line."""
    app()
