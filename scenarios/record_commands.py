"""`raydpzv replay`, `raydpzv report` and `raydpzv publish`: what is made of runs that are on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from raydpzv.compare.compare_methods import write
from raydpzv.compare.folder import PLAN, is_comparison
from raydpzv.compare.plan import read_comparison
from raydpzv.compare.results import collect
from raydpzv.errors import InputError
from raydpzv.experiment.rebuild import check_rebuilt, from_ledger
from raydpzv.experiment.reexecute import replay as replay_run
from raydpzv.files import sha256, write_npz
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.publish import publish as write_publication
from raydpzv.records.run_folder import RunFolder, unended
from raydpzv.settings.party_names import client_number, named
from raydpzv.storage.download import check_not_midway, midway
from scenarios import screen


def replay(run: Path, at: int | None, who: str | None, moved: Sequence[str], out: Path | None) -> None:
    """Rebuild models of a run, all or one client's, as they are now or after `at` updates, and print what they are.

    who: a client's number, or its party's name.
    """
    names = RunFolder.open(run, moved).spec().party_names
    client = None if who is None else client_number(who, names)
    if rebuilt := from_ledger(run, at, client, moved):
        print(f"ledger intact, digest {rebuilt.digest}")
        checked = "; the final model has the recorded bits" if rebuilt.verified else ""
        print(f"{named(whose(client, at), names)} after {rebuilt.updates} updates{checked}")
        _print_unended(run, None)
        print_models(rebuilt.models, out, names)
        folder = RunFolder.open(run)
        if client is None and folder.published and set(folder.models()) - set(rebuilt.models):
            print(
                "not rebuilt: the server's head, which is in models.npz; what is checked is every bit of the clients'"
            )
        return
    result = replay_run(run, at, moved)
    models = result.models if client is None else one_model(result.models, client)
    checked = "every loss and all final parameters have" if result.verified else "every loss has"
    if result.ledger:
        print(f"ledger intact, digest {result.ledger}; it holds what the rows say was released")
    print(f"replayed {result.updates} updates; {checked} the recorded bits")
    if result.unchecked:
        print(f"not checked: {result.unchecked}")
    _print_unended(run, result.updates if at is None else None)
    print_models(models, out, names)


def _print_unended(run: Path, updates: int | None) -> None:
    """Print of a run that has not come to its end that it has not, and what its ledger has beyond these updates.

    updates: all of its rows; None: they were not asked for.
    """
    folder = RunFolder.open(run)
    if folder.has_summary():
        if (status := folder.summary().get("status")) != "done":
            print(f"the run has not come to its end: it {'failed' if status == 'failed' else 'was stopped'}")
        return
    print(f"the run has not come to its end: {midway(run) or unended(run)}")
    if updates is None or not folder.ledger.exists():
        return
    with Ledger.open(folder.ledger) as ledger:
        if ledger.version > updates:
            print(f"its ledger goes on to update {ledger.version}; the rows to replay it by end at {updates}")


def publish(run: Path, out: Path, *, quiet: bool) -> None:
    """Write what may leave of a private run, and print where it is and what it lacks."""
    if is_comparison(run):
        raise InputError(f"{run}: is a comparison; its runs are published one by one")
    check_not_midway(run)
    console = screen.console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, disable=quiet
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


def report(runs: Sequence[Path], moved: Sequence[str], out: Path | None, *, operator: bool) -> None:
    """Write the report of runs, or of one comparison as far as it has come, and print where it is."""
    from raydpzv.report.page import write_report

    if compared := [run for run in runs if is_comparison(run)]:
        if len(runs) > 1:
            raise InputError(f"{compared[0]}: is a comparison; it is reported alone")
        plan = read_comparison(runs[0] / PLAN, moved)
        print(write(plan, runs[0], collect(plan, runs[0]), out))
        return
    print(write_report(runs, out, moved=moved, operator=operator))


def whose(client: int | None, at: int | None) -> str:
    """Say whose model was rebuilt: a client holds the one that its last update, or catching up, made."""
    if client is None:
        return "rebuilt: the model"
    return f"rebuilt: what client {client} last had{'' if at is None else f' by update {at}'}, the model"


def print_models(models: Mapping[str, np.ndarray], out: Path | None, names: Sequence[str] = ()) -> None:
    """Write models to a file, if one is given, and print what they are. names: those of the clients' parties."""
    if out:
        write_npz(out, models)
        print(f"written: {out} ({', '.join(name.replace(' ', '_') for name in models)})")
    for name, values in models.items():
        print(f"{named(name, names)}: {values.size} parameters, sha256 {sha256(values)}")


def one_model(models: Mapping[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """Return one client's model; InputError if there is no such client."""
    name = f"client {client}"
    if name not in models:
        raise InputError(f"--client: wanted 0..{len(models) - 2}, got {client}")
    return {name: models[name]}
