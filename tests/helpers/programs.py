"""Programs and benchmarks in processes of their own, which need not import libraries: they are
forked from one that has imported some.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import forkserver, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from numba.core import config

ROOT = Path(__file__).parents[2]
INFINITE = ["--set", "budget.updates=10000000", "--set", "record.flush=0.1"]
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "numba",
        "torch",
        "pyarrow.compute",
        "pyarrow.parquet",
        "pydantic",
        "rich.progress",
        "scipy.stats",
        "typer",
    ]
)


def start_server() -> None:
    """Start what forks programs: a process has one such server, and a benchmark that asked first
    would load more.
    """
    forkserver.ensure_running()


@dataclass(frozen=True)
class Kill:
    """When a program kills itself (kill -9): at its first upload at which `count` files of the
    folder match.

    after: of so many updates; from then on it takes its time, so that files can come. Names are as
    of Path.glob.
    """

    folder: Path
    pattern: str = ""
    count: int = 1
    after: int = 0

    def watch(self) -> None:
        """Look for the moment in every run of this process."""
        from raydpzv.sim.server_loop import ServerLoop

        serve = ServerLoop.serve

        def watched(loop: ServerLoop, *given: Any) -> Any:
            orders = serve(loop, *given)
            if loop.updates >= self.after:
                if not self.pattern or len(list(self.folder.glob(self.pattern))) >= self.count:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.02 if self.after else 0.0)
            return orders

        ServerLoop.serve = watched  # type: ignore[method-assign]


class Forked:
    """A running `python ARGUMENTS`, used as one of `subprocess`: of a process that has imported
    libraries, nothing of ours, and has called nothing of them.

    Not for what is said of imports, or of the number of threads that a library reads from the
    environment.
    kill: when it kills itself.
    """

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str] = os.environ,
        kill: Kill | None = None,
    ) -> None:
        self._said = TemporaryDirectory()
        self._files = [Path(self._said.name) / name for name in ("stdout", "stderr")]
        given = (arguments, self._files, dict(environment), kill)
        self._process = _CONTEXT.Process(target=_work, args=given)
        self._process.start()

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Wait for its end; return what it printed, and its complaints."""
        self._process.join(timeout)
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            self._process.join()
        with self._said:
            out, err = (file.read_text() for file in self._files)
        return out, err

    @property
    def returncode(self) -> int | None:
        return self.poll()


def _work(
    arguments: list[str], files: list[Path], environment: dict[str, str], kill: Kill | None
) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    config.reload_config()  # numba was imported under another environment
    if kill:
        kill.watch()
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = ModuleType("__main__")
    sys.modules |= {"__main__": main, "__mp_main__": main}
    if kind == "-c":
        code, *rest = rest
    else:
        code, main.__file__ = Path(kind).read_text(), kind
        sys.path.insert(0, str(Path(kind).parent))
    sys.argv = [kind, *rest]
    exec(compile(code, kind, "exec"), main.__dict__)


def python(
    *arguments: str, cwd: Path = ROOT, timeout: float = 250, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that is not forked: for what is said of imports, or is read when
    Python starts.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def python_said(*arguments: str, cwd: Path = ROOT, **environment: str) -> str:
    """Return what it printed until its end, which was a good one."""
    done = python(*arguments, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def said(process: Forked) -> str:
    """Return what a process printed until its end, which was a good one."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def ended(process: Forked) -> tuple[int | None, str, str]:
    """Return how a process ended, what it printed, and its complaints."""
    out, err = process.communicate()
    return process.returncode, out, err


def killed(arguments: list[str], kill: Kill) -> None:
    """Run a program until it kills itself."""
    process = Forked(arguments, kill=kill)
    complaints = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, complaints


def start(folder, *arguments, **environment):
    """Start a run without end and return its process when the first releases are on disk."""
    command = ["-m", "scenarios", "run", "digits_dpzv", *INFINITE, "--out", str(folder), *arguments]
    process = Forked(command, {**os.environ, **environment})
    while not list(folder.glob("rows/release/part-*.parquet")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    return process
