"""`raydpzv fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once


def fetch(
    uri: Annotated[str, typer.Argument(help="URI of a storage.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write: a new or an empty one.")],
) -> None:
    """Download the folder of a storage, to report, replay or publish it; also during the run."""
    with leaving_at_once():
        from scenarios.storage_options import fetched
    fetched(uri, folder)
    print(folder)
