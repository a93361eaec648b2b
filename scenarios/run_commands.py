"""`raydpzv run` and `raydpzv resume`: a run with its progress and its result on the screen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

import raydpzv
from raydpzv.compare.folder import PLAN, is_comparison
from raydpzv.compare.plan import read_comparison
from raydpzv.config.paths import locations
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import Diverged, RunError, SpecError
from raydpzv.experiment.diagnostics import DIVERGED
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.reexecute import drop_left_over
from raydpzv.experiment.runner import Continued, continued, continued_at, upload_rest
from raydpzv.files import is_written
from raydpzv.records.callbacks import Callback
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.settings_diff import require_settings
from raydpzv.records.store import Rows
from raydpzv.registry import RUNNERS
from raydpzv.search.search_folder import is_search
from raydpzv.storage.download import stored_kind
from raydpzv.zo.kernels import announce_compiling
from scenarios import compare_command, screen
from scenarios.exit_codes import STOPPED, failures
from scenarios.option_groups import Output, Pool, RunOutputs
from scenarios.options import chosen_logs, chosen_runner, logs_begun, output_folder
from scenarios.progress import COMPILING, LOADING, forecast, live_progress, stop_on_signal
from scenarios.run_output import show_run
from scenarios.storage_options import copy_folder, found_or_fetched, resolved, stored_at, waits


def run(
    scenario: str,
    changes: Sequence[str],
    outputs: RunOutputs,
    runner: str,
    address: str | None,
    output: Output,
) -> None:
    """Run a scenario with changed settings (key=value) and print its summary.

    With `or_resume` it resumes an interrupted run of these settings, or prints a complete one.
    """
    out, or_resume, storage, log = outputs.out, outputs.or_resume, outputs.storage, outputs.log
    logs = chosen_logs(log)
    spec = raydpzv.load(scenario, changes)
    chosen = chosen_runner(runner)
    if address and chosen == "local":
        raise SpecError("--address: goes with --runner ray; without Ray there is nothing to join")
    if or_resume and out is None and storage is None:
        raise SpecError("--or-resume: goes with --out FOLDER, where the run is or is to be; give both")
    if or_resume and storage is not None:
        out = found_or_fetched(storage, out or copy_folder(storage), spec)
    if or_resume and out is not None and RunFolder.begun(out):
        moved = locations(as_tree(spec))
        found = RunFolder.open(out, moved)
        require_settings(found, resolved(spec))
        if found.completed_by() is None:
            resume(str(out), None, moved, chosen, output, log=log, address=address)
        else:
            if is_written(out) is False:
                drop_left_over(found)
            if storage is not None:
                upload_rest(storage, out, waits(quiet=output.quiet))
            _conclude(found.summary(), found.rows(), spec, out, output)
        return
    folder = output_folder(out, f"{Path(scenario).stem}-seed{spec.seed}")
    if not output.quiet and (line := forecast(spec)):
        screen.console(stderr=True).print(line, highlight=False, soft_wrap=True)
    _watch(
        spec,
        folder,
        output,
        logs,
        lambda watch, stop: raydpzv.run(
            spec,
            folder,
            runner=chosen,
            scenario=Path(scenario).stem,
            callbacks=watch,
            stop=stop,
            address=address,
            verbose=output.verbose,
            storage=storage,
        ),
    )


def resume(
    what: str,
    out: Path | None,
    moved: Sequence[str],
    runner: str | None,
    output: Output,
    *,
    log: str | None,
    address: str | None,
) -> None:
    """Resume a run, a comparison or a search, and print its result; moved: where its data are now.

    what: its folder, or the URI of a storage; out: the folder to download that to.
    """
    logs = chosen_logs(log)
    uri, run = stored_at(what, out)
    if logs and (is_search(run) or is_comparison(run)):
        raise SpecError(f"--log: goes with a single run, and {run} holds many; leave it out")
    if stored_kind(uri) == "search" if uri else is_search(run):
        from scenarios.search_command import go_on  # and with it matplotlib, which no run needs

        go_on(run, moved, Pool(None, runner or "auto", address), output, uri)
        return
    if is_comparison(run):
        plan = read_comparison(run / PLAN, moved)
        compare_command.carry_out(plan, run, Pool(None, runner or "auto", address), output)
        return
    asked = chosen_runner(runner) if runner else None
    held = continued_at(uri, run, moved, waits(quiet=output.quiet)) if uri else _continued_here(run, moved)
    with held as (here, mirror):
        experiment, folder, name = here
        chosen = asked or _runner_of(experiment.spec, folder)
        if experiment.spec.clock.kind == "wall" and not output.quiet:
            screen.console(stderr=True).print(_leg(folder), highlight=False, soft_wrap=True)
        _watch(
            experiment.spec,
            folder.path,
            output,
            [*logs, *logs_begun(folder.path, logs)],
            lambda watch, stop: RUNNERS[chosen](
                experiment,
                RunOptions(
                    folder, name, None, stop, address, output.verbose, callbacks=watch, storage=mirror
                ),
            ),
            stage="the run to resume",
        )


def _runner_of(spec: AnyScenario, folder: RunFolder) -> str:
    """Return what a run goes on with where nobody says: under the wall clock, whose times it makes, what it had."""
    began = str(folder.environment().get("runner"))
    return began if spec.clock.kind == "wall" and began in RUNNERS else "local"


def _leg(folder: RunFolder) -> str:
    found = folder.checkpoint()
    place = f"the checkpoint after update {found.round:,}" if found else "its start"
    return f"resumes as a new segment from {place}; updates that only its ledger has are served again first"


@contextmanager
def _continued_here(run: Path, moved: Sequence[str]) -> Iterator[tuple[Continued, None]]:
    yield continued(run, moved), None


def _watch(
    spec: AnyScenario,
    folder: Path,
    output: Output,
    logs: Sequence[Callback],
    start: Callable[[Sequence[Callback], threading.Event], raydpzv.Run],
    stage: str = LOADING,
) -> None:
    """Run with live progress, print the result, and exit with 130 if the user stopped it.

    stage: what the run waits for at first. Raises RunError with the summary printed if the run diverged.
    """
    console = screen.console(stderr=True)
    if spec.note and not output.quiet:  # a result says so again, which may be hours later
        console.print(spec.note, highlight=False, markup=False, soft_wrap=True)
    live = live_progress(spec, console, quiet=output.quiet, stage=stage)

    def compiling() -> None:
        if not output.quiet:
            console.print(COMPILING)

    try:
        stopping = stop_on_signal(console)
        with (
            failures(folder, spec.party_names),
            stopping as stop,
            live as view,
            announce_compiling(compiling),
        ):
            result = start([view, *logs], stop)
    except RunError as error:
        if isinstance(error.__cause__, Diverged) and RunFolder(folder).has_summary():
            broken = RunFolder.open(folder)
            show_run(broken.summary(), broken.rows(), spec, folder, output)
        raise
    _conclude(result.summary, result.tables, spec, folder, output)


def _conclude(
    summary: Mapping[str, Any], tables: Rows, spec: AnyScenario, folder: Path, output: Output
) -> None:
    """Show what came of a run, and leave with 130 if the user stopped it. Raises RunError if it diverged."""
    show_run(summary, tables, spec, folder, output)
    if summary["status"] == "stopped":
        resumable = spec.clock.kind == "virtual" or RunFolder(folder).checkpoint() is not None
        screen.console(stderr=True).print(
            f"stopped; continue with: raydpzv resume {folder}" if resumable else "stopped", soft_wrap=True
        )
        raise typer.Exit(STOPPED)
    if summary["failure"] == DIVERGED:
        raise RunError(f"the run diverged: {summary['failure_reason']} (its record is in {folder})")
