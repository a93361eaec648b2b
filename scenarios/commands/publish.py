"""`raydpzv publish`: write what may leave of a private run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from raydpzv.errors import InputError, suggest
from raydpzv.experiment.rebuild import check_rebuilt
from raydpzv.files import is_comparison
from raydpzv.records.publish import publish as write_publication
from raydpzv.records.run_folder import RunFolder
from raydpzv.report.privacy import verdict_line
from raydpzv.seed_file.seed_format import FORMS
from raydpzv.seed_file.seed_publication import publish_seed_file
from raydpzv.settings.party_names import client_number, named
from scenarios import screen
from scenarios.command_options import PublishCommand
from scenarios.run_output import tables_console


def publish_command(options: PublishCommand) -> None:
    """Write what may leave of a private run, and print where it is and what it lacks; or a run's
    seed file.
    """
    run, out = options.run, options.out
    if is_comparison(run):
        raise InputError(f"{run}: is a comparison; its runs are published one by one")
    if options.compact:
        _compact(options)
        return
    for name in ("scalars", "client", "weights"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name}: has no meaning without --compact; leave it out")
    if out is None:
        raise InputError("--out: wanted the folder to write; or --compact, to write a seed file")
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
    tables_console().print(verdict_line(summary["privacy_verdict"]))
    checked = (
        "; what follows from its ledger was rebuilt from it, bit for bit"
        if folder.ledger.exists()
        else ""
    )
    print(f"published: {out}{checked}")
    print(f"left out: {summary['published']['withheld']}")


def _compact(options: PublishCommand) -> None:
    """Write a run's seed file, and print what it holds."""
    run, out, form = options.run, options.out or Path("run.seeds"), options.scalars
    if form is not None and form not in FORMS:
        raise InputError(
            f'--scalars: wanted {", ".join(FORMS)}, got "{form}". {suggest(form, FORMS)}'.rstrip()
        )
    names = RunFolder.open(run).spec().party_names
    client = None if options.client is None else client_number(options.client, names)
    made = publish_seed_file(run, out, client=client, form=cast(Any, form), weights=options.weights)
    tables_console().print(verdict_line(made.verdict))
    each = 8 * made.size / made.scalars if made.scalars else 0.0
    unit = f"{each:.2f} bits" if made.forms == ["sign"] else f"{each / 8:.2f} bytes"
    print(
        f"written: {out}: {made.size:,} bytes, {made.scalars:,} scalars ({', '.join(made.forms)}), "
        f"{unit} a scalar"
    )
    if made.size > made.weights:
        print(
            f"larger than the model itself: {made.size:,} bytes for {made.weights:,} bytes of "
            "weights"
        )
    if 4 * made.stored > made.size:
        print(f"{made.stored:,} bytes are first weights; give --weights FILE if readers have them")
    print(
        "rebuilt from the file, bit for bit"
        if made.exact
        else (
            "the scalars are rounded: the rebuilt models are near those of the run, not the same "
            "bits"
        )
    )
    for name, digest in made.models.items():
        print(f"{named(name, names)}: sha256 {digest}")
