"""`raydpzv tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from scenarios.option_groups import Pool, ShortOutput
from scenarios.options import Set, grid_names


def tune(
    grid: Annotated[
        str,
        typer.Argument(
            help="A grid, by name (see `raydpzv list`) or as a TOML file.", autocompletion=grid_names
        ),
    ],
    pool: Pool,
    output: ShortOutput,
    to: Annotated[
        Path | None, typer.Option(help="Comparison file to write [default: tuned.toml in the folder].")
    ] = None,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs to write or to resume [default: runs/tune-...]")
    ] = None,
) -> None:
    """Tune the methods of a comparison by one grid, on validation rows and seeds of their own."""
    with leaving_at_once():
        from scenarios.tune_command import tune as tune_methods
    tune_methods(grid, set_ or [], out, to, pool, output.full)
