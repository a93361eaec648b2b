"""A search from its space to its result: the work of `raydpzv.tune(...)` and of `raydpzv
search`.
"""

from __future__ import annotations

import io
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from raydpzv.compare.plan import Planned
from raydpzv.compare.run_comparison import STOPPED as STOPPED_EARLY
from raydpzv.compare.run_comparison import PoolOptions, one_by_one
from raydpzv.config import catalog
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml
from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.prepare import planned_privacy, prepare
from raydpzv.files import SEARCH, is_search, write_atomically
from raydpzv.interrupts import interruptible
from raydpzv.notebook import CellLine, table_html
from raydpzv.registry import LOSSES, TRIAL_POOLS
from raydpzv.report.plots import image
from raydpzv.report.table import grid
from raydpzv.search import asha
from raydpzv.search.asha import Promotion
from raydpzv.search.composition import sentences
from raydpzv.search.population import apply_turns, legs, population_of, take_turn, to_go, turns
from raydpzv.search.search_folder import keep_plan, search_begun, trials_left
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
from raydpzv.search.search_terms import SearchTerms, SearchWatch
from raydpzv.search.space import Dimension, drawn, read_space
from raydpzv.search.suggest import RANDOM_FIRST, check_space, require_optuna, suggested
from raydpzv.search.trial_results import (
    SearchResults,
    best_file,
    search_figure,
    search_results,
    trial_columns,
)
from raydpzv.settings.values import plain_value
from raydpzv.sim.interfaces import Status
from raydpzv.storage.download import link
from raydpzv.storage.uploader import FolderUploader

LEARNED_DRAWS = 30
"""Trials of a search that learns where no number is given: the first ten are random."""
SEARCHES = ("random", "optuna")
_MOST_SHOWN = 20
"""Trials that a notebook shows of a search."""

Todo = Sequence[Trial] | Promotion
Make = Callable[[SearchPlan, Todo, Path, SearchWatch, threading.Event, int | None], None]
"""Runs trials, or promotes them one by one, until all are over or they are stopped.

The last argument: updates after which each of the trials stands, None: at its end.
"""


@dataclass(frozen=True)
class Search:
    """A search: its plan, its results and its folder; stopped: has the user stopped it?"""

    plan: SearchPlan
    results: SearchResults
    path: Path
    stopped: bool

    @property
    def table(self) -> pa.Table:
        """A row for each trial: its settings, what became of it, its metrics, its ε."""
        return self.results.table()

    @property
    def best(self) -> AnyScenario | None:
        """The scenario of the best trial, to run again; None where no trial came to its end."""
        return self.results.best.spec if self.results.best else None

    @property
    def spent(self) -> list[str]:
        """The ε of the whole search, in sentences: the best trial was chosen by all of them."""
        return list(sentences(self.results.spent))

    def _repr_html_(self) -> str:
        ranked = self.results.ranked(self.plan)[:_MOST_SHOWN]
        found = grid(trial_columns(self.plan, ranked), ranked)
        title = f"{len(self.results.rows)} trials by {self.plan.metric}; in {self.path}"
        return table_html(title, found.rows, found.heads, [self.plan.rows_note(), *self.spent])


@dataclass(frozen=True)
class SearchView:
    """Who watches a search. stop: the block in which an event ends the search.

    progress: who is told while the block runs, given the plan, how many trials are left, and a
    table that is filled with why trials have no result, by their numbers.
    """

    stop: AbstractContextManager[threading.Event]
    progress: Callable[[SearchPlan, int, dict[int, str]], AbstractContextManager[SearchWatch]]


def tune(
    scenario: AnyScenario | str,
    space: Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    runner: str = "local",
    **options: Any,
) -> Search:
    """Search settings of a scenario, and choose the best, as `raydpzv search` does (docs/tune.md).

    space: a file, or settings to ways to vary them, {"lr": {"loguniform": [1e-3, 1e-1]}, "seed":
    {"grid": [0, 1]}}.
    out: the folder to write, or to resume. runner: "local" (one trial after the other in this
    process) or "ray" (side by side on Ray Tune; jobs: most at a time; address: of the cluster).
    options: samples, search, metric, scheduler, grace, interval, quantile, epsilon, draw_seed,
    actors. Raises InputError before anything is written.
    """
    options = plain_value(options)
    pool = PoolOptions(runner, options.pop("jobs", None), options.pop("address", None))
    terms, name = SearchTerms(**options), catalog.name_of(scenario)
    changes, was_wall = virtual_clock(name, overrides)
    if was_wall:
        warnings.warn(
            'clock.kind = "virtual" in a search; overrides=["clock.kind=wall"] keeps the wall '
            "clock",
            stacklevel=2,
        )
    found = read_space(
        Path(space) if isinstance(space, str) else space, catalog.load(name, changes), changes
    )
    plan = resumed_plan(planned(name, changes, found, terms, pool.jobs)[0], Path(out))
    check_runner(plan, pool)
    stop = threading.Event()
    view = SearchView(
        nullcontext(stop), lambda plan, left, reasons: nullcontext(_CellWatch(plan, reasons))
    )
    with interruptible(stop, f"stopped; the same call continues it in {out}"):
        return carry_out(plan, Path(out), pool, view, "raydpzv.tune(...)")


class _CellWatch(SearchWatch):
    """Keeps why trials have no result, and shows in a notebook how many are over."""

    def __init__(self, plan: SearchPlan, reasons: dict[int, str]) -> None:
        self._plan, self._reasons, self._line = plan, reasons, CellLine()
        self._over = set[int]()

    def ended(self, trial: int, reason: str) -> None:
        self._reasons.update({trial: reason} if reason else {})
        self._over.add(trial)
        self._line.show(
            f"{len(self._over)} of {self._plan.size} trials are over or stand", now=True
        )


def virtual_clock(scenario: str, changes: Sequence[str]) -> tuple[list[str], bool]:
    """Return settings with the virtual clock, unless they name a clock; and whether the scenario
    has another one.

    Side by side, trials share real time, and staleness would be the machine's.
    """
    named = {item.partition("=")[0].strip() for item in changes}
    wall = catalog.load(scenario, changes).clock.kind == "wall" and "clock.kind" not in named
    return [*changes, *(["clock.kind=virtual"] if wall else [])], wall


def resumed_plan(plan: SearchPlan, folder: Path | None) -> SearchPlan:
    """Return the plan on record of the same search that learns, which may have come further."""
    if (
        plan.drawing
        and folder
        and is_search(folder)
        and (begun := read_search(folder / SEARCH)).same_as(plan)
    ):
        return replace(begun, actors=plan.actors)
    return plan


def planned(
    scenario: str,
    changes: Sequence[str],
    space: Sequence[Dimension],
    options: SearchTerms,
    jobs: int | None,
) -> tuple[SearchPlan, int]:
    """Return the plan of a search, and how many trials it would have if no draws were equal (0: it
    learns).
    """
    base = catalog.load(scenario, changes)
    usual = LOSSES[base.loss].score
    metric = options.metric or (f"validation_{usual}" if base.data.validation_fraction else usual)
    batch = jobs or os.cpu_count() or 1
    drawing, points = _points(space, base, options, batch, higher=is_higher_better(metric, base))
    make = (
        drawing.make if drawing else lambda settings: catalog.load(scenario, [*changes, *settings])
    )
    trials = trials_of(make, points, options.epsilon)
    promotes = options.scheduler == "asha" and not _why_not_promoting(trials, actors=options.actors)
    grace = _grace(trials, options, promotes=promotes)
    population = _population(trials, space, options)
    log_scaled = tuple(d.setting for d in space if d.kind == "loguniform")
    terms = (catalog.label_of(scenario), metric, options.scheduler, grace, options.epsilon)
    plan = SearchPlan(*terms, trials, options.actors, drawing, population, promotes, log_scaled)
    grid = math.prod(len(d.values) for d in space if d.kind == "grid")
    return plan, 0 if drawing else options.draws(space) * grid


def carry_out(
    plan: SearchPlan,
    folder: Path,
    pool: PoolOptions,
    view: SearchView,
    command: str,
    storage: FolderUploader | None = None,
) -> Search:
    """Run the remaining trials of a search; write its tables, picture and best scenario.

    command: the command's words; storage: uploads the folder there. Raises InputError before
    anything is written.
    """
    reasons = dict[int, str]()
    todo = list(plan.started())
    if is_search(folder):
        todo = to_go(folder, plan, None) if plan.population else trials_left(folder, plan)
    if not plan.complete:
        require_optuna()
    if todo:
        _check_metric(plan, todo[0])
    with (
        view.stop as stop,
        TRIAL_POOLS[pool.runner if todo or not plan.complete else "local"](
            pool, plan, todo
        ) as make,
        search_begun(folder, plan),
        _brought(storage, folder, plan, stop),
        view.progress(plan, len(todo), reasons) as watch,
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
    return Search(plan, results, folder, stopped)


def check_runner(plan: SearchPlan, pool: PoolOptions) -> None:
    """Raise SpecError for a runner that cannot make this search."""
    if pool.runner == "local" and (pool.address or plan.actors):
        raise SpecError(
            "--runner local: runs one trial after the other, without --actors and --address; use "
            "ray"
        )
    if pool.runner == "local" and plan.scheduler == "asha" and not plan.promotes:
        raise SpecError(f"--runner local: has no Ray; {rule(plan)}; use ray")


@contextmanager
def _brought(
    storage: FolderUploader | None, folder: Path, plan: SearchPlan, stop: threading.Event
) -> Iterator[None]:
    """Upload the folder to the storage while the block runs; where that fails for good, trials are
    stopped.
    """
    if storage is None:
        yield
        return
    link(folder, storage)
    with storage.uploads(folder, fresh_noise=_draws_fresh_noise(plan), failed=stop.set):
        yield


def _draws_fresh_noise(plan: SearchPlan) -> bool:
    """Return whether a trial chosen so far draws noise of the system, which a second run would draw
    anew.
    """
    settings = (planned_privacy(trial.spec) for trial in plan.started())
    return any(setting is not None and setting.noise == "system" for setting in settings)


def _points(
    space: Sequence[Dimension], base: AnyScenario, options: SearchTerms, batch: int, *, higher: bool
) -> tuple[Drawing | None, list[tuple[str, ...]]]:
    """Return how a search that learns draws (None: it does not), and the settings of its first
    trials.

    batch: trials that it chooses at a time.
    """
    if options.search not in SEARCHES:
        near = suggest(options.search, SEARCHES)
        raise SpecError(
            f'--search: wanted {" or ".join(SEARCHES)}, got "{options.search}". {near}'.rstrip()
        )
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


def _legs_made(
    plan: SearchPlan,
    folder: Path,
    make: Make,
    watch: SearchWatch,
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
    plan: SearchPlan, folder: Path, make: Make, watch: SearchWatch, stop: threading.Event
) -> None:
    """Promote trials one by one until none is left to promote; unless stopped, the others stay
    paused.
    """
    todo = Promotion(folder, plan)
    make(plan, todo, folder, watch, stop, None)
    if not stop.is_set():
        todo.close()


def _why_not_promoting(trials: Sequence[Trial], *, actors: bool) -> str:
    return asha.why_not_promoting([trial for trial in trials if not trial.skipped], actors=actors)


def rule(plan: SearchPlan) -> str:
    """Return in a line which of the two rules that are called ASHA a search goes by, and why."""
    if plan.promotes:
        return asha.rule(plan)
    why = _why_not_promoting(plan.trials, actors=plan.actors) or "this search was started by it"
    return f"asha stops trials by Ray Tune's rule: {why}"


def _grace(trials: Sequence[Trial], options: SearchTerms, *, promotes: bool) -> int:
    if promotes:
        return asha.first_rung(trials, options.grace)
    if options.scheduler == "asha":
        return grace_of(trials, options.grace)
    if options.grace is not None:
        raise SpecError(
            "--grace: goes with --scheduler asha, which stops trials after it; leave it out"
        )
    return 0


def _population(
    trials: Sequence[Trial], space: Sequence[Dimension], options: SearchTerms
) -> Population | None:
    if options.scheduler == "pbt":
        if options.actors:
            raise SpecError(
                "--actors: --scheduler pbt has each trial whole in one process, where it waits "
                "until the others have come as far; leave it out"
            )
        return population_of(trials, space, options.interval, options.quantile, options.draw_seed)
    for name, value in (("--interval", options.interval), ("--quantile", options.quantile)):
        if value is not None:
            raise SpecError(f"{name}: goes with --scheduler pbt; leave it out")
    return None


def _check_metric(plan: SearchPlan, first: Trial) -> None:
    """Load a trial's data, to raise their errors before anything is written, and check the
    metric.
    """
    experiment = prepare(first.spec)
    shares, loss = experiment.class_shares(), LOSSES[first.spec.loss]
    unclassed, name = any(map(math.isnan, shares)), plan.metric.removeprefix("validation_")
    known = [
        *(("rmse", "r2") if loss.score == "rmse" else (loss.score,)),
        *experiment.measures(),
        "loss",
    ]
    if unclassed and name not in known:
        labels = "survival times" if loss.labels == "times" else "these labels"
        use = f"{suggest(name, known)}Use {' or '.join(dict.fromkeys(known))}"
        raise SpecError(f"--metric {plan.metric}: {labels} have none. {use}")
    if (
        not unclassed
        and plan.metric not in (*METRICS, *OF_NUMBERS)
        and name not in experiment.measures()
    ):
        near, measures = suggest(name, experiment.measures()), ", ".join(experiment.measures())
        raise SpecError(
            f"--metric {plan.metric}: evaluate.metrics has no such measure. {near}It has {measures}"
        )
    if not unclassed and name in ("concordance", "rmse", "r2"):
        wanted = "survival times" if name == "concordance" else "numbers for labels"
        raise SpecError(
            f"--metric {plan.metric}: wanted {wanted}, got classes; use accuracy or loss"
        )
    if name in ("roc_auc", "pr_auc", "balanced_accuracy") and not unclassed and len(shares) != 2:
        raise SpecError(
            f"--metric {plan.metric}: wanted data of two classes, these have {len(shares)}; use "
            "accuracy or loss"
        )


def _in_this_process(
    plan: SearchPlan,
    todo: Todo,
    folder: Path,
    watch: SearchWatch,
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
        [trial.planned() for trial in todo],
        folder,
        progress=progress,
        ended=ended,
        stop=stop,
        until=until,
    )


@contextmanager
def in_this_process(pool: PoolOptions, plan: SearchPlan, todo: Sequence[Trial]) -> Iterator[Make]:
    """Yield what runs trials one by one; as `raydpzv.registry.TRIAL_POOLS` finds it."""
    yield _in_this_process


def _write(
    plan: SearchPlan, results: SearchResults, folder: Path, command: str, *, whole: bool
) -> None:
    table = results.table()
    for name, write in (
        ("trials.parquet", pa.parquet.write_table),
        ("trials.csv", pa.csv.write_csv),
    ):
        buffer = io.BytesIO()
        write(table, buffer)
        write_atomically(folder / name, buffer.getvalue())
    if figure := search_figure(plan, results):
        write_atomically(folder / "trials.png", image(figure))
    if whole and results.best is not None:
        text = best_file(plan, results, as_toml(results.best.spec), command)
        write_atomically(folder / "best.toml", text.encode())
