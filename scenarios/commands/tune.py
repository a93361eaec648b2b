"""`raydpzv tune`: the settings of a comparison's methods, chosen alike."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich.text import Text

from raydpzv.compare.grid import (
    CHOICES,
    MADE,
    Choice,
    GridFile,
    choose,
    chosen_file,
    grid_comparison,
    read_grid,
)
from raydpzv.config import catalog
from raydpzv.errors import InputError, SpecError, command
from raydpzv.files import as_json, write_atomically
from raydpzv.report.table import grid
from scenarios import screen
from scenarios.command_options import TuneCommand
from scenarios.commands.compare import made
from scenarios.exit_codes import STOPPED
from scenarios.options import output_folder
from scenarios.run_output import tables_console

_WIDTH = 120


def tune_command(options: TuneCommand) -> None:
    """Run a grid, or resume it in `out`, and write the comparison with the chosen settings.

    Changed settings apply to all runs, as the file's `set`; those that the grid varies follow them.
    Exits with 130 if the user stopped it. Raises RunError if nothing can be chosen yet.
    """
    grid, changes = options.grid, options.set_ or []
    if grid in catalog.names():
        raise SpecError(
            f"{grid}: is a scenario; search its settings with: "
            f"{command('search', grid, '--space', 'FILE')}"
        )
    place = catalog.grid(grid)
    file = read_grid(place)
    file = file.model_copy(update={"set": (*file.set, *changes)})
    more = [part for change in changes for part in ("--set", change)]
    asked = shlex.join([grid, *more])
    here = (
        str(place.absolute()) if place == Path(grid) else grid
    )  # it may be resumed from another folder
    comparison = replace(grid_comparison(file), tune=shlex.join([here, *more]))
    folder = output_folder(options.out, f"tune-{comparison.name}")
    path = options.to or folder / "tuned.toml"
    _check_writable(path, folder)
    console = screen.console(stderr=True)
    compared, stopped = made(comparison, folder, options, console)
    if stopped:
        console.print(
            f"stopped; continue with: {command('tune', grid, *more, '--out', folder)}",
            soft_wrap=True,
        )
        raise typer.Exit(STOPPED)
    choices = choose(file, compared.runs.to_pylist(), compared.curves.to_pylist())
    write_atomically(path, chosen_file(file, choices, asked).encode())
    show_choices(file, choices, folder, path, json=options.as_json)


def _check_writable(path: Path, folder: Path) -> None:
    """Refuse a place that cannot be written, or a file that no tuning made, before the first
    run.
    """
    if not path.parent.is_dir() and path.parent != folder:
        raise InputError(
            f"{path}: there is no such folder to write to; make it, or choose another --to"
        )
    if path.exists() and not (path.is_file() and path.read_bytes().startswith(MADE.encode())):
        raise InputError(f"{path}: is there and was not made by raydpzv tune; choose another --to")


def show_choices(
    file: GridFile, choices: Sequence[Choice], folder: Path, path: Path, *, json: bool
) -> None:
    """Print what was chosen."""
    if json:
        rows = [
            {
                "label": c.point.method,
                "epsilon": c.point.epsilon,
                "chosen": list(c.point.values),
                "validation_accuracy": c.accuracy,
                "seconds": c.seconds,
                "combinations": c.points,
                "edges": list(c.edges),
            }
            for c in choices
        ]
        print(as_json({"folder": str(folder), "comparison": str(path), "choices": rows}), end="")
        return
    console = tables_console(_WIDTH)
    console.print(Text(f"Chosen by {file.criterion()}", "bold"))
    console.print(grid(CHOICES, choices).console())
    console.print(
        f"runs: {folder}\ncomparison: {path}\ncompare on other seeds with: {command('compare', path)}",
        soft_wrap=True,
    )
