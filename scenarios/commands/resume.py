"""`raydpzv resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from raydpzv.limits import require_room
from scenarios.option_groups import Output
from scenarios.options import Address, Log, Moved


def resume(
    run: Annotated[
        str,
        typer.Argument(help="Folder or storage URI of an interrupted run, comparison or search."),
    ],
    output: Output,
    out: Annotated[
        Path | None,
        typer.Option(help="With a URI: folder on this machine to download to [default: runs/NAME]."),
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(
            help="local (this process) or ray (actors) [default: local, under the wall clock the run's first runner; "
            "comparisons and searches: auto]."
        ),
    ] = None,
    moved: Moved = None,
    log: Log = None,
    address: Address = None,
) -> None:
    """Resume an interrupted run, comparison or search; under the virtual clock, to the same bits."""
    require_room()
    with leaving_at_once():
        from scenarios.run_commands import resume as resume_any
    resume_any(run, out, moved or (), runner, output, log=log, address=address)
