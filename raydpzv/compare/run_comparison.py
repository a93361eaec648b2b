"""A comparison's folder: its plan, one writer at a time, and its runs, each made, resumed, or
started again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout

from raydpzv.compare.plan import Comparison, Planned, read_comparison
from raydpzv.config.paths import locations, unlocated
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import (
    DataError,
    InputError,
    NotRecomputable,
    RaydpzvError,
    StoppedEarly,
    check_count,
    command,
)
from raydpzv.experiment.diagnostics import DIVERGED
from raydpzv.experiment.finalize import Run, RunOptions
from raydpzv.experiment.prepare import Prepared, prepare
from raydpzv.experiment.resuming import continued
from raydpzv.experiment.runner import run_local
from raydpzv.files import (
    LOCK,
    PLAN,
    keep_traceback,
    private_folder,
    refuse_links,
    write_atomically,
)
from raydpzv.limits import cores
from raydpzv.records.callbacks import StatusCallback
from raydpzv.records.environment import DATA_DIGEST
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.secrets_file import OPERATOR, OperatorSecrets, new_key, read_key
from raydpzv.records.store import Rows
from raydpzv.sim.interfaces import Status
from raydpzv.trust import mark, trust_code

RUNS_FOLDER = "runs"
STOPPED = "stopped before its end"
_SPAWN = get_context("spawn")
_LOOK, _LEAVE = 0.1, 5.0
"""Seconds between looks at the processes, and seconds that an idle one gets to leave."""


@contextmanager
def opened(folder: Path, comparison: Comparison) -> Iterator[None]:
    """Lock a comparison's folder while the block runs; make it, or resume the same comparison in
    it.

    The same comparison has the same lines, wherever their data are, and at least the seeds that it
    had; its targets may differ. Raises as `plan_written` does.
    """
    check, words = partial(_check_same, folder, comparison), comparison.code_words
    with plan_written(folder, "comparison", PLAN, comparison.as_toml(), check, words):
        _keep_key(folder)
        yield


@contextmanager
def plan_written(
    folder: Path, kind: str, name: str, plan: str, check: Callable[[], None], words: Sequence[str]
) -> Iterator[None]:
    """Lock the folder of a comparison or search (`kind`) while the block runs; make it, or resume
    in it.

    name, plan: of the plan's file and its text; check: raises InputError if the file has another
    plan. It is also raised for a folder with other contents, or one that another process writes.
    words: those of the plan that name a user's objects.
    """
    try:
        taken = folder.is_dir() and not (folder / name).is_file()
        if taken and any(path.name != LOCK for path in folder.iterdir()):
            raise InputError(
                f"{folder}: holds something else already; choose another --out, or delete it"
            )
        private_folder(folder)
        refuse_links(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise InputError(
            f"{folder}: cannot write the {kind} ({error.strerror or error}); choose another --out"
        ) from None
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"{folder}: another process is writing this {kind}; wait for it, or stop it"
        ) from None
    try:
        if (folder / name).is_file():
            check()
        write_atomically(folder / name, plan.encode())
        mark(folder, name, words)
        yield
    finally:
        lock.release(force=True)


def unfinished(folder: Path, comparison: Comparison) -> list[Planned]:
    """Return the runs to make or to resume."""
    return [p for p in comparison.runs() if not finished(p, folder / RUNS_FOLDER / p.folder)]


def _keep_key(folder: Path) -> None:
    """Write the operator's file of a comparison; its key shows whether the runs are on
    the same data.

    A lost key is copied from a run. Raises DataError if the runs lost it too.
    """
    if (folder / OPERATOR).is_file():
        return
    runs = sorted(path.parent for path in (folder / RUNS_FOLDER).glob("*/environment.json"))
    OperatorSecrets(read_key(runs[0]) if runs else new_key()).write(folder)


def _check_same(folder: Path, comparison: Comparison) -> None:
    former = read_comparison(folder / PLAN)
    if [line.unlocated() for line in former.lines] != [
        line.unlocated() for line in comparison.lines
    ]:
        raise InputError(
            f"{folder}: holds another comparison ({former.name}: other methods or settings); "
            f"choose another --out, or continue that one: {command('resume', folder)}"
        )
    if missing := sorted(set(former.seeds) - set(comparison.seeds)):
        raise InputError(
            f"{folder}: was started with seed {missing[0]} too; name all its seeds, or continue "
            f"with: {command('resume', folder)}"
        )


@dataclass(frozen=True)
class PoolOptions:
    """Where many runs are made: most at a time, and for Ray which cluster to join and whether to
    show its output.
    """

    runner: str = "local"
    jobs: int | None = None
    address: str | None = None
    verbose: bool = False

    def __post_init__(self) -> None:
        check_count("jobs", self.jobs)


def check_ready(comparison: Comparison) -> None:
    """Load every line's data and models once, so that what is wrong with the input shows before the
    first run.

    Raises SpecError and DataError, which name the line.
    """
    for line in comparison.lines:
        try:
            prepare(line.spec)
        except InputError as error:
            raise type(error)(f"{line}: {error}") from None


def check_same_data(folder: Path, comparison: Comparison) -> None:
    """Raise InputError for data that are others than those of the runs so far: a table of both
    would compare nothing, and state ε of rows that are gone.
    """
    done = (p for p in comparison.runs() if finished(p, folder / RUNS_FOLDER / p.folder))
    if (first := next(done, None)) is None:
        return
    path = folder / RUNS_FOLDER / first.folder
    try:
        before = RunFolder.open(path).environment().get(DATA_DIGEST)
        now = prepare(first.spec).fingerprint(read_key(path)).get(DATA_DIGEST)
    except InputError:
        return  # results can be read without data; for a run that is left `check_ready` wants them
    if before != now:
        raise InputError(
            f"{folder}: its data have changed since {first.folder} was made; bring back the data of "
            "before, or choose another --out"
        )


def finished(planned: Planned, folder: Path) -> bool:
    """Return whether a run is over for good: its budget is spent, or it diverged, which it would do
    again.
    """
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

    Wherever its data lie, and whichever engine ran it and however many its rows are where the plan
    leaves that open.
    """
    made, asked = (
        unlocated(as_tree(spec)) for spec in (RunFolder.open(folder).spec(), planned.spec)
    )
    for section, name, left_open in (("model", "engine", "auto"), ("method", "batch", "all")):
        if asked[section].get(name) == left_open:
            asked[section][name] = made[section].get(name)
    if made != asked:
        raise InputError(
            f"{folder}: its scenario.toml is not what the comparison plans there, or the search; "
            "delete the folder to make the run"
        )


def read_made(planned: Planned, folder: Path) -> tuple[Mapping[str, Any], Rows | None, str]:
    """Return a run's summary and rows, {} and None before its end; and why they are not to be
    believed, if so.
    """
    try:
        if not RunFolder(folder).has_summary():
            return {}, None, ""
        check_own(planned, folder)
        found = RunFolder.open(folder)
        return found.summary(), found.rows(), ""
    except (InputError, pa.ArrowException, OSError) as error:
        return {}, None, " ".join(str(error).split())


def run_planned(
    planned: Planned,
    folder: Path,
    options: RunOptions | None = None,
    run: Callable[[Prepared, RunOptions], Run] = run_local,
) -> str:
    """Make one run, or resume it; return why there is no result, "" if there is one.

    options: but for the folder and the name, which are the plan's; run: makes it, in this process
    if none is given. A run that was started is resumed. If it cannot be, since its noise was not
    kept, it starts again, and its folder is set aside. A failure is left in the folder, as of any
    run; without a folder the returned sentence alone says it.
    """
    given = options or RunOptions()
    try:
        experiment, out = _started(planned, folder)
        made = run(experiment, replace(given, out=out, scenario=planned.line.label))
    except StoppedEarly as error:
        return str(error)
    except Exception as error:
        if (folder / "scenario.toml").is_file() and not isinstance(error, InputError):
            keep_traceback(folder)
        line = str(error) if isinstance(error, RaydpzvError) else f"{type(error).__name__}: {error}"
        return " ".join(line.split())
    (folder / "error.log").unlink(missing_ok=True)
    return STOPPED if made.summary["status"] == "stopped" else ""


def _started(planned: Planned, folder: Path) -> tuple[Prepared, Path | RunWriter]:
    if (folder / "scenario.toml").is_file():
        check_own(planned, folder)
        try:
            with trust_code():  # it is the scenario that is planned, word by word
                experiment, opened, _ = continued(folder, locations(as_tree(planned.spec)))
            return experiment, opened
        except NotRecomputable:
            folder.rename(set_aside(folder)[0])
    return prepare(planned.spec), folder


def set_aside(folder: Path) -> tuple[Path, int]:
    """Return where a run that starts again leaves its folder, and how many times it did so
    before.
    """
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
) -> None:
    """Make runs in this process, until all are over or `stop` is set.

    progress: called ten times a second with the status of the run in progress, by its folder's
    name; ended: with each run and why it has no result ("": it has one).
    """
    key = read_key(root)
    for planned in todo:
        if stop.is_set():
            return

        def report(status: Status, name: str = planned.folder) -> None:
            progress({name: status})

        folder = root / RUNS_FOLDER / planned.folder
        options = RunOptions(stop=stop, data_key=key, callbacks=[StatusCallback(report)])
        ended(planned, run_planned(planned, folder, options))


def on_this_machine(options: PoolOptions, specs: Sequence[AnyScenario]) -> Callable[..., None]:
    """Return the function that makes runs: in processes, or one by one where there is one job or a
    GPU to share.
    """
    jobs = options.jobs or cores()
    asks = (share for spec in specs for name, share in spec.resources if name.endswith("_gpus"))
    return (
        one_by_one
        if jobs == 1 or any(share != 0 for share in asks)
        else partial(in_processes, jobs=jobs)
    )


def in_processes(
    todo: Iterable[Planned],
    root: Path,
    *,
    progress: Callable[[Mapping[str, Status]], None],
    ended: Callable[[Planned, str], None],
    stop: threading.Event,
    jobs: int,
) -> None:
    """Make runs as `one_by_one` does, each in one of `jobs` processes, with the bits that it has in
    this one.

    A run whose process dies has no result; the others continue. If this process dies, they stop.
    """
    queue, at_work, stopped = list(todo), dict[str, Status](), False
    idle, busy = list[_Worker](), dict[Any, tuple[_Worker, Planned]]()
    try:
        while queue or busy:
            if stop.is_set() and not stopped:
                stopped = True
                queue.clear()
                for worker, _ in busy.values():
                    worker.stop()
            while queue and len(busy) < jobs:
                worker, planned = idle.pop() if idle else _Worker(root), queue.pop(0)
                worker.pipe.send(planned)
                busy[worker.pipe], at_work[planned.folder] = (worker, planned), Status()
            for pipe in wait(list(busy), _LOOK):
                worker, planned = busy[pipe]
                said = worker.said()
                if isinstance(said, Status):
                    at_work[planned.folder] = said
                    continue
                del busy[pipe], at_work[planned.folder]
                if worker.process.is_alive():
                    idle.append(worker)
                ended(planned, said)
            progress(dict(at_work))
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.end()


class _Worker:
    """A process that makes one run after the other.

    pipe: takes what is planned, None to stop; gives statuses, then the reason.
    """

    def __init__(self, root: Path) -> None:
        self.pipe, its_end = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(its_end, root), daemon=True)
        with _without_ctrl_c():  # the user's Ctrl-C is for this process, which tells the others
            self.process.start()
        its_end.close()

    def said(self) -> Any:
        """Return the run's next status, or why it has no result ("": it has one)."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return (
                f"its process ended with status {self.process.exitcode}, perhaps out of memory; try"
                " fewer --jobs"
            )

    def stop(self) -> None:
        """Stop the run in progress, cleanly."""
        with suppress(OSError):  # of a process that has died `said` returns why
            self.pipe.send(None)

    def end(self) -> None:
        """End the process; what is still at work after some seconds is lost but for its last
        checkpoint.
        """
        self.pipe.close()
        self.process.join(_LEAVE)
        self.process.kill()
        self.process.join()


def _work(pipe: Any, root: Path) -> None:
    """Make the runs that come through a pipe, until None comes or it closes; then stop the one in
    progress.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # other processes work on the other cores
    stop, todo = threading.Event(), SimpleQueue[Planned | None]()

    def hear() -> None:
        try:
            with suppress(EOFError, OSError):  # the other end is closed, or its process has died
                while (planned := pipe.recv()) is not None:
                    todo.put(planned)
        finally:  # also if what came cannot be read
            stop.set()
            todo.put(None)

    def say(said: Status | str) -> None:
        with suppress(OSError):  # nobody listens: `hear` stops the run
            pipe.send(said)

    threading.Thread(target=hear, daemon=True).start()
    for planned in iter(todo.get, None):
        one_by_one(
            [planned],
            root,
            progress=lambda at_work: say(*at_work.values()),
            ended=lambda planned, reason: say(reason),
            stop=stop,
        )


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Hold back SIGINT in this thread, and in every process that starts in the block for good."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
