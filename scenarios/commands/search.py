"""`raydpzv search`: the trials of one scenario on Ray Tune, and their result."""

from __future__ import annotations

import io
import math
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.text import Text

from raydpzv.compare.plan import Planned
from raydpzv.compare.run_comparison import STOPPED as STOPPED_EARLY
from raydpzv.compare.run_comparison import one_by_one
from raydpzv.config import catalog
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml
from raydpzv.errors import RunError, SpecError, suggest
from raydpzv.experiment.prepare import planned_privacy, prepare
from raydpzv.files import write_atomically
from raydpzv.registry import LOSSES, RUNNERS
from raydpzv.report.plots import png
from raydpzv.search import promotion
from raydpzv.search.population import apply_turns, legs, population_of, take_turn, to_go, turns
from raydpzv.search.promotion import Promotion
from raydpzv.search.search_folder import SEARCH, is_search, keep_plan, search_begun, trials_left
from raydpzv.search.search_plan import (
    METRICS,
    OF_NUMBERS,
    Drawing,
    Population,
    SearchPlan,
    Trial,
    grace_of,
    is_higher_better,
    read_search,
    trials_of,
)
from raydpzv.search.space import Dimension, drawn, read_space
from raydpzv.search.suggest import RANDOM_FIRST, check_space, require_optuna, suggested
from raydpzv.search.trial_plot import search_figure
from raydpzv.search.trial_results import FAILED, SearchResults, best_file, search_results
from raydpzv.sim.interfaces import Status
from raydpzv.storage import download
from raydpzv.storage.download import link, link_of, stored_kind
from raydpzv.storage.lease import Waits
from raydpzv.storage.uploader import FolderUploader
from scenarios import screen
from scenarios.command_options import Execution, SearchCommand, SearchOptions
from scenarios.exit_codes import STOPPED
from scenarios.options import output_folder
from scenarios.progress import stop_on_signal
from scenarios.search_progress import SearchProgress, show_search
from scenarios.storage_options import copy_folder, waits

LEARNED_DRAWS = 30
"""Trials of a search that learns where no number is given: the first ten are random."""
SEARCHES = ("random", "optuna")


def search_command(options: SearchCommand) -> None:
    """Search a space of settings of a scenario, or resume the search in `out` or `storage`; see `carry_out`."""
    scenario, changes = options.scenario, options.set_ or []
    say = screen.console(stderr=True, quiet=options.quiet).print
    base = catalog.load(scenario, changes)
    named = {item.partition("=")[0].strip() for item in changes}
    if base.clock.kind == "wall" and "clock.kind" not in named:
        # side by side, trials share real time, and staleness would be the machine's
        changes = [*changes, "clock.kind=virtual"]
        base = catalog.load(scenario, changes)
        screen.console(stderr=True).print(
            "clock.kind = virtual in a search; --set clock.kind=wall keeps the wall clock"
        )
    space = read_space(options.space, base, changes)
    plan, wanted = _planned(options, base, changes, space)
    if not plan.metric.startswith("validation_"):
        say(
            f"the best is chosen by {plan.metric} on the test rows; --set data.validation_fraction=0.2 gives an "
            "estimate from other rows",
            soft_wrap=True,
        )
    if (repeated := wanted - len(plan.trials)) > 0:
        say(
            f"{len(plan.trials)} trials, not {wanted}: {repeated} of the draws came to the settings of another one",
            soft_wrap=True,
        )
    words = [scenario, "--space", str(options.space), *options.words()]
    asked = shlex.join([*words, *(word for change in changes for word in ("--set", change))])
    with _stored(options.storage, options.out, waits(quiet=options.quiet)) as (out, mirror):
        if plan.drawing and out and is_search(out) and (begun := read_search(out / SEARCH)).same_as(plan):
            plan = replace(begun, actors=plan.actors)  # which may have come further
        folder = output_folder(out, f"tune-{plan.name}")
        carry_out(plan, folder, options, f"raydpzv search {asked}", mirror)


def _planned(
    options: SearchCommand, base: AnyScenario, changes: Sequence[str], space: Sequence[Dimension]
) -> tuple[SearchPlan, int]:
    """Return the plan of a search, and how many trials it would have if no draws were equal (0: it learns)."""
    usual = LOSSES[base.loss].score
    metric = options.metric or (f"validation_{usual}" if base.data.validation_fraction else usual)
    batch = options.jobs or os.cpu_count() or 1
    drawing, points = _points(space, base, options, batch, higher=is_higher_better(metric, base))
    make = drawing.make if drawing else lambda settings: catalog.load(options.scenario, [*changes, *settings])
    trials = trials_of(make, points, options.epsilon)
    promotes = options.scheduler == "asha" and not _why_not_promoting(trials, actors=options.actors)
    grace = _grace(trials, options, promotes=promotes)
    population = _population(trials, space, options)
    log_scaled = tuple(d.setting for d in space if d.kind == "loguniform")
    terms = (Path(options.scenario).stem, metric, options.scheduler, grace, options.epsilon)
    plan = SearchPlan(*terms, trials, options.actors, drawing, population, promotes, log_scaled)
    grid = math.prod(len(d.values) for d in space if d.kind == "grid")
    return plan, 0 if drawing else options.draws(space) * grid


@contextmanager
def _stored(
    storage: str | None, out: Path | None, waiting: Waits
) -> Iterator[tuple[Path | None, FolderUploader | None]]:
    """Hold a storage while the block runs, if there is to be one; yield the folder, with what the storage has."""
    if storage is None:
        if out is not None and (found := link_of(out)):
            storage = found.uri
        else:
            yield out, None
            return
    if stored_kind(storage):
        with _continued(storage, out or copy_folder(storage), waiting) as (folder, mirror):
            yield folder, mirror
        return
    with download.created(storage, "search", waits=waiting) as mirror:
        yield out, mirror


@contextmanager
def _continued(uri: str, folder: Path, waiting: Waits) -> Iterator[tuple[Path, FolderUploader]]:
    with download.resumed(uri, folder, waits=waiting) as mirror:
        yield folder, mirror


def resume_search(folder: Path, moved: Sequence[str], how: Execution, uri: str | None = None) -> None:
    """Resume a search that was stopped or killed; moved: where its data are now; uri: of its storage."""
    if uri is None:
        carry_out(read_search(folder / SEARCH, moved), folder, how, f"raydpzv resume {folder}")
        return
    with _continued(uri, folder, waits(quiet=how.quiet)) as (_, mirror):
        carry_out(read_search(folder / SEARCH, moved), folder, how, f"raydpzv resume {uri}", mirror)


def carry_out(
    plan: SearchPlan,
    folder: Path,
    how: Execution,
    command: str,
    storage: FolderUploader | None = None,
) -> None:
    """Run the remaining trials of a search; write and print its tables, picture and best scenario.

    command: what was asked for; storage: brings the folder there. Leaves with 130 if the user stopped it; raises
    RunError if a trial failed or none came to its end.
    """
    _check_runner(plan, how)
    console, reasons = screen.console(stderr=True), dict[int, str]()
    if plan.scheduler == "asha" and not how.quiet:
        console.print(Text(_rule(plan)), soft_wrap=True)
    todo = list(plan.started())
    if is_search(folder):
        todo = to_go(folder, plan, None) if plan.population else trials_left(folder, plan)
    if not plan.complete:
        require_optuna()
    if todo and how.runner != "local":
        from actors.tune_search import check_own_machine

        check_own_machine(todo, how.address, actors=plan.actors)
    if todo:
        _check_metric(plan, todo[0])
    with (
        stop_on_signal(console) as stop,
        _trials_made(how, plan, todo) as make,
        search_begun(folder, plan),
        _brought(storage, folder, plan, stop),
        SearchProgress(plan, len(todo), console, reasons, folder, quiet=how.quiet) as watch,
    ):
        while True:
            if plan.population:
                _legs_made(plan, folder, make, watch, stop, storage)
            elif plan.promotes:
                _promotions_made(plan, folder, make, watch, stop)
            else:
                make(plan, todo, folder, watch, stop, None)
            stopped = stop.is_set()
            results = search_results(folder, plan, reasons, stopped=stopped)
            if plan.complete or stopped:
                break
            grown = plan.grown(results.outcomes(plan))
            if grown == plan:
                break
            todo = [trial for trial in grown.trials[len(plan.trials) :] if not trial.skipped]
            plan = grown
            keep_plan(folder, plan)
            if storage:
                storage.declare(fresh_noise=_draws_fresh_noise(plan))
            watch.grew(plan)
        _write(plan, results, folder, command, whole=not stopped)
    show_search(plan, results, folder, stopped=stopped, as_json=how.as_json)
    _leave(results, folder, stopped=stopped)


def _check_runner(plan: SearchPlan, how: Execution) -> None:
    """Raise SpecError for a runner that is unknown, or that cannot make this search."""
    if how.runner not in ("auto", *RUNNERS):
        raise SpecError(f'--runner: wanted auto, {" or ".join(RUNNERS)}, got "{how.runner}"')
    if how.runner == "local" and (how.address or plan.actors):
        raise SpecError(
            "--runner local: runs one trial after the other, without --actors and --address; use ray"
        )
    if how.runner == "local" and plan.scheduler == "asha" and not plan.promotes:
        raise SpecError(f"--runner local: has no Ray; {_rule(plan)}; use ray")


@contextmanager
def _brought(
    storage: FolderUploader | None, folder: Path, plan: SearchPlan, stop: threading.Event
) -> Iterator[None]:
    """Bring the folder to the storage while the block runs; where that fails for good, trials are stopped."""
    if storage is None:
        yield
        return
    link(folder, storage)
    with storage.uploads(folder, fresh_noise=_draws_fresh_noise(plan), failed=stop.set):
        yield


def _draws_fresh_noise(plan: SearchPlan) -> bool:
    """Tell whether a trial chosen so far draws noise of the system, which a second run would draw anew."""
    settings = (planned_privacy(trial.spec) for trial in plan.started())
    return any(setting is not None and setting.noise == "system" for setting in settings)


def _points(
    space: Sequence[Dimension],
    base: AnyScenario,
    options: SearchOptions,
    batch: int,
    *,
    higher: bool,
) -> tuple[Drawing | None, list[tuple[str, ...]]]:
    """Return how a search that learns draws (None: it does not), and the settings of its first trials.

    batch: trials that it chooses at a time.
    """
    if options.search not in SEARCHES:
        near = suggest(options.search, SEARCHES)
        raise SpecError(f'--search: wanted {" or ".join(SEARCHES)}, got "{options.search}". {near}'.rstrip())
    if options.search == "random":
        return None, drawn(space, options.draws(space), options.draw_seed)
    if options.scheduler != "none":
        raise SpecError(
            "--search optuna: goes by whole trials, without --scheduler; leave one of the two out"
        )
    samples = options.samples or LEARNED_DRAWS
    check_space(space, samples)
    drawing = Drawing(tuple(space), samples, batch, options.draw_seed, base)
    first = min(samples, RANDOM_FIRST)
    points = suggested(space, [], first, drawing.seed, higher=higher, accepts=lambda point: True)
    return drawing, points


_Todo = Sequence[Trial] | Promotion
_Make = Callable[[SearchPlan, _Todo, Path, SearchProgress, threading.Event, int | None], None]
"""Runs trials, or promotes them one by one, until all are over or they are stopped.

The last argument: updates after which each of the trials stands, None: at its end.
"""


def _legs_made(
    plan: SearchPlan,
    folder: Path,
    make: _Make,
    watch: SearchProgress,
    stop: threading.Event,
    storage: FolderUploader | None,
) -> None:
    """Run a population leg by leg; after each, the worst trials continue from the best.

    It ends early where a trial has broken off: its leg is to be made first.
    """
    turning = storage.paused if storage else nullcontext
    with turning():
        apply_turns(folder, plan)
    for until in legs(plan):
        if todo := to_go(folder, plan, until):
            watch.leg(until, todo)
            make(plan, todo, folder, watch, stop, until)
        if until is None or stop.is_set() or to_go(folder, plan, until):
            return
        known = {turn.updates for turn in turns(folder)}
        with turning():
            turn = take_turn(folder, plan, until)
        if until not in known:
            watch.turned(turn)


def _promotions_made(
    plan: SearchPlan, folder: Path, make: _Make, watch: SearchProgress, stop: threading.Event
) -> None:
    """Promote trials one by one until none is left to promote; unless stopped, the others stay paused."""
    todo = Promotion(folder, plan)
    make(plan, todo, folder, watch, stop, None)
    if not stop.is_set():
        todo.close()


def _why_not_promoting(trials: Sequence[Trial], *, actors: bool) -> str:
    return promotion.why_not_promoting([trial for trial in trials if not trial.skipped], actors=actors)


def _rule(plan: SearchPlan) -> str:
    """Return in a line which of the two rules that are called ASHA a search goes by, and why."""
    if plan.promotes:
        return promotion.rule(plan)
    why = _why_not_promoting(plan.trials, actors=plan.actors) or "this search was begun by it"
    return f"asha stops trials by Ray Tune's rule: {why}"


@contextmanager
def _trials_made(how: Execution, plan: SearchPlan, todo: Sequence[Trial]) -> Iterator[_Make]:
    """Yield what runs trials: on Ray, which is there meanwhile, or in this process, also where there are none."""
    if how.runner == "local" or (not todo and plan.complete):
        yield _in_this_process
        return
    from actors.tune_search import TuneSearch, cluster_needs, tune_cluster

    def on_tune(
        plan: SearchPlan,
        todo: _Todo,
        folder: Path,
        watch: SearchProgress,
        stop: threading.Event,
        until: int | None,
    ) -> None:
        search = TuneSearch(plan, folder, watch, stop, how.jobs)
        if isinstance(todo, Promotion):
            search.promote(todo)
        elif todo:
            search.run(todo, cluster_needs(todo, actors=plan.actors), until)

    with tune_cluster(how.address, verbose=how.verbose):
        cluster_needs(todo, actors=plan.actors)  # what does not fit is said before anything is written
        yield on_tune


def _grace(trials: Sequence[Trial], options: SearchOptions, *, promotes: bool) -> int:
    if promotes:
        return promotion.first_rung(trials, options.grace)
    if options.scheduler == "asha":
        return grace_of(trials, options.grace)
    if options.grace is not None:
        raise SpecError("--grace: goes with --scheduler asha, which stops trials after it; leave it out")
    return 0


def _population(
    trials: Sequence[Trial], space: Sequence[Dimension], options: SearchOptions
) -> Population | None:
    if options.scheduler == "pbt":
        if options.actors:
            raise SpecError(
                "--actors: --scheduler pbt has each trial whole in one process, where it stands until the others have "
                "come as far; leave it out"
            )
        return population_of(trials, space, options.interval, options.quantile, options.draw_seed)
    for name, value in (("--interval", options.interval), ("--quantile", options.quantile)):
        if value is not None:
            raise SpecError(f"{name}: goes with --scheduler pbt; leave it out")
    return None


def _check_metric(plan: SearchPlan, first: Trial) -> None:
    """Load a trial's data, to raise their errors before anything is written, and check the metric."""
    experiment = prepare(first.spec)
    shares, loss = experiment.class_shares(), LOSSES[first.spec.loss]
    unclassed, name = any(map(math.isnan, shares)), plan.metric.removeprefix("validation_")
    known = [*(("rmse", "r2") if loss.score == "rmse" else (loss.score,)), *experiment.measures(), "loss"]
    if unclassed and name not in known:
        labels = "survival times" if loss.labels == "times" else "these labels"
        near = suggest(name, known)
        raise SpecError(
            f"--metric {plan.metric}: {labels} have none. {near}Use {' or '.join(dict.fromkeys(known))}"
        )
    if not unclassed and plan.metric not in (*METRICS, *OF_NUMBERS) and name not in experiment.measures():
        near, measures = suggest(name, experiment.measures()), ", ".join(experiment.measures())
        raise SpecError(
            f"--metric {plan.metric}: evaluate.metrics has no such measure. {near}It has {measures}"
        )
    if not unclassed and name in ("concordance", "rmse", "r2"):
        wanted = "survival times" if name == "concordance" else "numbers for labels"
        raise SpecError(f"--metric {plan.metric}: wanted {wanted}, got classes; use accuracy or loss")
    if name in ("roc_auc", "pr_auc", "balanced_accuracy") and not unclassed and len(shares) != 2:
        raise SpecError(
            f"--metric {plan.metric}: wanted data of two classes, these have {len(shares)}; use accuracy or loss"
        )


def _in_this_process(
    plan: SearchPlan,
    todo: _Todo,
    folder: Path,
    watch: SearchProgress,
    stop: threading.Event,
    until: int | None,
) -> None:
    if isinstance(todo, Promotion):
        while not stop.is_set() and (leg := todo.next_leg()):
            watch.sent(leg)
            _in_this_process(plan, [todo.trial(leg)], folder, watch, stop, leg.until)
            todo.ended(leg)
        return
    numbers = {trial.planned().folder: trial.number for trial in todo}

    def progress(standing: Mapping[str, Status]) -> None:
        for name, status in standing.items():
            watch.reported(numbers[name], {"updates": status.updates})

    def ended(planned: Planned, why: str) -> None:
        watch.ended(numbers[planned.folder], "" if why == STOPPED_EARLY else why)

    one_by_one(
        [trial.planned() for trial in todo], folder, progress=progress, ended=ended, stop=stop, until=until
    )


def _write(plan: SearchPlan, results: SearchResults, folder: Path, command: str, *, whole: bool) -> None:
    table = results.table()
    for name, write in (("trials.parquet", pa.parquet.write_table), ("trials.csv", pa.csv.write_csv)):
        buffer = io.BytesIO()
        write(table, buffer)
        write_atomically(folder / name, buffer.getvalue())
    if figure := search_figure(plan, results):
        write_atomically(folder / "trials.png", png(figure))
    if whole and results.best is not None:
        text = best_file(plan, results, as_toml(results.best.spec), command)
        write_atomically(folder / "best.toml", text.encode())


def _leave(results: SearchResults, folder: Path, *, stopped: bool) -> None:
    if stopped:
        screen.console(stderr=True).print(f"stopped; continue with: raydpzv resume {folder}", soft_wrap=True)
        raise typer.Exit(STOPPED)
    failed = [row for row in results.rows if row["status"] == FAILED]
    if failed:
        raise RunError(
            f"{len(failed)} of {len(results.rows)} trials failed, first trial {failed[0]['trial']}: "
            f"{failed[0]['reason']}; try them again with: raydpzv resume {folder}"
        )
    if results.best is None:
        raise RunError(
            f"no point of the space came to its end with a result (see {folder / 'trials.csv'}); put smaller step "
            "sizes into the space, or less noise"
        )
