"""Runs of prepared scenarios, by any runner, with the options as keywords."""

from pathlib import Path
from typing import Any

from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import Prepared
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import RUNNERS


def run_prepared(
    prepared: Prepared,
    out: Path | RunFolder | None = None,
    *,
    runner: str = "local",
    **options: Any,
) -> Run:
    """Run; options: those of `RunOptions`, which take their defaults where they are None."""
    given = {name: value for name, value in options.items() if value is not None}
    run: Run = RUNNERS[runner](prepared, RunOptions(out, **given))
    return run
