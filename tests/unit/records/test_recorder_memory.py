"""Rows take the system's memory, unless somebody has chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

POOL = "import {first}; import pyarrow; print(pyarrow.default_memory_pool().backend_name)"


@pytest.mark.parametrize(
    ("first", "chosen"),
    [
        ("raydpzv", None),
        ("raydpzv", "mimalloc"),
        ("scenarios.cli", None),
        ("actors.vertical.server_actor", None),
    ],
)
def test_rows_take_the_systems_memory_unless_somebody_has_chosen(first: str, chosen: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    if chosen:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = chosen
    command = [sys.executable, "-c", POOL.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == [chosen or "system"]
