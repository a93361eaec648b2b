"""A search's folder: its plan, its trials' runs and how far they came, what its scheduler got, one
writer at a time.

search.toml       the plan
runs/0003         the run folder of trial 3
decisions.jsonl   a line for each report that a scheduler decided by, and whether the trial was to
stop
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from raydpzv.compare.run_comparison import RUNS_FOLDER, check_own, finished, plan_written
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import DataError, InputError, command
from raydpzv.experiment.prepare import unrecorded
from raydpzv.files import SEARCH, no_link, write_atomically
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_plan import SearchPlan, Trial, read_search
from raydpzv.trust import mark

_DECISIONS = "decisions.jsonl"


@dataclass(frozen=True)
class Decision:
    """What a scheduler got of a trial after so many updates (None: no result), and whether it
    stopped it there.
    """

    trial: int
    updates: int
    value: float | None
    stop: bool


def search_begun(folder: Path, plan: SearchPlan) -> AbstractContextManager[None]:
    """Hold a search's folder while the block runs: made now, or with what is there of the same
    search.
    """

    def check() -> None:
        if not read_search(folder / SEARCH).same_as(plan):
            raise InputError(
                f"{folder}: holds another search (other trials or settings); choose another --out, "
                f"or continue that one: {command('resume', folder)}"
            )

    return plan_written(folder, "search", SEARCH, plan.as_toml(), check, plan.code_words)


def keep_plan(folder: Path, plan: SearchPlan) -> None:
    """Write down a plan that has grown, in a folder that is held, before its new trials begin."""
    write_atomically(folder / SEARCH, plan.as_toml().encode())
    mark(folder, SEARCH, plan.code_words)


def run_path(folder: Path, trial: Trial) -> Path:
    """Return the run folder of a trial."""
    return folder / RUNS_FOLDER / trial.planned().folder


def trials_left(folder: Path, plan: SearchPlan) -> list[Trial]:
    """Return the trials to run or to resume.

    One that the scheduler has stopped is over once its summary is there.
    """
    cut = cut_short(folder)
    return [
        trial
        for trial in plan.started()
        if not (
            finished(trial.planned(), run_path(folder, trial))
            or (trial.number in cut and _has_own_summary(folder, trial))
        )
    ]


def _has_own_summary(folder: Path, trial: Trial) -> bool:
    path = run_path(folder, trial)
    if not RunFolder(path).has_summary():
        return False
    check_own(trial.planned(), path)
    return True


def cut_short(folder: Path) -> dict[int, int]:
    """Return which trials the scheduler has stopped, and after how many updates."""
    return {d.trial: d.updates for d in decisions(folder) if d.stop}


def decisions(folder: Path) -> list[Decision]:
    """Return what the scheduler got so far, in order. Raises DataError if the file is damaged.

    A last line that was cut off when the writer was killed was never acted upon, and is left out.
    """
    path = folder / _DECISIONS
    lines = path.read_text().split("\n") if path.is_file() else [""]
    try:
        return [Decision(**json.loads(line)) for line in lines[:-1]]
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: a line is no decision of a scheduler ({error}); start a new search"
        ) from None


def add_decisions(folder: Path, made: Sequence[Decision]) -> None:
    """Write down decisions that are one: a kill leaves all of them or none."""
    whole = _lines([*decisions(folder), *made])
    write_atomically(folder / _DECISIONS, whole.encode())


def _lines(made: Sequence[Decision]) -> str:
    return "".join(f"{json.dumps(asdict(d))}\n" for d in made)


@contextmanager
def decision_log(folder: Path) -> Iterator[Callable[[Decision], object]]:
    """Yield what writes each decision down before it is acted upon."""
    path = folder / _DECISIONS
    write_atomically(path, _lines(decisions(folder)).encode())
    with open(
        path, "a", buffering=1, opener=no_link(0o666)
    ) as file:  # a line is there once it is written
        yield lambda decision: file.write(_lines([decision]))


def without_checkpoint(spec: AnyScenario) -> str:
    """Return why runs of a scenario leave no checkpoint to resume from, or nothing."""
    if spec.clock.kind == "wall":
        return "real time cannot stand still"
    if what := unrecorded(spec):
        return f"{what} comes from the operating system and is not kept"
    return ""


def ranked(values: Mapping[int, float], *, higher: bool) -> list[int]:
    """Return trials, the best first; values: metrics by trial, NaN where there is none, which is
    worse than all others.

    Of equal ones that of the lower number is first.
    """
    return sorted(
        values, key=lambda n: (math.isnan(values[n]), -values[n] if higher else values[n], n)
    )


def has_reached(trial: Trial, path: Path, until: int | None) -> bool:
    """Return whether a run has made so many updates (None: reached its end), or is over before."""
    if finished(trial.planned(), path):
        return True
    if until is None or not RunFolder.begun(path):
        return False
    folder, checkpoint = RunFolder(path), RunFolder(path).checkpoint()
    if checkpoint is None or checkpoint.round < until:
        return False
    return until in folder.rows()["evaluation"]["round"].to_pylist()


def is_paused_at(trial: Trial, path: Path, until: int | None) -> bool:
    """Return whether a run is paused after so many updates, and no process has anything left to
    write of it.

    A kill may have come before the summary that says so.
    """
    if not has_reached(trial, path, until):
        return False
    if until is None or finished(trial.planned(), path):
        return True
    folder = RunFolder(path)
    return folder.has_summary() and bool(folder.summary()["updates"] >= until)


def metric_at(path: Path, metric: str, updates: int) -> float:
    """Return a metric of a run at its first evaluation after so many updates, NaN where it has
    none; see `curve`.
    """
    return curve(path, metric).get(updates, math.nan)


def curve(path: Path, metric: str) -> dict[int, float]:
    """Return a metric of a run by updates, each at the first evaluation after so many.

    NaN where the loss is no number: such a run has diverged, whatever it predicts.
    """
    part = "validation" if metric.startswith("validation_") else "test"
    name = metric.removeprefix("validation_")
    kind = {"accuracy": "evaluation", "loss": "evaluation", "roc_auc": "auc", "pr_auc": "auc"}.get(
        name, name
    )
    rows = RunFolder(path).rows()

    def first(kind: str, name: str) -> dict[int, float]:
        if kind not in rows:  # a measure of its own name
            found = (r for r in reversed(rows["measure"].to_pylist()) if r["name"] == name)
            return {r["round"]: r["value"] for r in found if r["part"] == part}
        return {r["round"]: r[name] for r in reversed(rows[kind].to_pylist()) if r["part"] == part}

    losses = first("evaluation", "loss")
    return {
        updates: value if math.isfinite(losses.get(updates, math.nan)) else math.nan
        for updates, value in first(kind, name).items()
    }


def figure(value: float | None) -> str:
    """Return a metric in words."""
    return "no result" if value is None else f"{value:.4g}"
