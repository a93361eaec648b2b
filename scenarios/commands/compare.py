"""`raydpzv compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from scenarios.option_groups import ComparisonOptions, Output, Pool
from scenarios.options import Set, comparable_names


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            help="A comparison (see `raydpzv list`, or a TOML file), or scenarios: the first gives data, split, model "
            "and budget, all give their methods.",
            autocompletion=comparable_names,
        ),
    ],
    asked: ComparisonOptions,
    pool: Pool,
    output: Output,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write or to resume [default: runs/compare-...]"),
    ] = None,
) -> None:
    """Compare methods, values of ε and seeds on one split and budget, with controls beside them."""
    with leaving_at_once():
        from scenarios.compare_command import compare as compare_runs
    compare_runs(what, set_ or [], out, asked, pool, output)
