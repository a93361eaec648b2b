"""The command line. Exit status: 0 done, 1 the run failed, 2 wrong input, 130 stopped by the user."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import scenarios
from raydpzv.errors import InputError, RaydpzvError, RunError, SpecError
from raydpzv.experiment.closing import sha256
from raydpzv.experiment.spec import Spec
from raydpzv.sim.desk import Status
from scenarios.screen import live_progress, stop_on_signal

app = typer.Typer(
    help="Asynchronous, differentially private, zeroth-order federated learning, simulated on Ray actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
STOPPED = 130

Scenario = Annotated[
    str, typer.Argument(help="Name of a scenario (see `raydpzv list`) or path to a TOML file.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: dotted.key=value. May be repeated.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything but the noise.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what actors print, and tracebacks.")]


@app.command()
def run(
    scenario: Scenario,
    set_: Set = None,
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write [default: runs/SCENARIO-...]")] = None,
    runner: Annotated[str, typer.Option(help="local (this process) or ray (actors).")] = "local",
    address: Annotated[str | None, typer.Option(help="Ray cluster to join: host:port or auto.")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a scenario; write its run folder; print a summary."""
    with _errors(verbose):
        spec = _load(scenario, set_, seed)
        chosen = _runner(runner)
        folder = out or _default_folder(Path(scenario).stem, spec)
        _watch(
            spec,
            folder,
            as_json,
            lambda progress, stop: scenarios.run(
                spec,
                folder,
                runner=chosen,
                scenario=Path(scenario).stem,
                progress=progress,
                stop=stop,
                address=address,
                verbose=verbose,
            ),
        )


@app.command()
def privacy(
    scenario: Scenario,
    set_: Set = None,
    seed: Seed = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Training rows D, where the data is not at hand.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show, before training, every ε with its adversary, and why the run is or is not private."""
    from raydpzv.experiment.build import prepare, setting
    from raydpzv.experiment.summary import NO_NOISE
    from raydpzv.privacy.adversaries import claims, verdict

    with _errors():
        spec = _load(scenario, set_, seed)
        found = setting(spec, rows) if rows else prepare(spec).setting
        table = [dataclasses.asdict(c) for c in claims(found)] if found else []
        private, why = verdict(found) if found else (False, NO_NOISE)
        facts = dataclasses.asdict(found) if found else {}
        if as_json:
            _print_json(
                {"private": True if private else why, "verdict": why, "epsilon": table, "setting": facts}
            )
            return
        _show_privacy(table, why, facts, planned=spec.budget.updates is not None)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped or killed.")],
    runner: Annotated[str, typer.Option(help="local (this process) or ray (actors).")] = "local",
    address: Annotated[str | None, typer.Option(help="Ray cluster to join: host:port or auto.")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Continue a virtual-clock run: what is on record is computed again, then it goes on."""
    from raydpzv.experiment.replay import resuming

    with _errors(verbose):
        experiment, folder = resuming(run)
        _watch(
            experiment.spec,
            folder.path,
            as_json,
            lambda progress, stop: scenarios.run_prepared(
                experiment,
                folder,
                runner=_runner(runner),
                progress=progress,
                stop=stop,
                address=address,
                verbose=verbose,
            ),
        )


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    at: Annotated[int | None, typer.Option(help="Stop after so many updates.")] = None,
    client: Annotated[int | None, typer.Option(help="Only this client's model.")] = None,
    out: Annotated[Path | None, typer.Option(help="File (.npz) for the parameters.")] = None,
) -> None:
    """Run the recorded order again, check every bit, and write the models it leads to."""
    from raydpzv.experiment.replay import replay as replay_run

    with _errors():
        result = replay_run(run, at)
        models = result.models if client is None else _one_model(result.models, client)
        if out:
            _write_models(out, models)
        checked = "every loss and all final parameters have" if result.verified else "every loss has"
        print(f"replayed {result.updates} updates; {checked} the recorded bits")
        for name, values in models.items():
            print(f"{name}: {values.size} parameters, sha256 {sha256(values)}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the report of several runs.")] = None,
) -> None:
    """Write a self-contained HTML page and PNG plots."""
    from raydpzv.report.page import write_report

    with _errors():
        print(write_report(runs, out))


@app.command("list")
def list_(
    settings: Annotated[bool, typer.Option("--settings", help="Print every setting as Markdown.")] = False,
) -> None:
    """List scenarios, methods and data sets."""
    from raydpzv.data.sources import SOURCES
    from raydpzv.experiment.page import settings_page
    from raydpzv.experiment.spec import METHODS
    from scenarios.find import titles

    if settings:
        print(settings_page())
        return
    methods = {name: _first_line(section) for name, section in METHODS.items()}
    sources = {
        name: f"{source.about} (needs {', '.join(source.needs) if source.needs else 'nothing'}; from {source.home})"
        for name, source in SOURCES.items()
    }
    for title, entries in (("Scenarios", titles()), ("Methods", methods), ("Data sets", sources)):
        table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
        for name, line in entries.items():
            table.add_row(name, line)
        Console().print(table)


def main() -> None:
    """Run the command line."""
    app(prog_name="raydpzv")


def _load(scenario: str, overrides: list[str] | None, seed: int | None) -> Spec:
    items = list(overrides or []) + ([f"seed={seed}"] if seed is not None else [])
    return scenarios.load(scenario, items)


def _runner(name: str) -> scenarios.Runner:
    for known in scenarios.RUNNERS:
        if name == known:
            return known
    raise SpecError(f'--runner: wanted {" or ".join(scenarios.RUNNERS)}, got "{name}"')


def _watch(
    spec: Spec,
    folder: Path,
    as_json: bool,
    start: Callable[[Callable[[Status], None], threading.Event], scenarios.Run],
) -> None:
    """Run with live progress, show what came of it, and leave with 130 if the user stopped it."""
    console = Console(stderr=True)
    with _failures(folder), stop_on_signal(console) as stop, live_progress(spec, console) as progress:
        result = start(progress, stop)
    _show_run(result.summary, folder, as_json)
    if result.summary["status"] == "stopped":
        resumable = spec.clock.kind == "virtual"
        console.print(
            f"stopped; continue with: raydpzv resume {folder}" if resumable else "stopped", soft_wrap=True
        )
        raise typer.Exit(STOPPED)


def _one_model(models: Mapping[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    name = f"client {client}"
    if name not in models:
        raise InputError(f"--client: wanted 0..{len(models) - 2}, got {client}")
    return {name: models[name]}


def _write_models(path: Path, models: Mapping[str, np.ndarray]) -> None:
    arrays: dict[str, Any] = {name.replace(" ", "_"): values for name, values in models.items()}
    try:
        with path.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise InputError(f"--out {path}: cannot write ({error.strerror or error})") from None


def _default_folder(name: str, spec: Spec) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / f"{name}-seed{spec.seed}-{stamp}"
    count = 1
    while folder.exists():
        count += 1
        folder = folder.with_name(f"{name}-seed{spec.seed}-{stamp}-{count}")
    return folder


def _show_run(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    if as_json:
        print((folder / "summary.json").read_text(), end="")
        return
    from raydpzv.report.privacy import PrivacyBlock
    from raydpzv.report.tables import summary_table, verdict_line

    console = Console()
    console.print(summary_table(summary))
    console.print()
    if summary["epsilon"]:
        console.print(PrivacyBlock(summary["epsilon"]))
        console.print()
    console.print(verdict_line(summary["privacy_verdict"]))
    console.print(f"\nrun folder: {folder}\nreport: raydpzv report {folder}", soft_wrap=True)


def _show_privacy(table: list[dict[str, Any]], why: str, facts: dict[str, Any], *, planned: bool) -> None:
    from raydpzv.report.privacy import PrivacyBlock, calibration
    from raydpzv.report.tables import verdict_line

    console = Console()
    if table:
        console.print(Text(calibration(facts)))
        if not planned:
            console.print("The scenario plans no number of updates: this is the table for ONE update.")
        console.print()
        console.print(PrivacyBlock(table))
        console.print()
    console.print(verdict_line(why))


def _print_json(value: Any) -> None:
    from raydpzv.experiment.folder import as_json

    sys.stdout.write(as_json(value))


def _first_line(section: type) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


@contextmanager
def _failures(folder: Path) -> Iterator[None]:
    """Keep the traceback of a run that failed in its folder; what nobody foresaw becomes a RunError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        line, log = f"{type(error).__name__}: {error}", folder / "error.log"
        if folder.is_dir():
            log.write_text(traceback.format_exc())
            line += f" (details in {log})"
        raise RunError(str(error) if isinstance(error, RaydpzvError) else line) from error


@contextmanager
def _errors(verbose: bool = False) -> Iterator[None]:
    """Turn errors into one line and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        _complain("interrupted")
        raise typer.Exit(STOPPED) from None
    except RaydpzvError as error:
        if verbose:
            traceback.print_exc()
        _complain(str(error))
        raise typer.Exit(2 if isinstance(error, InputError) else 1) from None


def _complain(line: str) -> None:
    print(f"raydpzv: {' '.join(line.split())}", file=sys.stderr)
