"""`raydpzv new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once


def new(
    name: Annotated[str, typer.Argument(help="Name of the scenario: NAME.toml is written.")],
    data: Annotated[Path, typer.Option(help="Your table: a CSV file with a heading, or a Parquet file.")],
    target: Annotated[
        str | None, typer.Option(help='Column to predict [default: "label" or "target", if there is one].')
    ] = None,
    parties: Annotated[
        str | None,
        typer.Option(
            help='The columns of each party: "bank=income,age shop=visits"; put ; between parties if names have blanks '
            "[default: two parties with half of the columns each]."
        ),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Add noise for a proved ε of 1.")] = False,
    public_from_data: Annotated[
        bool,
        typer.Option(
            "--public-from-data",
            help="With --private: confirm that the file's classes, categories and rough ranges are public knowledge.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing NAME.toml.")] = False,
) -> None:
    """Write a scenario for your own table, whose columns belong to several parties (vertical learning)."""
    with leaving_at_once():
        from scenarios.new_command import new as write
    write(
        *(name, data, target, parties),
        private=private,
        public_from_data=public_from_data,
        force=force,
    )
