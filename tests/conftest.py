"""Shared by all tests: small scenarios, one Ray for each process that needs one, and who runs
what.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from typer.main import get_command

import scenarios
from actors.cluster import set_defaults
from raydpzv.config.scenario import VerticalScenario
from raydpzv.records.run_writer import RunWriter
from tests.helpers import programs, sharing
from tests.helpers.kernels import compile_kernels
from tests.helpers.numbered_rows import begun

# nothing that is imported or collected is garbage: looking for some would be a seventh of the
# collection's time
gc.disable()

# before anything imports ray: as in every run, and no token file in HOME, no cluster of somebody
# else's
set_defaults()
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.pop("RAY_ADDRESS", None)

# Ray's workers are nice to others by default: beside another process of tests they would get what
# that one leaves
os.environ.setdefault("RAY_worker_niceness", "0")

# a job in a shell's background ignores Ctrl-C, and so would all that it starts
signal.signal(signal.SIGINT, signal.default_int_handler)

# as in every run; with two threads small forward passes are many times slower on a busy machine
torch.set_num_threads(1)

# a developer's runs look for new examples, CI's are all alike: a failure there is the commit's, not
# the draw's
settings.register_profile("explore", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "explore")

SMALL = ("privacy.noise=seeded", "budget.updates=120", "evaluate.every=40")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels once, before xdist's workers start; start what forks programs."""
    is_worker = hasattr(session.config, "workerinput")
    is_alone = session.config.getoption("dist", "no") == "no"
    if not is_worker and not session.config.option.collectonly:
        compile_kernels()
    if is_worker or is_alone:
        programs.start_server()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, as in `make test`: tests that share a Ray in one process, the others
    file by file.
    """
    return sharing.scheduler(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=lambda item: sharing.turn(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays to the end: it would look through all modules and
    tests again and again, a third of the CPU time of short tests.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def small() -> Callable[..., VerticalScenario]:
    """digits_dpzv cut to 120 updates with reproducible noise; further overrides as arguments.

    Checkpoints, which part the rows, are taken at a stop alone, not when this machine is slow.
    """

    def make(*overrides: str) -> VerticalScenario:
        return scenarios.load("digits_dpzv", [*SMALL, "record.checkpoint=1000", *overrides])

    return make


@pytest.fixture(scope="session", autouse=True)
def _one_job() -> Iterator[None]:
    """Make a comparison's runs in this process where no test asks for more: another one imports for
    seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raydpzv.compare.run_comparison.cores", lambda: 1)
        # the heap stays frozen from the collection on; a run would thaw it
        patch.setattr("raydpzv.experiment.runner.frozen_heap", nullcontext)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> Iterator[None]:
    """Build the command line once, and not for each command that a test calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunWriter]:
    """The folder of a run that has no rows yet."""
    with begun(tmp_path) as folder:
        yield folder


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made and not turned into pixels: for tests of words and of files."""
    from tests.helpers.report_views import without_pixels

    without_pixels(monkeypatch)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Callable[[], None]]:
    """One local Ray for all tests of this process; call it to end that one and start another."""
    from actors.cluster import connected

    with ExitStack() as stack:

        def start() -> None:
            stack.close()
            stack.enter_context(connected("local", num_cpus=2, num_gpus=0, reuse=True))

        start()
        yield start
