"""`raydpzv replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from scenarios.options import Moved


def replay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    at: Annotated[int | None, typer.Option(help="Stop after this many updates.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Only this client's model: its number, or its party's name.")
    ] = None,
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="File (.npz) for the parameters.")] = None,
) -> None:
    """Rebuild a run's models, at its end or at any update, from its ledger or its rows; check every bit."""
    with leaving_at_once():
        from scenarios.record_commands import replay as rebuild
    rebuild(run, at, client, moved or (), out)
