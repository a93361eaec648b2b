"""Options that several commands share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydpzv.config import catalog
from raydpzv.errors import InputError, SpecError, suggest
from raydpzv.registry import LOGS, RUNNERS
from scenarios import screen

if TYPE_CHECKING:
    from raydpzv.records.callbacks import Callback


def _completed(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what completes a word for the shell; known: returns the names there are."""
    return lambda incomplete: [name for name in known() if name.startswith(incomplete)]


scenario_names = _completed(catalog.names)
comparable_names = _completed(
    lambda: sorted([*catalog.names(catalog.COMPARISONS), *catalog.names()])
)
space_names = _completed(lambda: catalog.names(catalog.SPACES))
runner_names = _completed(lambda: RUNNERS)

ScenarioName = Annotated[
    str,
    typer.Argument(
        help="A scenario, by name (see `raydpzv list`) or as a TOML file.",
        autocompletion=scenario_names,
    ),
]
RunnerName = Annotated[
    str, typer.Option(help="local (this process) or ray (actors).", autocompletion=runner_names)
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Most runs at a time [default: one per core].")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting: dotted.key=value. May be repeated."),
]
Moved = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="New place of data that moved: data.folder=, data.file= or arrivals.file=."
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of all randomness except the noise.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show the output of actors, and tracebacks.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress.")]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Also print the assumptions of each ε, and the rest of the tables."
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        help=(
            "Logs, separated by commas: csv (scalars), tensorboard (event files), json "
            "(structured), or trackers: mlflow, wandb, trackio."
        )
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        help=(
            "URI (s3://, gs://, hdfs://, abfs://, file://) to copy the folder to, so that any "
            "machine can resume it (docs/cluster.md)."
        )
    ),
]
Address = Annotated[str | None, typer.Option(help="Ray cluster to join: host:port or auto.")]


_RAYS_COPY = "_ray_pkg_"
"""Prefix of the folders into which Ray unpacks the working folder of a submitted job."""


def output_folder(out: Path | None, name: str) -> Path:
    """Return the folder to write: `out`, or else one below runs/ that is not there yet, with the
    time in its name.

    Says on stderr where that is in the copy of the project that Ray deletes after a submitted job.
    """
    folder = out or _new_folder(name)
    if any(part.startswith(_RAYS_COPY) for part in folder.absolute().parts):
        screen.complain(
            f"warning: {folder} is in the copy of this project that Ray made for the job and "
            "deletes after it; give --out with the path of a folder that lasts"
        )
    return folder


def _new_folder(name: str) -> Path:
    folder = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    found, count = folder, 1
    while found.exists():
        count += 1
        found = folder.with_name(f"{folder.name}-{count}")
    return found


def chosen_logs(names: str | None) -> list[Callback]:
    """Return what writes the logs of these names, comma between them. Raises InputError."""
    return [_log(LOGS[name.strip()]) for name in names.split(",")] if names is not None else []


def _log(kind: Callable[[], Any]) -> Callback:
    """Return a log, with what draws a run's pictures if it takes them."""
    found: Callback = kind()
    if hasattr(found, "pictures"):
        found.pictures = _pictures
    return found


def _pictures(folder: Path) -> Mapping[str, bytes]:
    from raydpzv.report.page import run_pictures  # and matplotlib with it, at a run's end

    return run_pictures(folder)


def logs_begun(folder: Path, chosen: Sequence[Callback]) -> list[Callback]:
    """Return callbacks that continue the logs of a run's folder, except the chosen ones."""
    found: list[Callback] = []
    for log in (LOGS[name] for name in LOGS):
        if not (folder / log.place).exists() or any(isinstance(one, log) for one in chosen):
            continue
        try:
            found.append(_log(log))
        except InputError as error:  # nobody has asked for it now
            screen.complain(f"warning: {folder / log.place} ends here: {error}")
    return found


def chosen_runner(name: str, *more: str) -> str:
    """Return the runner of that name, or one of `more` names. Raises SpecError."""
    if name in (*more, *RUNNERS):
        return name
    raise SpecError(f'--runner: wanted {", ".join((*more, " or ".join(RUNNERS)))}, got "{name}"')


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Return an option's numbers above 0, which commas separate. Raises SpecError."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (0.0,)
    if any(not 0 < value < float("inf") for value in found):
        near = suggest(text, ["none"]) if option == "--epsilons" else ""
        raise SpecError(
            f'{option}: wanted numbers above 0, comma between them, got "{text}". {near}'.rstrip()
        )
    return found
