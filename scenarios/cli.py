"""The command line. Exit status: 0 done, 1 the run failed, 2 wrong input, 130 stopped by the user."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import raydpzv
from raydpzv.compare.folder import PLAN, is_comparison
from raydpzv.compare.plan import read_comparison
from raydpzv.compare.results import collect
from raydpzv.config.scenario import AnyScenario, HorizontalScenario, VerticalScenario
from raydpzv.errors import Diverged, InputError, RunError, SpecError
from raydpzv.experiment.diagnostics import DIVERGED
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.runner import continued
from raydpzv.privacy.statements import AnySetting
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import RUNNERS
from raydpzv.sim.interfaces import Status
from scenarios import compare, screen
from scenarios.command_group import CommandGroup
from scenarios.exit_codes import STOPPED, errors, failures
from scenarios.model_output import one_model, print_models, whose
from scenarios.options import (
    Address,
    Explain,
    Json,
    Moved,
    Quiet,
    RunnerName,
    ScenarioName,
    Seed,
    Set,
    Verbose,
    chosen_runner,
    new_folder,
)
from scenarios.progress import LOADING, live_progress, stop_on_signal
from scenarios.run_output import Output, show_privacy, show_run

app = typer.Typer(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Asynchronous, differentially private, zeroth-order federated learning, simulated on Ray actors."""
    if version:
        print(f"raydpzv {raydpzv.__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


@app.command()
def run(
    scenario: ScenarioName,
    set_: Set = None,
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write [default: runs/SCENARIO-...]")] = None,
    runner: RunnerName = "local",
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
    explain: Explain = False,
    verbose: Verbose = False,
) -> None:
    """Run a scenario; write its run folder; print a summary."""
    with errors(verbose):
        spec = _load(scenario, set_, seed)
        chosen = chosen_runner(runner)
        if address and chosen == "local":
            raise SpecError("--address: goes with --runner ray; without Ray there is nothing to join")
        folder = out or new_folder(f"{Path(scenario).stem}-seed{spec.seed}")
        _watch(
            spec,
            folder,
            Output(as_json, quiet, explain, LOADING),
            lambda progress, stop: raydpzv.run(
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


app.command()(compare.compare)


@app.command()
def privacy(
    scenario: ScenarioName,
    set_: Set = None,
    seed: Seed = None,
    rows: Annotated[
        int | None, typer.Option(min=1, max=10**12, help="Training rows D, where the data is not at hand.")
    ] = None,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show, before training, every ε with its adversary, and why the run is or is not private."""
    from raydpzv.experiment.summary import NO_NOISE
    from raydpzv.privacy.statements import claims, verdict

    with errors():
        spec = _load(scenario, set_, seed)
        found = None if isinstance(spec, HorizontalScenario) else _setting(spec, rows)
        table = [dataclasses.asdict(c) for c in claims(found)] if found else []
        private, why = verdict(found) if found else (False, NO_NOISE)
        facts = dataclasses.asdict(found) if found else {}
        planned = spec.budget.updates is not None
        if as_json:
            reason = None if private and planned else why if planned else UNPLANNED
            answer = {"private": reason is None, "private_reason": reason, "verdict": why, "planned": planned}
            _print_json(answer | {"epsilon": table, "setting": facts})
            return
        show_privacy(table, why, facts, planned=planned, explain=explain)


@app.command()
def resume(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run, or a comparison, that was stopped or killed.")
    ],
    runner: Annotated[
        str | None,
        typer.Option(help="local (this process) or ray (actors) [default: local; comparisons: auto]."),
    ] = None,
    moved: Moved = None,
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
    explain: Explain = False,
    verbose: Verbose = False,
) -> None:
    """Continue a virtual-clock run that was stopped or killed, to the bits of one that was not; or a comparison."""
    with errors(verbose):
        if is_comparison(run):
            plan = read_comparison(run / PLAN, moved or ())
            compare.carry_out(
                plan,
                run,
                runner=runner or "auto",
                address=address,
                as_json=as_json,
                quiet=quiet,
                explain=explain,
                verbose=verbose,
            )
            return
        chosen = chosen_runner(runner or "local")
        experiment, folder, name = continued(run, moved or ())
        _watch(
            experiment.spec,
            folder.path,
            Output(as_json, quiet, explain, "the run to go on"),
            lambda progress, stop: RUNNERS[chosen](
                experiment, RunOptions(folder, name, progress, stop, address, verbose)
            ),
        )


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    at: Annotated[int | None, typer.Option(help="Stop after so many updates.")] = None,
    client: Annotated[int | None, typer.Option(help="Only this client's model.")] = None,
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="File (.npz) for the parameters.")] = None,
) -> None:
    """Rebuild models of a run, of now or back in time, from its ledger or its recorded order; check every bit."""
    from raydpzv.experiment.rebuild import from_ledger
    from raydpzv.experiment.reexecute import replay as replay_run

    with errors():
        if rebuilt := from_ledger(run, at, client, moved or ()):
            print(f"ledger intact, digest {rebuilt.digest}")
            checked = "; the final model has the recorded bits" if rebuilt.verified else ""
            print(f"{whose(client, at)} after {rebuilt.updates} updates{checked}")
            print_models(rebuilt.models, out)
            return
        result = replay_run(run, at, moved or ())
        models = result.models if client is None else one_model(result.models, client)
        checked = "every loss and all final parameters have" if result.verified else "every loss has"
        if result.ledger:
            print(f"ledger intact, digest {result.ledger}; it holds what the rows say was released")
        print(f"replayed {result.updates} updates; {checked} the recorded bits")
        print_models(models, out)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the report of several runs.")] = None,
) -> None:
    """Write a self-contained HTML page and PNG plots, of runs or of a comparison as far as it has come."""
    from raydpzv.report.page import write_report

    with errors():
        if compared := [run for run in runs if is_comparison(run)]:
            if len(runs) > 1:
                raise InputError(f"{compared[0]}: is a comparison; it is reported alone")
            plan = read_comparison(runs[0] / PLAN, moved or ())
            print(compare.write(plan, runs[0], collect(plan, runs[0]), out))
            return
        print(write_report(runs, out, moved=moved or ()))


@app.command("list")
def list_(
    settings: Annotated[bool, typer.Option("--settings", help="Print every setting as Markdown.")] = False,
) -> None:
    """List scenarios, methods and data sets."""
    if settings:
        from raydpzv.config.settings_reference import settings_page

        print(settings_page())
        return
    from scenarios.list_output import show_list

    show_list()


def _setting(spec: VerticalScenario, rows: int | None) -> AnySetting | None:
    from raydpzv.experiment.prepare import load_data
    from raydpzv.experiment.privacy_setting import privacy_setting
    from raydpzv.keys import Key

    count = rows or load_data(spec.data, Key(spec.seed) / "data").train.rows
    return privacy_setting(spec, count).claims


UNPLANNED = "The scenario plans no number of updates: every ε here is for ONE update."


def main() -> None:
    """Run the command line."""
    app()


def _load(scenario: str, overrides: list[str] | None, seed: int | None) -> AnyScenario:
    items = list(overrides or []) + ([f"seed={seed}"] if seed is not None else [])
    return raydpzv.load(scenario, items)


def _watch(
    spec: AnyScenario,
    folder: Path,
    output: Output,
    start: Callable[[Callable[[Status], None], threading.Event], raydpzv.Run],
) -> None:
    """Run with live progress, show what came of it, and leave with 130 if the user stopped it.

    Raises RunError if it diverged, with its summary shown, whether an error ended it or its budget.
    """
    console = screen.console(stderr=True)
    live = live_progress(spec, console, quiet=output.quiet, stage=output.stage)
    try:
        with failures(folder), stop_on_signal(console) as stop, live as progress:
            result = start(progress, stop)
    except RunError as error:
        if isinstance(error.__cause__, Diverged) and RunFolder(folder).has_summary():
            broken = RunFolder.open(folder)
            show_run(broken.summary(), broken.rows(), spec, folder, output)
        raise
    show_run(result.summary, result.tables, spec, folder, output)
    if result.summary["status"] == "stopped":
        resumable = spec.clock.kind == "virtual"
        console.print(
            f"stopped; continue with: raydpzv resume {folder}" if resumable else "stopped", soft_wrap=True
        )
        raise typer.Exit(STOPPED)
    if result.summary["failure"] == DIVERGED:
        raise RunError(f"the run diverged: {result.summary['failure_reason']} (its record is in {folder})")


def _print_json(value: Any) -> None:
    from raydpzv.files import as_json

    sys.stdout.write(as_json(value))
