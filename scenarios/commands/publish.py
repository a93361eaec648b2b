"""`raydpzv publish`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from scenarios.options import Quiet


def publish(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write or to replace.")],
    quiet: Quiet = False,
) -> None:
    """Write what may leave of a private run: releases, models, claims and settings, all covered by an ε."""
    with leaving_at_once():
        from scenarios.record_commands import publish as write
    write(run, out, quiet=quiet)
