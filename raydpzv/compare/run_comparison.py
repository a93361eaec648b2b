"""The runs of a comparison, each in a folder of its own: made, resumed, or started again."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raydpzv.compare.plan import Comparison, Planned
from raydpzv.config.paths import locations, unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import DataError, InputError, NotRecomputable, RaydpzvError, StoppedEarly
from raydpzv.experiment.diagnostics import DIVERGED
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import run_local
from raydpzv.records.callbacks import StatusCallback
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.secrets_file import read_key
from raydpzv.sim.interfaces import Status

PLAN, RUNS_FOLDER = "comparison.toml", "runs"
STOPPED = "stopped before its end"


@dataclass(frozen=True)
class PoolOptions:
    """Where many runs are made: most at a time, and for Ray which cluster to join and whether to show its output."""

    runner: str = "local"
    jobs: int | None = None
    address: str | None = None
    verbose: bool = False


def check_ready(comparison: Comparison) -> None:
    """Load every line's data and models once, so that what is wrong with the input shows before the first run.

    Raises SpecError and DataError, which name the line.
    """
    for line in comparison.lines:
        try:
            prepare(line.spec)
        except InputError as error:
            raise type(error)(f"{line}: {error}") from None


def finished(planned: Planned, folder: Path) -> bool:
    """Return whether a run is over for good: its budget is spent, or it diverged, which it would do again."""
    try:
        summary = RunFolder.open(folder).summary()
        check_own(planned, folder)
    except (DataError, InputError):
        return False  # missing or wrong: `run_planned` says so
    return summary.get("status") == "done" or (
        summary.get("status") == "failed" and summary.get("failure") == DIVERGED
    )


def check_own(planned: Planned, folder: Path) -> None:
    """Raise InputError if the folder holds a run of another scenario than the one planned.

    Wherever its data lie, and whichever engine ran it and however many its rows are where the plan leaves that open.
    """
    made, asked = (unlocated(as_tree(spec)) for spec in (RunFolder.open(folder).spec(), planned.spec))
    for section, name, left_open in (("model", "engine", "auto"), ("method", "batch", "all")):
        if asked[section].get(name) == left_open:
            asked[section][name] = made[section].get(name)
    if made != asked:
        raise InputError(
            f"{folder}: its scenario.toml is not what the comparison plans there, or the search; delete the folder to "
            "make the run"
        )


def run_planned(
    planned: Planned,
    folder: Path,
    options: RunOptions | None = None,
    run: Callable[[Prepared, RunOptions], Run] = run_local,
) -> str:
    """Make one run, or resume it; return why there is no result, "" if there is one.

    options: but for the folder and the name, which are the plan's; run: makes it, in this process if none is given.
    A run that was started is resumed. If it cannot be, since its noise was not kept, it starts again, and its folder is
    set aside. A failure is left in the folder, as of any run; without a folder the returned sentence alone says it.
    """
    given = options or RunOptions()
    try:
        experiment, out = _started(planned, folder, in_place=given.until is not None)
        made = run(experiment, replace(given, out=out, scenario=planned.line.label))
    except StoppedEarly as error:
        return str(error)
    except Exception as error:
        if (folder / "scenario.toml").is_file() and not isinstance(error, InputError):
            (folder / "error.log").write_text(traceback.format_exc())
        line = str(error) if isinstance(error, RaydpzvError) else f"{type(error).__name__}: {error}"
        return " ".join(line.split())
    (folder / "error.log").unlink(missing_ok=True)
    return STOPPED if made.summary["status"] == "stopped" else ""


def _started(planned: Planned, folder: Path, *, in_place: bool) -> tuple[Prepared, Path | RunWriter]:
    if (folder / "scenario.toml").is_file():
        check_own(planned, folder)
        try:
            experiment, opened, _ = continued(folder, locations(as_tree(planned.spec)), in_place=in_place)
            return experiment, opened
        except NotRecomputable:
            folder.rename(set_aside(folder)[0])
    return prepare(planned.spec), folder


def set_aside(folder: Path) -> tuple[Path, int]:
    """Return where a run that starts again leaves its folder, and how many times it did so before."""
    count = 0
    while (path := folder.with_name(f"{folder.name}.set-aside-{count + 1}")).exists():
        count += 1
    return path, count


def one_by_one(
    todo: Iterable[Planned],
    root: Path,
    *,
    progress: Callable[[Mapping[str, Status]], None],
    ended: Callable[[Planned, str], None],
    stop: threading.Event,
    until: int | None = None,
) -> None:
    """Make runs in this process, until all are over or `stop` is set.

    progress: called ten times a second with the status of the run in progress, by its folder's name; ended: with each
    run and why it has no result ("": it has one). until: see `RunOptions`.
    """
    key = read_key(root)
    for planned in todo:
        if stop.is_set():
            return

        def report(status: Status, name: str = planned.folder) -> None:
            progress({name: status})

        folder = root / RUNS_FOLDER / planned.folder
        options = RunOptions(stop=stop, data_key=key, callbacks=[StatusCallback(report)], until=until)
        ended(planned, run_planned(planned, folder, options))


def in_this_process(options: PoolOptions, specs: Sequence[AnyScenario]) -> Callable[..., None]:
    """Return the function that makes runs one by one; as `raydpzv.registry.RUN_POOLS` finds it."""
    return one_by_one
