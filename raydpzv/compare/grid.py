"""Grids: every method of a comparison tuned alike, on validation rows and on other seeds than are
reported.

A grid file is a comparison file (`raydpzv.compare.file`) with values to choose from. Its runs are a
comparison of its own, a line for each method, ε and combination of values; what is chosen is
written as a comparison file.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomli_w
from pydantic import Field

from raydpzv.compare.file import (
    ComparisonFile,
    MethodEntry,
    Overrides,
    Seeds,
    gives_sigma,
    method_of,
    read_file,
    resolved,
)
from raydpzv.compare.plan import Comparison, by_seed
from raydpzv.compare.results import FAILED
from raydpzv.config import catalog
from raydpzv.config.scenario import method_fields
from raydpzv.errors import RunError, SpecError
from raydpzv.registry import LOSSES, METHODS
from raydpzv.report.comparison_lines import NOT_RUN, calibrated
from raydpzv.report.comparison_text import AIM
from raydpzv.report.table import Column

MOST_LINES = 5_000
MADE = "# Made by: raydpzv tune"
"""The first words of a comparison file that was written here."""
Values = Annotated[tuple[float | int | str, ...], Field(strict=False, min_length=1)]


class GridEntry(MethodEntry):
    """One method of a grid file: a method, and values of its own to choose from."""

    grid: dict[str, Values] = Field(default_factory=dict)
    """By setting, values of this method alone; they take the place of the file's for the same
    setting.
    """
    private_grid: dict[str, Values] = Field(default_factory=dict)
    """More of them, where noise is added; they take the place of `grid`'s for the same setting."""


class GridFile(ComparisonFile):
    """A comparison whose methods' settings are still to be chosen; `seeds`: those that the choice
    is made on.
    """

    report_seeds: Seeds = 5
    """Seeds of the comparison that is written: how many from 0, or which; none of `seeds`."""
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the training rows that is held back in every run; the choice is made by the accuracy
    on these rows.
    """
    held_out: Overrides = ()
    """Settings of [data] and [split] that make other rows the test rows of these runs, as
    "key=value"; the choice is made by the accuracy on them, and no share is held back. Use it if
    you hold out whole clients."""
    soonest: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Choose what reaches this accuracy on them in the fewest simulated seconds; left out: the
    highest at the end.
    """
    grid: dict[str, Values] = Field(default_factory=dict)
    """By setting of [method] or [privacy], the values to choose from, for all methods that have the
    setting.
    """
    methods: Annotated[tuple[GridEntry, ...], Field(strict=False, min_length=1)]
    """The methods."""

    def criterion(self) -> str:
        """Return what the choice is made by, in words."""
        rows = f"on {100 * self.validation_fraction:.0f} % of the training rows, held back"
        rows = f"on the rows that {' '.join(self.held_out)} holds out" if self.held_out else rows
        if self.soonest is None:
            return f"the accuracy at the end {rows}"
        return f"the simulated seconds to accuracy {self.soonest:g} {rows}"


@dataclass(frozen=True)
class Point:
    """A combination of values, "key=value" each, for one method at one ε.

    entry: place of the method in the file; method: its label; label: of its line in the runs.
    """

    entry: int
    method: str
    epsilon: float | None
    values: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Choice:
    """What was chosen for one method at one ε.

    accuracy: median validation accuracy of the seeds' last evaluations; seconds: median simulated
    time to `soonest`, infinite if half of the seeds did not get there, NaN if it was not asked for;
    points: how many combinations it was chosen from; edges: settings whose chosen value is the
    first or the last of several, so that a better one may lie outside.
    """

    point: Point
    accuracy: float
    seconds: float
    points: int
    edges: tuple[str, ...]

    def said(self) -> str:
        """Return by what it was chosen."""
        time = "" if math.isnan(self.seconds) else f", {self.seconds:.3g} s to the target"
        return f"{self.accuracy:.3f}{time}"


CHOICES: tuple[Column[Choice], ...] = (
    Column("method", lambda c: c.point.method, align="left"),
    Column(AIM, lambda c: c.point.epsilon, calibrated),
    Column("chosen", lambda c: " ".join(c.point.values), align="left"),
    Column("validation", Choice.said),
    Column("of", lambda c: c.points),
    Column("at the edge of its grid", lambda c: " ".join(c.edges), align="left"),
)


def read_grid(path: Path) -> GridFile:
    """Read a grid file. Raises SpecError."""
    file = read_file(path, "the grid file", GridFile, GridEntry)
    if file.multiplier is not None:
        raise SpecError(
            "multiplier: goes with comparisons; a grid's choices are made at values of ε: give "
            "epsilons"
        )
    if wrong := [item for item in file.held_out if not item.startswith(("data.", "split."))]:
        raise SpecError(
            f"held_out: wanted settings of [data] and [split], got {wrong[0]}; set it in `set`"
        )
    both = sorted(set(by_seed(file.seeds)) & set(by_seed(file.report_seeds)))
    if both:
        raise SpecError(
            f"seeds: {both[0]} is among report_seeds too; what is chosen on a seed cannot be "
            "reported on it"
        )
    return file


def points(file: GridFile) -> list[Point]:
    """Return every combination of every method at every ε, in the file's order. Raises
    SpecError.
    """
    base = catalog.load(file.scenario)
    if (score := LOSSES[base.loss].score) != "accuracy":
        raise SpecError(
            f"scenario: a grid chooses by validation accuracy, and {file.scenario} is judged by "
            f"{score}; use raydpzv search with --metric validation_{score}"
        )
    found = []
    for place, entry in enumerate(file.methods):
        method = method_of(entry, base)
        for epsilon in _epsilons(file, entry, method):
            for values in _combinations(file, entry, method, noisy=epsilon is not None):
                said = " ".join(item.partition(".")[2] for item in values)
                label = entry.label or entry.scenario or method
                found.append(Point(place, label, epsilon, values, f"{label}, {said or 'as set'}"))
    if len(found) > MOST_LINES:
        raise SpecError(
            f"grid: wanted at most {MOST_LINES:,} combinations in all, got {len(found):,}; give "
            "fewer values"
        )
    return found


def grid_comparison(file: GridFile) -> Comparison:
    """Return the runs that the choice is made on: a line for each point, other rows held back than
    are reported.

    Raises SpecError, also where methods' heads may come out different and `heads` does not say why.
    """
    entries = []
    for point in points(file):
        entry = file.methods[point.entry]
        values = (
            {"set": (*entry.set, *point.values)}
            if point.epsilon is None
            else {"private": (*entry.private, *point.values)}
        )
        own = (
            entry.model_dump()
            | {"label": point.label, "epsilons": (_word(point.epsilon),)}
            | values
        )
        entries.append(
            MethodEntry(**{k: v for k, v in own.items() if k in MethodEntry.model_fields})
        )
    held_back = file.held_out or (f"data.validation_fraction={file.validation_fraction!r}",)
    tree = {k: v for k, v in dict(file).items() if k in ComparisonFile.model_fields}
    tree |= {"methods": tuple(entries), "set": (*file.set, *held_back)}
    return replace(resolved(ComparisonFile(**tree)), note=file.note)


def choose(
    file: GridFile, runs: Iterable[Mapping[str, Any]], curves: Iterable[Mapping[str, Any]]
) -> list[Choice]:
    """Return the best point for each method and ε, of equals the first; see `GridFile.soonest`.

    runs, curves: rows of the comparison's tables. A run that diverged has accuracy 0 and reached
    nothing. Raises RunError if a run was not made, or failed otherwise.
    """
    reached: dict[tuple[str, float | None, int], list[_Scored]] = {}
    score = "accuracy" if file.held_out else "validation_accuracy"
    for row in curves:
        key = (row["label"], row["epsilon"], row["seed"])
        found = _Scored(row["update"], row["time"], row[score] or 0.0)
        reached.setdefault(key, []).append(found)
    scores: dict[tuple[str, float | None], list[tuple[float, float]]] = {}
    for row in runs:
        if row["outcome"] in (NOT_RUN, FAILED):
            raise RunError(
                f"nothing can be chosen yet: runs/{row['run']} has no result ({row['reason']}); "
                "the same command with --out continues"
            )
        curve = (
            reached.get((row["label"], row["epsilon"], row["seed"]), [])
            if row["status"] == "done"
            else []
        )
        scores.setdefault((row["label"], row["epsilon"]), []).append(_score(curve, file.soonest))
    tried: dict[tuple[int, float | None], list[tuple[Point, float, float]]] = {}
    for point in points(file):
        accuracies, seconds = zip(*scores[point.label, point.epsilon], strict=True)
        median = (statistics.median(accuracies), statistics.median(seconds))
        tried.setdefault((point.entry, point.epsilon), []).append((point, *median))
    return [_choice(found) for found in tried.values()]


def chosen_file(file: GridFile, choices: Sequence[Choice], command: str) -> str:
    """Return a comparison file with what was chosen, as TOML text; `command`: what `tune` was asked
    for.
    """
    own = {
        k: v
        for k, v in file.model_dump(exclude_defaults=True).items()
        if k in ComparisonFile.model_fields
    }
    own |= {
        "seeds": file.report_seeds,
        "methods": [_method_entry(file, choice) for choice in choices],
    }
    own.pop("name", None)
    seeds = ", ".join(str(seed) for seed in by_seed(file.seeds))
    head = [
        f"Chosen by {file.criterion()}, median of seeds {seeds}.",
        *(_remark(file.methods[choice.point.entry], choice) for choice in choices),
    ]
    lines = (f"{MADE} {command}", *(f"# {line}" for line in head))
    # in one line each: a line break would begin a setting
    return "".join(f"{' '.join(line.split())}\n" for line in lines) + tomli_w.dumps(own)


class _Scored(NamedTuple):
    """An evaluation of the validation rows; after an update, since in some runs no time passes."""

    update: int
    time: float
    accuracy: float


def _score(curve: Sequence[_Scored], soonest: float | None) -> tuple[float, float]:
    """Return the last validation accuracy (0 without one) and when `soonest` was reached (NaN if it
    is not asked).
    """
    last = max(curve, default=_Scored(0, 0.0, 0.0)).accuracy
    if soonest is None:
        return last, math.nan
    return last, min((point.time for point in curve if point.accuracy >= soonest), default=math.inf)


def _choice(tried: Sequence[tuple[Point, float, float]]) -> Choice:
    point, accuracy, seconds = min(
        tried, key=lambda one: (0.0 if math.isnan(one[2]) else one[2], -one[1])
    )
    edges = []
    for place, item in enumerate(point.values):
        values = list(dict.fromkeys(other.values[place] for other, *_ in tried))
        if len(values) > 1 and item in (values[0], values[-1]):
            edges.append(item)
    return Choice(point, accuracy, seconds, len(tried), tuple(edges))


def _method_entry(file: GridFile, choice: Choice) -> dict[str, Any]:
    entry, point = file.methods[choice.point.entry], choice.point
    own = entry.model_dump(exclude_defaults=True, exclude={"grid", "private_grid"})
    key = "set" if point.epsilon is None else "private"
    return own | {key: [*own.get(key, ()), *point.values], "epsilons": [_word(point.epsilon)]}


def _remark(entry: GridEntry, choice: Choice) -> str:
    epsilon = choice.point.epsilon
    plain = "with noise of its own" if gives_sigma(entry) else "without noise"
    where = plain if epsilon is None else f"at ε={epsilon:g}"
    edge = f"; at the edge of its grid: {', '.join(choice.edges)}" if choice.edges else ""
    return f"{choice.point.method} {where}: {choice.said()}, best of {choice.points}{edge}"


def _epsilons(file: GridFile, entry: GridEntry, method: str) -> Iterator[float | None]:
    for value in ("none",) if METHODS[method].control else file.epsilons:
        if entry.epsilons is None or value in entry.epsilons:
            yield None if isinstance(value, str) else float(value)


def _combinations(
    file: GridFile, entry: GridEntry, method: str, *, noisy: bool
) -> Iterator[tuple[str, ...]]:
    grid = {k: v for k, v in file.grid.items() if k not in entry.grid} | entry.grid
    grid |= entry.private_grid if noisy else {}
    has = {f"method.{field}" for field in method_fields(METHODS[method].config)}
    of_all = {k for k in file.grid if k not in has and not (noisy and k.startswith("privacy."))}
    grid = {k: v for k, v in grid.items() if k not in of_all or k in entry.grid}
    for values in itertools.product(*grid.values()):
        yield tuple(f"{key}={value}" for key, value in zip(grid, values, strict=True))


def _word(epsilon: float | None) -> float | str:
    return "none" if epsilon is None else epsilon
