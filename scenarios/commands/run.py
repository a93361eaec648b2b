"""`raydpzv run`."""

from __future__ import annotations

from raydpzv.interrupts import leaving_at_once
from raydpzv.limits import require_room
from scenarios.option_groups import Output, RunOutputs, SettingChanges
from scenarios.options import Address, RunnerName, ScenarioName


def run(
    scenario: ScenarioName,
    changes: SettingChanges,
    outputs: RunOutputs,
    output: Output,
    runner: RunnerName = "local",
    address: Address = None,
) -> None:
    """Run a scenario; write its run folder; print a summary."""
    require_room()
    with leaving_at_once():
        from scenarios.run_commands import run as start
    start(scenario, changes.settings, outputs, runner, address, output)
