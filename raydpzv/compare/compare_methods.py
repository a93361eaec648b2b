"""A whole comparison, from its arguments to its tables: the work of `raydpzv.compare(...)`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from raydpzv.compare.file import asked, resolved
from raydpzv.compare.plan import Comparison, Planned, check_alike, read_comparison
from raydpzv.compare.results import RUNS_FOLDER, collect
from raydpzv.compare.run_comparison import (
    PoolOptions,
    check_ready,
    check_same_data,
    opened,
    unfinished,
)
from raydpzv.config import catalog
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.finalize import Run, folder_of
from raydpzv.files import PLAN, is_comparison, refuse_links
from raydpzv.foreign import handle
from raydpzv.interrupts import interruptible
from raydpzv.notebook import CellLine
from raydpzv.registry import RUN_POOLS
from raydpzv.report.comparison_table import Compared
from raydpzv.settings.values import plain_value
from raydpzv.sim.interfaces import Status

if TYPE_CHECKING:  # and with it matplotlib
    from raydpzv.report.comparison_page import About


class CompareOptions(TypedDict, total=False):
    """Arguments of `compare` beside its methods and its folder."""

    seeds: int | Sequence[int] | None
    epsilons: Sequence[float | str] | None
    targets: Sequence[float] | None
    heads: str | None
    jobs: int | None
    address: str | None
    progress: Callable[[Mapping[str, Status]], None]
    stop: threading.Event


@dataclass(frozen=True)
class PoolWatch:
    """An observer of many runs, which may stop them.

    progress: called ten times a second with the status of each run at work, by its folder's name;
    ended: with each run and why it has no result ("": it has one).
    """

    progress: Callable[[Mapping[str, Status]], None]
    ended: Callable[[Planned, str], None]
    stop: threading.Event


Watched = Callable[[list[Planned]], AbstractContextManager[PoolWatch]]
"""The runs to make to their observer while the block runs."""


def compare(
    source: AnyScenario | str | Sequence[AnyScenario | str],
    out: str | Path,
    *,
    methods: Sequence[Any] = (),
    overrides: Sequence[str] = (),
    runner: str = "local",
    **options: Unpack[CompareOptions],
) -> Compared:
    """Compare methods x values of ε x seeds on one split and budget.

    source: a comparison by name or path, or scenarios: the first gives data, split, model and
    budget, all give their
    methods. methods: further ones, by name or descriptor. seeds, epsilons ("none" adds no noise),
    targets, heads: left out, the comparison file's, else 3 seeds, no noise, 0.8 and 0.9. out: the
    folder to write, or to resume. runner: "local" (one run after the other in this process) or
    "ray" (side by side; jobs: most at a time; address: of the cluster). progress: called ten times
    a second with the status of the runs at work. Raises InputError before anything is written.
    """
    if unknown := set(options) - set(CompareOptions.__annotations__):
        raise TypeError(f"compare() got an unexpected keyword argument '{min(unknown)}'")
    asked_for: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
    if not asked_for:
        raise SpecError("source: wanted a comparison or scenarios, got an empty list")
    names = [catalog.name_of(one) for one in asked_for]
    check_alike([one for one in asked_for if not isinstance(one, str)])
    listed = [method if isinstance(method, str) else handle(method) for method in methods]
    given = dict[str, Any](**options)
    replaced = {
        name: plain_value(given.get(name)) for name in ("seeds", "epsilons", "targets", "heads")
    }
    changes = {
        name: value if isinstance(value, int | str) else tuple(value)
        for name, value in replaced.items()
        if value is not None
    }
    comparison = resolved(asked(names, listed, changes), overrides)
    jobs = (
        1 if runner == "local" else plain_value(options.get("jobs"))
    )  # a script without a guard cannot start processes
    pool, stop = (
        PoolOptions(runner, jobs, options.get("address")),
        options.get("stop") or threading.Event(),
    )

    @contextmanager
    def watched(todo: list[Planned]) -> Iterator[PoolWatch]:
        line, over = CellLine(), 0

        def progress(at_work: Mapping[str, Status]) -> None:
            if told := options.get("progress"):
                told(at_work)
            updates = ", ".join(
                f"{name}: {status.updates:,} updates" for name, status in at_work.items()
            )
            line.show(f"{over} of {len(todo)} runs over; {updates}")

        def ended(planned: Planned, reason: str) -> None:
            nonlocal over
            over += 1
            line.show(f"{over} of {len(todo)} runs over", now=over == len(todo))

        yield PoolWatch(progress, ended, stop)

    with interruptible(
        None if "stop" in options else stop, f"stopped; the same call continues it in {out}"
    ):
        return carry_out(comparison, Path(out), pool, watched)


def carry_out(
    comparison: Comparison, folder: Path, pool: PoolOptions, watched: Watched
) -> Compared:
    """Make the remaining runs of a comparison and write its tables. Raises InputError before
    anything is written.
    """
    make = RUN_POOLS[pool.runner](pool, [line.spec for line in comparison.lines])
    reasons = dict[str, str]()
    new = not is_comparison(folder)
    if new:
        check_ready(comparison)
    with opened(folder, comparison):
        check_same_data(folder, comparison)
        todo = unfinished(folder, comparison)
        if todo and not new:
            check_ready(comparison)
        with watched(todo) as watch:

            def ended(planned: Planned, reason: str) -> None:
                reasons.update({planned.folder: reason} if reason else {})
                watch.ended(planned, reason)

            if todo:  # else nothing needs a Ray
                make(todo, folder, progress=watch.progress, ended=ended, stop=watch.stop)
        compared = collect(comparison, folder, reasons)
        write(comparison, folder, compared)
    return compared


def write(
    comparison: Comparison,
    folder: Path,
    compared: Compared,
    out: Path | None = None,
    form: str = "png",
) -> Path:
    """Write tables, pictures and the page of a comparison, by default into its folder; return the
    page.
    """
    from raydpzv.report.comparison_page import write_comparison

    return write_comparison(out or folder, compared, about(comparison, folder, out or folder), form)


def about(comparison: Comparison, folder: Path, start: Path) -> About:
    """Return what the page of a comparison in `folder` says of its plan; start: where the page
    is.
    """
    from raydpzv.report.comparison_page import About

    plan = (folder / PLAN).read_text(encoding="utf-8")
    found = {
        run.folder: folder / RUNS_FOLDER / run.folder / "report.html" for run in comparison.runs()
    }
    pages = {
        run: Path(os.path.relpath(page, start)).as_posix()
        for run, page in found.items()
        if page.is_file()
    }
    return About(
        comparison.title or comparison.name, plan, comparison.targets, comparison.heads, pages
    )


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    out: str | Path | None = None,
    *,
    moved: Sequence[str] = (),
    form: str = "png",
) -> Path:
    """Write the page and pictures of runs, or of one comparison that may still be running; return
    the page.

    Of a comparison, the page of each finished run that has none is written too, into the run's
    folder.

    runs: finished runs or folders. out: the folder of a report of several. moved: where data are
    now, see
    `RunFolder.open`. form: of the pictures, "png", "pdf" or "svg". Raises InputError.
    """
    from raydpzv.report.page import write_page, write_report

    listed: list[Any] = list(runs) if isinstance(runs, list | tuple) else [runs]
    folders = [folder_of(run, "report") for run in listed]
    place = None if out is None else Path(out)
    if compared := [folder for folder in folders if is_comparison(folder)]:
        if len(folders) > 1:
            raise InputError(f"{compared[0]}: is a comparison; it is reported alone")
        plan = read_comparison(folders[0] / PLAN, moved)
        refuse_links(folders[0])  # the pages of its runs are written into their folders
        found = collect(plan, folders[0])
        for run in found.runs.to_pylist():
            made = folders[0] / "runs" / run["run"]
            if run["status"] == "done" and not (made / "report.html").is_file():
                write_page([made], moved=moved)
        return write(plan, folders[0], found, place, form)
    return write_report(folders, place, moved=moved, form=form)
