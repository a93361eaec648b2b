"""`raydpzv report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from scenarios.options import Moved


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the report of several runs.")] = None,
    operator: Annotated[
        bool,
        typer.Option(
            "--operator", help="Include what must not leave a private run: losses, accuracies, rows."
        ),
    ] = False,
) -> None:
    """Write an HTML page and PNG plots of runs, or of a comparison that may still be running."""
    with leaving_at_once():
        from scenarios.record_commands import report as write
    write(runs, moved or (), out, operator=operator)
