"""`raydpzv privacy`."""

from __future__ import annotations

from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from raydpzv.lazy_import import defer
from scenarios.option_groups import SettingChanges
from scenarios.options import Explain, Json, ScenarioName


def privacy(
    scenario: ScenarioName,
    changes: SettingChanges,
    rows: Annotated[
        int | None, typer.Option(min=1, max=10**12, help="Number of training rows, if the data is not here.")
    ] = None,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show every ε with its adversary before training, and why the run is or is not private."""
    with leaving_at_once():
        defer("torch")
        from scenarios.privacy_command import privacy as show
    show(scenario, changes.settings, rows, as_json=as_json, explain=explain)
