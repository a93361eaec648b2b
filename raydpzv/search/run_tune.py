"""A search from its space to its result: the work of `raydpzv.tune(...)` and of `raydpzv tune`."""

from __future__ import annotations

import io
import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from raydpzv.arrow_columns import as_csv
from raydpzv.compare.file import ComparisonFile, read_comparison_file
from raydpzv.config import catalog
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml, as_tree, overridden
from raydpzv.errors import SpecError, suggest
from raydpzv.experiment.prepare import prepare
from raydpzv.files import write_atomically
from raydpzv.interrupts import interruptible
from raydpzv.notebook import CellLine, table_html
from raydpzv.registry import LOSSES, TUNERS
from raydpzv.report.plots import image
from raydpzv.report.table import grid
from raydpzv.search.composition import sentences
from raydpzv.search.schedulers import scheduling
from raydpzv.search.search_terms import DRAWS, SearchTerms, SearchWatch, TuneOptions
from raydpzv.search.space import (
    MOST_TRIALS,
    Dimension,
    SpaceFile,
    check_held_out,
    drawn,
    literal,
    read_space_file,
)
from raydpzv.search.trial_plots import search_figure
from raydpzv.search.tune_plan import (
    METRICS,
    OF_NUMBERS,
    SearchPlan,
    Suggestions,
    TrialPlace,
    TunedLine,
    check_limit,
    points_of,
    search_folder,
)
from raydpzv.search.tune_results import (
    FAILED,
    SearchResults,
    choice_columns,
    search_results,
    trial_columns,
)
from raydpzv.search.tuned_comparison import (
    HELD_OUT,
    as_plan,
    best_comparison,
    check_trials,
    tuned_lines,
)
from raydpzv.settings.values import plain_value
from raydpzv.trust import code_words, mark

SEARCHES = ("random", "optuna")
LEARNED_DRAWS = 30
"""Trials that Optuna chooses where no number is given: its first ten are random."""
BEST = "best.toml"
"""The chosen scenario, or the comparison with the chosen settings."""
_MOST_SHOWN = 20
"""Trials that a notebook shows of a search."""


@dataclass(frozen=True)
class Search:
    """A search and its results."""

    plan: SearchPlan
    """Its trials, and how they were chosen."""
    results: SearchResults
    """A row for each trial, and the choices."""
    path: Path
    """Its folder."""
    stopped: bool
    """Has the user stopped it?"""

    @property
    def table(self) -> pa.Table:
        """A row for each trial: its settings, what became of it, its metrics, its ε."""
        return self.results.table()

    @property
    def best(self) -> AnyScenario | str | None:
        """The scenario of the best trial, to run again, or the path of the comparison with the
        chosen settings; None where there is none.
        """
        if self.plan.comparison:
            return str(self.path / BEST) if (self.path / BEST).is_file() else None
        return self.plan.chosen_spec(self.results.best) if self.results.best else None

    @property
    def spent(self) -> list[str]:
        """The ε of the whole search, in sentences: the best trial was chosen by all of them."""
        return list(sentences(self.results.spent))

    def _repr_html_(self) -> str:
        title = f"{len(self.results.rows)} trials by {self.plan.metric}; in {self.path}"
        if self.plan.comparison:
            choices = [choice for choice in self.results.choices if choice]
            found = grid(choice_columns(self.plan), choices)
            return table_html(title, found.rows, found.heads, self.spent)
        ranked = self.results.ranked(self.plan)[:_MOST_SHOWN]
        found = grid(trial_columns(self.plan, ranked), ranked)
        return table_html(title, found.rows, found.heads, [rows_note(self.plan), *self.spent])


@dataclass(frozen=True)
class SearchView:
    """Who watches a search."""

    stop: AbstractContextManager[threading.Event]
    """The block in which an event ends the search."""
    progress: Callable[[SearchPlan], AbstractContextManager[SearchWatch]]
    """Returns who is told while the block runs."""


def tune(
    source: AnyScenario | str,
    space: Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    storage: str | None = None,
    **options: Any,
) -> Search:
    """Search settings of a scenario, or of the methods of a comparison, with Ray Tune
    (docs/tune.md).

    space: a file, or settings to ways to vary them, {"lr": {"loguniform": [1e-3, 1e-1]}, "seed":
    {"grid": [0, 1]}}. out: the folder to write, or to resume. storage: a URI where Tune keeps its
    state and copies of the runs. options: jobs (most trials at a time), address (of the cluster),
    callbacks (those and loggers of Ray Tune), and samples, search, metric, scheduler, grace,
    interval, quantile, epsilon, draw_seed, actors, held_out, soonest. Raises InputError before
    anything is written.
    """
    names = ("jobs", "address", "callbacks")
    options = plain_value(options)
    given = {name: options.pop(name) for name in names if options.get(name) is not None}
    terms, how = SearchTerms(**options), TuneOptions(**given)
    where = Path(space) if isinstance(space, str) else space
    plan, was_wall = planned(source, where, overrides, terms, storage)
    if was_wall:
        warnings.warn(
            'clock.kind = "virtual" in a search; overrides=["clock.kind=wall"] keeps the wall '
            "clock",
            stacklevel=2,
        )

    stop = threading.Event()
    view = SearchView(nullcontext(stop), lambda plan: nullcontext(_CellWatch(plan)))
    with interruptible(stop, f"stopped; the same call continues it in {out}"):
        return carry_out(plan, Path(out), how, view, "raydpzv.tune(...)")


class _CellWatch(SearchWatch):
    """Shows in a notebook how many trials are over."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan, self._line, self._over = plan, CellLine(), set[int]()

    def ended(self, trial: int, reason: str) -> None:
        self._over.add(trial)
        self._line.show(f"{len(self._over)} of {self._plan.size} trials are over", now=True)


def planned(
    source: AnyScenario | str,
    space: Path | Mapping[str, Any],
    changes: Sequence[str],
    terms: SearchTerms,
    storage: str | None = None,
) -> tuple[SearchPlan, bool]:
    """Return the plan of a search, all its trials checked, and whether the scenario's wall clock
    was replaced. Raises SpecError.
    """
    check_limit(terms.epsilon)
    if terms.search not in SEARCHES:
        near = suggest(terms.search, SEARCHES)
        raise SpecError(
            f'--search: wanted {" or ".join(SEARCHES)}, got "{terms.search}". {near}'.rstrip()
        )

    comparison = catalog.comparison(source) if isinstance(source, str) else None
    if comparison is not None:
        file = read_comparison_file(comparison)
        file = file.model_copy(update={"set": (*file.set, *changes)})
        varied = read_space_file(space, catalog.load(file.scenario))
        plan, was_wall = _of_comparison(file, varied, terms), False
    else:
        plan, was_wall = _of_scenario(source, space, changes, terms)
    return replace(plan, place=TrialPlace(terms.actors, storage)), was_wall


def _of_scenario(
    source: AnyScenario | str,
    space: Path | Mapping[str, Any],
    changes: Sequence[str],
    terms: SearchTerms,
) -> tuple[SearchPlan, bool]:
    name = catalog.name_of(source)
    changes, was_wall = _virtual_clock(name, changes)
    base = catalog.load(name, changes)
    file = read_space_file(space, base)
    varied = file.of_scenario(base, changes)

    # before defaults, so that a trial is what `raydpzv run` makes of the same settings
    scenario = overridden(catalog.written(name), changes)
    label = catalog.label_of(name)
    held_out = tuple(terms.held_out or file.held_out)
    plan = _plan(label, [TunedLine(label, scenario)], file, held_out, terms)
    plan = replace(plan, space=varied)

    if terms.search == "optuna":
        return _suggested(plan, varied, terms), was_wall
    points = [(0, settings) for settings in drawn(varied, _draws(varied, terms), terms.draw_seed)]
    trials = points_of(plan, points)
    chosen = scheduling([trial.spec for trial in trials], varied, terms)
    return replace(plan, trials=trials, scheduling=chosen), was_wall


def _suggested(plan: SearchPlan, space: Sequence[Dimension], terms: SearchTerms) -> SearchPlan:
    """Return the plan of a search whose trials Optuna chooses; the ends of its space are
    checked.
    """
    samples = terms.samples or LEARNED_DRAWS
    if samples > MOST_TRIALS:
        raise SpecError(f"--samples: wanted at most {MOST_TRIALS:,} trials, got {samples:,}")
    for dimension in space:
        if dimension.kind == "grid":
            raise SpecError(
                f"{dimension.setting}: wanted a setting that is drawn, since --search optuna "
                "chooses all values, got a grid; make it a choice, or leave out --search"
            )
    if terms.scheduler not in ("none", "asha"):
        raise SpecError(
            f"--search optuna: goes with --scheduler asha or none, not {terms.scheduler}; leave "
            "one of the two out"
        )

    # what Optuna will choose is not known, but it lies between these
    first = {d.setting: d.values[0] for d in space}
    ends = [first | {d.setting: value} for d in space for value in d.values]
    points = [tuple(f"{name}={literal(v)}" for name, v in end.items()) for end in ends]
    trials = points_of(plan, [(0, point) for point in dict.fromkeys(points)])
    chosen = scheduling([trial.spec for trial in trials], space, terms)
    learns = Suggestions(samples, terms.draw_seed)
    return replace(plan, suggestions=learns, scheduling=chosen)


def _of_comparison(file: ComparisonFile, space: SpaceFile, terms: SearchTerms) -> SearchPlan:
    for option, usual, value in (
        ("search", "random", terms.search),
        ("scheduler", "none", terms.scheduler),
    ):
        if value != usual:
            raise SpecError(
                f"--{option} {value}: goes with a scenario; the methods of a comparison are tuned "
                "alike, each by the same number of whole trials: leave it out"
            )

    if space.heads is not None:
        file = file.model_copy(update={"heads": space.heads})
    lines = tuned_lines(file, space)
    held_out = tuple(terms.held_out or space.held_out or HELD_OUT)
    plan = _plan(file.name, [line for line, _ in lines], space, held_out, terms)
    plan = replace(plan, comparison=as_plan(file))

    random = [any(d.kind != "grid" for d in varied) for _, varied in lines]
    points = [
        (place, settings)
        for place, (_, varied) in enumerate(lines)
        # a method with a grid alone has its points once, unless no method is drawn
        for settings in drawn(
            varied,
            1 if any(random) and not random[place] else _draws(varied, terms),
            terms.draw_seed,
        )
    ]

    if len(points) > MOST_TRIALS:
        raise SpecError(
            f"space: wanted at most {MOST_TRIALS:,} trials, got {len(points):,}; give fewer values"
        )
    trials = points_of(plan, points)
    check_trials(file, trials)
    return replace(plan, trials=trials)


def _plan(
    name: str,
    lines: Sequence[TunedLine],
    space: SpaceFile,
    held_out: tuple[str, ...],
    terms: SearchTerms,
) -> SearchPlan:
    """Return a plan without its trials, with the metric that was asked for or the usual one."""
    check_held_out(held_out, "--held-out")
    spec = lines[0].spec(held_out)
    usual = LOSSES[spec.loss].score

    soonest = space.soonest if terms.soonest is None else terms.soonest
    if soonest is not None and terms.scheduler != "none":
        raise SpecError(
            "--soonest: is known at a trial's end; leave out --scheduler, which goes by the metric"
        )
    return SearchPlan(
        name,
        terms.metric or (f"validation_{usual}" if spec.data.validation_fraction else usual),
        tuple(lines),
        epsilon=terms.epsilon,
        held_out=held_out,
        soonest=soonest,
    )


def _draws(space: Sequence[Dimension], terms: SearchTerms) -> int:
    """Return how often random settings are drawn, at each point of the grid."""
    return terms.samples or (DRAWS if any(d.kind != "grid" for d in space) else 1)


def _virtual_clock(scenario: str, changes: Sequence[str]) -> tuple[list[str], bool]:
    """Return settings with the virtual clock, unless they name a clock; and whether the scenario
    has another one.

    Side by side, trials share real time, and staleness would be the machine's.
    """
    named = {item.partition("=")[0].strip() for item in changes}
    wall = catalog.load(scenario, changes).clock.kind == "wall" and "clock.kind" not in named
    return [*changes, *(["clock.kind=virtual"] if wall else [])], wall


def rows_note(plan: SearchPlan) -> str:
    """Return in a sentence that test rows choose the best, "" where other rows do."""
    if plan.metric.startswith("validation_") or plan.held_out:
        return ""
    return f"the best is chosen by {plan.metric} on the test rows"


def carry_out(
    plan: SearchPlan, folder: Path, how: TuneOptions, view: SearchView, command: str
) -> Search:
    """Run the remaining trials of a search; write its tables, picture and best settings.

    command: the command's words. Raises InputError before anything is written.
    """
    _check_metric(plan)

    # the cluster comes first: what does not fit it leaves no folder behind
    with (
        view.stop as stop,
        TUNERS["ray"](plan, how) as run,
        search_folder(folder, plan),
        view.progress(plan) as watch,
    ):
        outcome = run(folder, watch, stop)
        results = search_results(folder, plan, outcome)
        _write(plan, results, folder, command, whole=not outcome.stopped)
    return Search(plan, results, folder, outcome.stopped)


def _check_metric(plan: SearchPlan) -> None:
    """Load a trial's data, to raise their errors before anything is written, and check the
    metric.
    """
    spec = next((trial.spec for trial in plan.started), plan.first_spec)
    experiment = prepare(spec)
    shares, loss = experiment.class_shares(), LOSSES[spec.loss]
    unclassed, name = any(map(math.isnan, shares)), plan.metric.removeprefix("validation_")

    # labels that are no classes have few metrics
    known = [
        *(("rmse", "r2") if loss.score == "rmse" else (loss.score,)),
        *experiment.measures(),
        "loss",
    ]
    if unclassed and name not in known:
        labels = "survival times" if loss.labels == "times" else "these labels"
        use = f"{suggest(name, known)}Use {' or '.join(dict.fromkeys(known))}"
        raise SpecError(f"--metric {plan.metric}: {labels} have none. {use}")

    # classes have most
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


def _write(
    plan: SearchPlan, results: SearchResults, folder: Path, command: str, *, whole: bool
) -> None:
    """Write the tables and the picture, and at the end of the search what was chosen."""
    if not results.rows:
        return

    table = results.table()
    packed = io.BytesIO()
    pa.parquet.write_table(table, packed)
    write_atomically(folder / "trials.parquet", packed.getvalue())
    write_atomically(folder / "trials.csv", as_csv(table))
    if figure := search_figure(plan, results):
        write_atomically(folder / "trials.png", image(figure))

    # a choice among methods that were not tried alike would be none
    failed = any(row["status"] == FAILED for row in results.rows)
    if whole and plan.comparison and all(results.choices) and not failed:
        write_atomically(folder / BEST, best_comparison(plan, results, command).encode())
    if whole and not plan.comparison and results.best is not None:
        write_atomically(folder / BEST, _best_scenario(plan, results, command).encode())
        mark(folder, BEST, code_words(as_tree(results.best.spec)))


def _best_scenario(plan: SearchPlan, results: SearchResults, command: str) -> str:
    """Return the best trial's scenario as TOML text, which `raydpzv run` takes; command: what was
    asked for.
    """
    choice = results.choices[0]
    assert choice is not None
    value, reason = results.row(choice.trial)[plan.metric], choice.reason(plan.metric)
    head = [
        f"Made by: {command}",
        f"{choice.trial}, of {len(results.rows)} trials",
        f"{plan.metric} at the end: {value:.6g}{f'; {reason}' if reason else ''}",
        *sentences(results.spent),
    ]
    return "".join(f"# {line}\n" for line in head) + as_toml(plan.chosen_spec(choice.trial))
