"""The command line. Exit status: 0 done, 1 the run failed, 2 wrong input, 130 stopped by the user."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import raydpzv
from scenarios import command_options as options
from scenarios.command_group import CommandGroup
from scenarios.typer_options import as_command

app = typer.Typer(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Asynchronous, differentially private, zeroth-order federated learning, simulated on Ray actors."""
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
    "search": options.SearchCommand,
    "privacy": options.PrivacyCommand,
    "check": options.CheckCommand,
    "resume": options.ResumeCommand,
    "fetch": options.FetchCommand,
    "submit": options.SubmitCommand,
    "replay": options.ReplayCommand,
    "audit": options.AuditCommand,
    "report": options.ReportCommand,
    "publish": options.PublishCommand,
    "list": options.ListCommand,
}
"""What each command takes; `scenarios.commands.NAME` has its work."""
for name, taken in COMMANDS.items():
    app.command(name)(as_command(name, taken))


def main() -> None:
    """Run the command line."""
    app()
