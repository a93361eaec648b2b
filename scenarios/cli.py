"""The command line: what can be typed. Exit status: 0 done, 1 the run failed, 2 wrong input, 130 stopped by the user.

What a command does is imported when it runs, so that help, completion and `list` start without the libraries of a run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import raydpzv
from raydpzv.errors import SpecError
from raydpzv.interrupts import leaving_at_once
from raydpzv.lazy_import import defer
from raydpzv.limits import require_room
from scenarios.command_group import CommandGroup
from scenarios.exit_codes import errors
from scenarios.options import (
    Address,
    ComparisonRunner,
    Explain,
    Jobs,
    Json,
    Log,
    Moved,
    Quiet,
    RunnerName,
    ScenarioName,
    Seed,
    Set,
    Storage,
    Verbose,
    comparable_names,
    scenario_names,
    tunable_names,
)

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
    or_resume: Annotated[
        bool,
        typer.Option(
            "--or-resume",
            help="Go on with the run in --out or --storage if one with these settings was stopped or killed there; "
            "show it if it is complete. For jobs that may be started again at any time.",
        ),
    ] = False,
    storage: Storage = None,
    runner: RunnerName = "local",
    log: Log = None,
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
    explain: Explain = False,
    verbose: Verbose = False,
) -> None:
    """Run a scenario; write its run folder; print a summary."""
    with errors(verbose):
        require_room()
        with leaving_at_once():
            from scenarios.run_commands import run as start
            from scenarios.run_output import Output
        output = Output(as_json, quiet, explain)
        start(
            *(scenario, _changes(set_, seed), out, runner, output),
            or_resume=or_resume,
            storage=storage,
            log=log,
            address=address,
            verbose=verbose,
        )


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the scenario: NAME.toml is written.")],
    data: Annotated[Path, typer.Option(help="Your table: a CSV file with a heading, or a Parquet file.")],
    target: Annotated[
        str | None, typer.Option(help='Column to predict [default: "label" or "target", if there is one].')
    ] = None,
    parties: Annotated[
        str | None,
        typer.Option(
            help='Who holds which columns: "bank=income,age shop=visits"; with ; between parties where names have '
            "blanks [default: two parties with half of the columns each]."
        ),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With noise and a proved ε of 1.")] = False,
    public_from_data: Annotated[
        bool,
        typer.Option(
            "--public-from-data",
            help="With --private: I confirm that the classes, categories and rough ranges in the file are public "
            "knowledge. Without this they are written as comments, for you to replace.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a NAME.toml that is there.")] = False,
) -> None:
    """Write a scenario for your own table, whose columns lie with several parties (vertical learning)."""
    with errors():
        with leaving_at_once():
            from scenarios.new_command import new as write
        write(
            *(name, data, target, parties),
            private=private,
            public_from_data=public_from_data,
            force=force,
        )


@app.command()
def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            help="A comparison (see `raydpzv list`, or a TOML file), or scenarios: the first gives data, split, model "
            "and budget, all give their methods.",
            autocompletion=comparable_names,
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(help="Further methods by name, comma between them, with their default settings."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds, from 0; or which: 0,7,9 [default: 3].")
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help='Values of ε, comma between them; "none": no noise [default: none].')
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="Test accuracies whose cost is asked for [default: 0.8,0.9].")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            help="Why the methods' heads learn differently, a sentence that stands with the tables."
        ),
    ] = None,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write, or to go on with [default: runs/compare-...]"),
    ] = None,
    jobs: Jobs = None,
    runner: ComparisonRunner = "auto",
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
    explain: Explain = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods x values of ε x seeds on the same split and budget; controls are always beside them."""
    with errors(verbose):
        with leaving_at_once():
            from scenarios.compare import ComparisonOptions
            from scenarios.compare import compare as carry_out
            from scenarios.run_output import Output
        carry_out(
            what,
            set_ or [],
            out,
            methods=methods,
            seeds=seeds,
            epsilons=epsilons,
            targets=targets,
            heads=heads,
            how=ComparisonOptions(Output(as_json, quiet, explain), runner, jobs, address, verbose),
        )


@app.command()
def tune(
    what: Annotated[
        str,
        typer.Argument(
            help="With --space a scenario, by name or file; without it a grid (see `raydpzv list`, or a TOML file).",
            autocompletion=tunable_names,
        ),
    ],
    space: Annotated[
        Path | None,
        typer.Option(help="TOML file with the scenario's settings to vary, and their values (docs/tune.md)."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --space: draws of what is random in it [default: 10, with optuna 30]."
        ),
    ] = None,
    search_: Annotated[
        str | None,
        typer.Option(
            "--search",
            help="With --space: random, or optuna, which learns from the trials before [default: random].",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="With --space: what the best is chosen by [default: validation_accuracy where rows are held back for "
            "it, else accuracy]."
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="With --space: none; asha, whose better trials resume as soon as there is room; or pbt, whose worse "
            "trials copy better ones and change the step sizes [default: none]."
        ),
    ] = None,
    grace: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With asha: updates after which trials first pause, or may be stopped [default: an eighth of them, by "
            "Ray Tune's rule a ninth].",
        ),
    ] = None,
    interval: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With pbt: updates after which trials are held against one another [default: a tenth].",
        ),
    ] = None,
    quantile: Annotated[
        float | None,
        typer.Option(
            help="With pbt: share of the trials that then go on from as many best ones [default: 0.25]."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="With --space: trials whose proved ε exceeds it are not started."),
    ] = None,
    draw_seed: Annotated[
        int | None,
        typer.Option(min=0, help="With --space: seed of the draws [default: 0]."),
    ] = None,
    actors: Annotated[
        bool,
        typer.Option(
            "--actors", help="With --space: each trial has actors of its own on Ray, as by run --runner ray."
        ),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(help="With a grid: comparison file to write [default: tuned.toml in the folder]."),
    ] = None,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs, or one to go on with [default: runs/tune-...]"),
    ] = None,
    storage: Storage = None,
    jobs: Jobs = None,
    runner: Annotated[
        str,
        typer.Option(
            help="auto (with --space Ray Tune; with a grid Ray if it is installed and there are cores for it), local "
            "(one by one), or ray (side by side)."
        ),
    ] = "auto",
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search settings: of one scenario, in a space of them (--space), or of a comparison's methods, all by one grid.

    With --space: trials of a scenario side by side on Ray Tune, their table, the best as a scenario file, and the ε of
    the whole search. With a grid: the methods of a comparison chosen alike, on validation rows, on seeds of their own.
    """
    with errors(verbose):
        with leaving_at_once():
            from scenarios.compare import ComparisonOptions
            from scenarios.run_output import Output
        how = ComparisonOptions(Output(as_json, quiet, explain=False), runner, jobs, address, verbose)
        given = {
            "--samples": samples,
            "--search": search_,
            "--metric": metric,
            "--scheduler": scheduler,
            "--grace": grace,
            "--interval": interval,
            "--quantile": quantile,
            "--epsilon": epsilon,
            "--draw-seed": draw_seed,
            "--actors": actors or None,
            "--storage": storage,
        }
        if space is None:
            for name in (name for name, value in given.items() if value is not None):
                raise SpecError(
                    f"{name}: goes with --space FILE, the settings of a scenario to vary; give both"
                )
            with leaving_at_once():
                from scenarios.tune import tune as choose
            choose(what, set_ or [], out, to, how)
            return
        if to is not None:
            raise SpecError(
                "--to: goes with a grid; with --space the best is best.toml in the folder (--out)"
            )
        with leaving_at_once():
            from scenarios.search_command import SearchOptions, search
        options = SearchOptions(
            *(samples, metric, scheduler or "none", grace, epsilon),
            *(draw_seed or 0, actors, search_ or "random", interval, quantile),
        )
        search(what, space, set_ or [], out, options, how, storage)


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
    with errors():
        with leaving_at_once():
            defer("torch")
            from scenarios.privacy_command import privacy as show
        show(scenario, _changes(set_, seed), rows, as_json=as_json, explain=explain)


@app.command()
def resume(
    run: Annotated[
        str,
        typer.Argument(
            help="Folder of a run, a comparison or a search that was stopped or killed, or the URI of its storage."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="With a URI: folder on this machine for what is there [default: runs/NAME]."),
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(
            help="local (this process) or ray (actors) [default: local, under the wall clock what the run began with; "
            "comparisons and searches: auto]."
        ),
    ] = None,
    moved: Moved = None,
    log: Log = None,
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
    explain: Explain = False,
    verbose: Verbose = False,
) -> None:
    """Continue a run that was stopped or killed (virtual clock: to the same bits); or a comparison, or a search."""
    with errors(verbose):
        require_room()
        with leaving_at_once():
            from scenarios.run_commands import resume as go_on
            from scenarios.run_output import Output
        output = Output(as_json, quiet, explain)
        go_on(run, out, moved or (), runner, output, log=log, address=address, verbose=verbose)


@app.command()
def fetch(
    uri: Annotated[str, typer.Argument(help="URI of a storage.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write, which is not there yet or empty.")],
) -> None:
    """Bring what a storage holds to a folder, to report, replay, publish or look at; also while it is written."""
    with errors():
        from scenarios.storage_options import fetched

        fetched(uri, folder)
        print(folder)


@app.command()
def submit(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="Name of a scenario (see `raydpzv list`) or path to a TOML file in the folder that is packed.",
            autocompletion=scenario_names,
        ),
    ] = None,
    set_: Set = None,
    seed: Seed = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="HTTP address of the cluster's dashboard [default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or "
            "http://127.0.0.1:8265]."
        ),
    ] = None,
    project: Annotated[
        Path,
        typer.Option(help="Folder to pack and to run in; .rayignore in it says what is left out."),
    ] = Path(),
    there: Annotated[
        str | None,
        typer.Option(
            help="Run folder on the cluster: one that lasts, begun or gone on with [default: ~/raydpzv/JOB on the "
            "head's machine]."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the run folder is brought here [default: runs/SCENARIO-...]"),
    ] = None,
    no_fetch: Annotated[bool, typer.Option("--no-fetch", help="Leave the run folder where it is.")] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Submit and leave; --job comes back to it.")
    ] = False,
    job: Annotated[
        str | None,
        typer.Option(help="In place of a scenario: a job submitted before, to follow and to fetch."),
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="With --job: stop it.")] = False,
    kuberay: Annotated[
        bool,
        typer.Option(
            "--kuberay",
            help="Submit nothing: print the manifest of a RayJob (KubeRay) that runs the scenario.",
        ),
    ] = False,
    image: Annotated[
        str | None, typer.Option(help="With --kuberay: image of the pods, with Ray and raydpzv.")
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            help="With --kuberay: persistent volume claim for the run folder, which outlives pods; not needed with "
            "--storage."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="With --kuberay: name of the job and its run folder [default: SCENARIO-SEED]."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --kuberay: pods that share the actors [default: 1].")
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option(
            min=1, help='With --kuberay: CPUs for shares that are "auto" [default: one for each actor].'
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            min=4, help="With --kuberay: GiB of each pod [default: from the plan, which reads the data]."
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --kuberay: how often a job that failed begins again, to go on [default: 3; 0 where it cannot].",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="With --kuberay: seconds that pods stay after the end [default: 600]."),
    ] = None,
    deadline: Annotated[
        int | None,
        typer.Option(min=1, help="With --kuberay: seconds that an attempt may take [default: any]."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="With --kuberay: let in whoever reaches the cluster's ports.")
    ] = False,
    suspend: Annotated[
        bool, typer.Option("--suspend", help="With --kuberay: wait for a queue to start it.")
    ] = False,
    queue: Annotated[
        str | None, typer.Option(help="With --kuberay: a queue of Kueue's, which starts it.")
    ] = None,
    ray_version: Annotated[
        str | None,
        typer.Option(help="With --kuberay: Ray's version in the image [default: that which is here]."),
    ] = None,
    storage: Storage = None,
    log: Log = None,
    quiet: Quiet = False,
    explain: Explain = False,
    verbose: Verbose = False,
) -> None:
    """Run a scenario as a job of a Ray cluster: pack, submit, show its log, bring its run folder; exit as it does."""
    manifest = {
        "image": image,
        "claim": claim,
        "name": name,
        "workers": workers,
        "cpus": cpus,
        "memory": memory,
        "retries": retries,
        "keep": keep,
        "deadline": deadline,
        "token": False if no_token else None,
        "suspend": suspend or None,
        "queue": queue,
        "ray": ray_version,
    }
    with errors(verbose):
        flags = {"--quiet": quiet, "--explain": explain, "--verbose": verbose}
        passed_on = [name for name, wanted in flags.items() if wanted]
        given = {name: value for name, value in manifest.items() if value is not None}
        if kuberay:
            job_options = {
                "--address": address,
                "--there": there,
                "--out": out,
                "--no-fetch": no_fetch or None,
                "--no-wait": no_wait or None,
                "--job": job,
                "--stop": stop or None,
            }
            for option in (option for option, value in job_options.items() if value is not None):
                raise SpecError(
                    f"{option}: goes with a cluster that is there, not with --kuberay; leave it out"
                )
            if scenario is None:
                raise SpecError("submit: wanted a SCENARIO to run, got none; give one")
            with leaving_at_once():
                from scenarios.kuberay_command import show
            show(scenario, _changes(set_, seed), given, log, passed_on, storage)
            return
        for option in given:
            spelt = {"token": "no-token", "ray": "ray-version"}.get(option, option)
            raise SpecError(f"--{spelt}: goes with --kuberay; give both, or leave it out")
        with leaving_at_once():
            from scenarios.submit_command import Submission, Where, rejoin
            from scenarios.submit_command import submit as send
        where = Where(address, there, out, storage, fetch=not no_fetch)
        if (scenario is None) == (job is None):
            raise SpecError(
                "submit: wanted a SCENARIO to run, or --job ID of one submitted before; give one of them"
            )
        if stop and job is None:
            raise SpecError("--stop: goes with --job ID, the job to stop; give both")
        if storage is not None and job is not None:
            raise SpecError("--storage: is what a job is submitted with, not --job; leave it out")
        if scenario is None:
            assert job is not None
            rejoin(job, where, stop=stop)
            return
        request = Submission(scenario, _changes(set_, seed), project, log, passed_on)
        send(request, where, wait=not no_wait)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    at: Annotated[int | None, typer.Option(help="Stop after so many updates.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Only this client's model: its number, or its party's name.")
    ] = None,
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="File (.npz) for the parameters.")] = None,
) -> None:
    """Rebuild models of a run, of now or back in time, from its ledger or its recorded order; check every bit."""
    with errors():
        with leaving_at_once():
            from scenarios.record_commands import replay as rebuild
        rebuild(run, at, client, moved or (), out)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a run that has come to its end.")],
    by: Annotated[
        str,
        typer.Option(
            help="ledger (queries recomputed with the releases forced), runs (one canary in or out of many runs), "
            "guesses (many canaries in one run), or labels (clients guess labels, over ε)."
        ),
    ] = "ledger",
    canaries: Annotated[
        int | None,
        typer.Option(help="Records to change [default: 3; guesses: 200; labels: 20]."),
    ] = None,
    row: Annotated[
        list[int] | None,
        typer.Option(help="Training row to change, in place of drawn ones. May be repeated."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="How: label, features or absent, in turn where repeated [default: those of the run's relation]."
        ),
    ] = None,
    runs: Annotated[int, typer.Option(help="Runs to make (--by runs).")] = 100,
    epsilons: Annotated[str, typer.Option(help="Values of ε (--by labels).")] = "0.5,1,2,4,8",
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the audit's page, pictures and JSON.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Try to falsify a run's ε: an ε seen from below beside the one that is proved; 1 if it is falsified."""
    with errors(verbose):
        with leaving_at_once():
            from scenarios.audit_command import AuditOptions
            from scenarios.audit_command import audit as carry_out
        options = AuditOptions(by, canaries, row or (), kind or (), runs, epsilons)
        carry_out(run, options, moved or (), out, as_json=as_json, quiet=quiet)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the report of several runs.")] = None,
    operator: Annotated[
        bool,
        typer.Option(
            "--operator", help="Of private runs also what must not leave: losses, accuracies, rows."
        ),
    ] = False,
) -> None:
    """Write a self-contained HTML page and PNG plots, of runs or of a comparison as far as it has come."""
    with errors():
        with leaving_at_once():
            from scenarios.record_commands import report as write
        write(runs, moved or (), out, operator=operator)


@app.command()
def publish(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write, or to write anew.")],
    quiet: Quiet = False,
) -> None:
    """Write what may leave of a private run: releases, models, claims and settings, nothing that no ε covers."""
    with errors():
        with leaving_at_once():
            from scenarios.record_commands import publish as write
        write(run, out, quiet=quiet)


@app.command("list")
def list_(
    settings: Annotated[bool, typer.Option("--settings", help="Print every setting as Markdown.")] = False,
    papers: Annotated[
        bool, typer.Option("--papers", help="Print scenarios against their papers as Markdown.")
    ] = False,
) -> None:
    """List scenarios, methods and data sets."""
    if settings:
        defer("torch")
        from raydpzv.config.settings_reference import settings_page

        print(settings_page())
        return
    if papers:
        with errors():
            defer("torch")
            from raydpzv.compare.printed import comparison_lines
            from raydpzv.config.papers import scenarios_page

            print(scenarios_page(comparison_lines))
        return
    from scenarios.list_output import show_list

    show_list()


def main() -> None:
    """Run the command line."""
    app()


def _changes(overrides: list[str] | None, seed: int | None) -> list[str]:
    return [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
