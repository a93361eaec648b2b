"""A search's folder: its plan, its trials' runs, what was reported to its scheduler, one writer at a time.

search.toml       the plan
runs/0003         the run folder of trial 3
decisions.jsonl   a line for each report that a scheduler decided by, and whether the trial was to stop
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from raydpzv.compare.folder import plan_written
from raydpzv.compare.run_comparison import RUNS_FOLDER, check_own, finished
from raydpzv.errors import DataError, InputError
from raydpzv.files import SEARCH, write_atomically
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.search_plan import SearchPlan, Trial, read_search

_DECISIONS = "decisions.jsonl"


@dataclass(frozen=True)
class Decision:
    """What a scheduler got of a trial after so many updates (None: no result), and whether it stopped it there."""

    trial: int
    updates: int
    value: float | None
    stop: bool


def search_begun(folder: Path, plan: SearchPlan) -> AbstractContextManager[None]:
    """Hold a search's folder while the block runs: made now, or with what is there of the same search."""

    def check() -> None:
        if not read_search(folder / SEARCH).same_as(plan):
            raise InputError(
                f"{folder}: holds another search (other trials or settings); choose another --out, or continue that "
                f"one: raydpzv resume {folder}"
            )

    return plan_written(folder, "search", SEARCH, plan.as_toml(), check)


def keep_plan(folder: Path, plan: SearchPlan) -> None:
    """Write down a plan that has grown, in a folder that is held, before its new trials begin."""
    write_atomically(folder / SEARCH, plan.as_toml().encode())


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


class DecisionLog:
    """Writes each decision down before it is acted upon. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _DECISIONS

    def __enter__(self) -> DecisionLog:
        write_atomically(self._path, _lines(decisions(self._path.parent)).encode())
        self._file = self._path.open("a")
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()

    def add(self, decision: Decision) -> None:
        """Write one down."""
        self._file.write(_lines([decision]))
        self._file.flush()
