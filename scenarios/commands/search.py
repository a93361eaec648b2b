"""`raydpzv search`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from scenarios.option_groups import SearchOptions, ShortOutput, TrialPool
from scenarios.options import ScenarioName, Set, Storage

if TYPE_CHECKING:
    pass


def search(
    scenario: ScenarioName,
    space: Annotated[
        Path, typer.Option(help="TOML file with the settings to vary and their values (docs/tune.md).")
    ],
    options: SearchOptions,
    pool: TrialPool,
    output: ShortOutput,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the trials to write or to resume [default: runs/tune-...]")
    ] = None,
    storage: Storage = None,
) -> None:
    """Search settings of one scenario on Ray Tune; print the trials, the best and the ε of the whole search."""
    with leaving_at_once():
        from scenarios.search_command import search as search_settings
    search_settings(scenario, space, set_ or [], out, options, pool, output.full, storage)
