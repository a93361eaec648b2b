"""`raydpzv run`: make a run, or resume it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import raydpzv
from raydpzv.errors import SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import found_run, given_again, is_found, start
from raydpzv.records.callbacks import Callback
from raydpzv.storage.download import copy_folder
from scenarios import screen
from scenarios.command_options import RunCommand
from scenarios.commands.resume import resume_run
from scenarios.options import chosen_logs, chosen_runner, output_folder
from scenarios.progress import forecast
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
            "--or-resume: goes with --out FOLDER, where the run is or is to be, or with --storage "
            "URI; give one of them"
        )
    if storage is not None:
        out = out or copy_folder(storage)
    if options.or_resume and out is not None and is_found(out, storage):
        with given_again(spec) as moved:
            if found := found_run(spec, out, moved):
                conclude(found.summary, found.tables, spec, out, options)
            else:
                resume_run(out, moved, chosen, logs, options)
        return
    name = f"{Path(options.scenario).stem}-seed{spec.seed}"
    folder = out if out and storage else output_folder(out, name)
    if not options.quiet and (line := forecast(spec)):
        screen.console(stderr=True).print(line, highlight=False, soft_wrap=True)

    def started(watch: Sequence[Callback], stop: threading.Event) -> raydpzv.Run:
        return start(
            spec,
            chosen,
            RunOptions(
                folder,
                Path(options.scenario).stem,
                stop=stop,
                address=options.address,
                verbose=options.verbose,
                callbacks=watch,
            ),
            storage,
        )

    watch_run(spec, folder, options, logs, started)
