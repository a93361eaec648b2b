"""`raydpzv resume`: continue a run, a comparison or a search that was stopped or killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydpzv.errors import SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import usual_runner
from raydpzv.files import PLAN, is_comparison, is_search
from raydpzv.records.callbacks import Callback
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import RUNNERS
from raydpzv.storage.download import local_copy
from raydpzv.storage.filesystem import is_uri
from scenarios import screen
from scenarios.command_options import Execution, ResumeCommand, RunCommand
from scenarios.options import chosen_logs, chosen_runner, logs_begun
from scenarios.watched_run import watch_run


def resume_command(options: ResumeCommand) -> None:
    """Resume a run, a comparison or a search, and print its result."""
    logs = chosen_logs(options.log)
    run = _folder(options.run, options.out)
    moved = options.moved or ()
    how = Execution(
        as_json=options.as_json,
        quiet=options.quiet,
        verbose=options.verbose,
        runner=options.runner or "auto",
        address=options.address,
    )
    if logs and (is_search(run) or is_comparison(run)):
        raise SpecError(f"--log: goes with a single run, and {run} holds many; leave it out")
    if is_search(run):
        if options.runner == "local":
            raise SpecError(
                f"--runner local: {run} holds a search, which runs on Ray; leave it out"
            )
        from scenarios.commands.tune import resume_search  # and with it matplotlib

        resume_search(run, moved, how)
        return
    if is_comparison(run):
        _resume_comparison(run, moved, how)
        return
    resume_run(run, moved, chosen_runner(options.runner) if options.runner else None, logs, options)


def _folder(what: str, out: Path | None) -> Path:
    """Return the folder of what is to resume: a copy of a storage, or the folder itself."""
    if is_uri(what):
        return local_copy(what, out)
    if out is not None:
        raise SpecError(
            "--out: is the folder to download a storage to, and goes with its URI; leave it out"
        )
    return Path(what)


def _resume_comparison(run: Path, moved: Sequence[str], how: Execution) -> None:
    from raydpzv.compare.plan import read_comparison
    from scenarios.commands import compare

    compare.carry_out(read_comparison(run / PLAN, moved, code=True), run, how)


def resume_run(
    run: Path,
    moved: Sequence[str],
    runner: str | None,
    logs: Sequence[Callback],
    options: RunCommand | ResumeCommand,
) -> None:
    """Resume a run in its folder, and print its summary.

    moved: where the data are now; runner: None for the one that suits the clock.
    """
    experiment, folder, name = continued(run, moved)
    chosen = runner or usual_runner(experiment.spec, folder)
    if not options.quiet:
        place = _place(folder, wall=experiment.spec.clock.kind == "wall")
        screen.console(stderr=True).print(place, highlight=False, soft_wrap=True)
    watch_run(
        experiment.spec,
        folder.path,
        options,
        [*logs, *logs_begun(folder.path, logs)],
        lambda watch, stop: RUNNERS[chosen](
            experiment,
            RunOptions(folder, name, None, stop, options.address, options.verbose, callbacks=watch),
        ),
        stage="the run to resume",
    )


def _place(folder: RunFolder, *, wall: bool) -> str:
    found = folder.checkpoint()
    place = (
        f"the checkpoint after update {found.round:,}"
        if found
        else "its start, as it has no checkpoint"
    )
    if wall:
        return (
            f"resumes as a new segment from {place}; updates that only its ledger has are served "
            "again first"
        )
    return f"resumes from {place}"
