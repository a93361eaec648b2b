"""`raydpzv publish`: write what may leave of a private run."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from raydpzv.compare.folder import is_comparison
from raydpzv.errors import InputError
from raydpzv.experiment.rebuild import check_rebuilt
from raydpzv.records.publish import publish as write_publication
from raydpzv.storage.download import check_not_midway
from scenarios import screen
from scenarios.command_options import PublishCommand


def publish_command(options: PublishCommand) -> None:
    """Write what may leave of a private run, and print where it is and what it lacks."""
    run, out = options.run, options.out
    if is_comparison(run):
        raise InputError(f"{run}: is a comparison; its runs are published one by one")
    check_not_midway(run)
    console = screen.console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        disable=options.quiet,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        folder = write_publication(run, out, lambda made: check_rebuilt(made, progress), progress)
    summary = folder.summary()
    print(summary["privacy_verdict"])
    checked = (
        "; what follows from its ledger was rebuilt from it, bit for bit" if folder.ledger.exists() else ""
    )
    print(f"published: {out}{checked}")
    print(f"left out: {summary['published']['withheld']}")
