"""A run with its progress and its result on the screen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

import raydpzv
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import Diverged, RunError, command
from raydpzv.experiment.diagnostics import DIVERGED
from raydpzv.records.callbacks import Callback
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import Rows
from raydpzv.zo.kernels import announce_compiling
from scenarios import screen
from scenarios.command_options import FullOutput
from scenarios.exit_codes import STOPPED, failures
from scenarios.progress import COMPILING, LOADING, foreground, live_progress
from scenarios.run_output import show_run


def watch_run(
    spec: AnyScenario,
    folder: Path,
    output: FullOutput,
    logs: Sequence[Callback],
    start: Callable[[Sequence[Callback], threading.Event], raydpzv.Run],
    stage: str = LOADING,
) -> None:
    """Run with live progress, print the result, and exit with 130 if the user stopped it.

    stage: what the run waits for at first. Raises RunError with the summary printed if the run
    diverged.
    """
    console = screen.console(stderr=True)
    if spec.note and not output.quiet:  # a result says so again, which may be hours later
        console.print(spec.note, highlight=False, markup=False, soft_wrap=True)

    def compiling() -> None:
        if not output.quiet:
            console.print(COMPILING)

    try:
        with (
            failures(folder, spec.party_names),
            foreground(console) as stop,
            live_progress(spec, console, quiet=output.quiet, stage=stage) as view,
            announce_compiling(compiling),
        ):
            result = start([view, *logs], stop)
    except RunError as error:
        if isinstance(error.__cause__, Diverged) and RunFolder(folder).has_summary():
            broken = RunFolder.open(folder)
            show_run(broken.summary(), broken.rows(), spec, folder, output)
        raise
    conclude(result.summary, result.tables, spec, folder, output)


def conclude(
    summary: Mapping[str, Any], tables: Rows, spec: AnyScenario, folder: Path, output: FullOutput
) -> None:
    """Show what came of a run, and leave with 130 if the user stopped it. Raises RunError if it
    diverged.
    """
    show_run(summary, tables, spec, folder, output)
    if summary["status"] == "stopped":
        resumable = spec.clock.kind == "virtual" or RunFolder(folder).checkpoint() is not None
        screen.console(stderr=True).print(
            f"stopped; continue with: {command('resume', folder)}" if resumable else "stopped",
            soft_wrap=True,
        )
        raise typer.Exit(STOPPED)
    if summary["failure"] == DIVERGED:
        raise RunError(f"the run diverged: {summary['failure_reason']} (its record is in {folder})")
