"""By which runner a run goes on where nobody says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import scenarios
from scenarios.run_commands import _runner_of


@pytest.mark.parametrize(
    ("clock", "began", "goes_on"),
    [
        ("wall", "ray", "ray"),
        ("wall", "local", "local"),
        ("wall", None, "local"),
        ("wall", "another program's", "local"),
        ("virtual", "ray", "local"),
    ],
)
def test_real_times_come_of_the_runner_that_made_them_and_virtual_ones_of_any(clock, began, goes_on):
    spec = scenarios.load("vafl", [f"clock.kind={clock}"])
    folder = SimpleNamespace(environment=lambda: {"runner": began} if began else {})
    assert _runner_of(spec, folder) == goes_on
