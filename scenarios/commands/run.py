"""`raydpzv run`: make a run, or resume it."""

from __future__ import annotations

from pathlib import Path

import raydpzv
from raydpzv.config.paths import locations
from raydpzv.config.toml import as_tree
from raydpzv.errors import SpecError
from raydpzv.experiment.resuming import drop_left_over, upload_rest
from raydpzv.files import is_written
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.settings_diff import require_settings
from scenarios import screen
from scenarios.command_options import RunCommand
from scenarios.commands.resume import resume_run
from scenarios.options import chosen_logs, chosen_runner, output_folder
from scenarios.progress import forecast
from scenarios.storage_options import copy_folder, found_or_fetched, resolved, stored_at, waits
from scenarios.watched_run import conclude, watch_run


def run_command(options: RunCommand) -> None:
    """Run a scenario with changed settings and print its summary.

    With `or_resume` it resumes an interrupted run of these settings, or prints a complete one.
    """
    logs = chosen_logs(options.log)
    spec = raydpzv.load(options.scenario, options.changes)
    chosen = chosen_runner(options.runner)
    out, storage = options.out, options.storage
    if options.address and chosen == "local":
        raise SpecError("--address: goes with --runner ray; without Ray there is nothing to join")
    if options.or_resume and out is None and storage is None:
        raise SpecError(
            "--or-resume: goes with --out FOLDER, where the run is or is to be; give both"
        )
    if options.or_resume and storage is not None:
        out = found_or_fetched(storage, out or copy_folder(storage), spec)
    if options.or_resume and out is not None and RunFolder.begun(out):
        moved = locations(as_tree(spec))
        found = RunFolder.open(out, moved)
        require_settings(found, resolved(spec))
        if found.completed_by() is None:
            resume_run(stored_at(str(out), None)[0], out, moved, chosen, logs, options)
        else:
            if is_written(out) is False:
                drop_left_over(found)
            if storage is not None:
                upload_rest(storage, out, waits(quiet=options.quiet))
            conclude(found.summary(), found.rows(), spec, out, options)
        return
    folder = output_folder(out, f"{Path(options.scenario).stem}-seed{spec.seed}")
    if not options.quiet and (line := forecast(spec)):
        screen.console(stderr=True).print(line, highlight=False, soft_wrap=True)
    watch_run(
        spec,
        folder,
        options,
        logs,
        lambda watch, stop: raydpzv.run(
            spec,
            folder,
            runner=chosen,
            scenario=Path(options.scenario).stem,
            callbacks=watch,
            stop=stop,
            address=options.address,
            verbose=options.verbose,
            storage=storage,
        ),
    )
