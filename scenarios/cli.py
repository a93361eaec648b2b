"""The command line. Exit status: 0 done, 1 the run failed, 2 wrong input, 130 stopped by the user."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import raydpzv
from scenarios.command_group import CommandGroup
from scenarios.commands.audit import audit
from scenarios.commands.compare import compare
from scenarios.commands.fetch import fetch
from scenarios.commands.list import list_
from scenarios.commands.new import new
from scenarios.commands.privacy import privacy
from scenarios.commands.publish import publish
from scenarios.commands.replay import replay
from scenarios.commands.report import report
from scenarios.commands.resume import resume
from scenarios.commands.run import run
from scenarios.commands.search import search
from scenarios.commands.submit import submit
from scenarios.commands.tune import tune
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


COMMANDS = (
    *(run, new, compare, tune, search, privacy, resume, fetch),
    *(submit, replay, audit, report, publish, list_),
)
for command in COMMANDS:
    app.command(command.__name__.rstrip("_"))(as_command(command))


def main() -> None:
    """Run the command line."""
    app()
