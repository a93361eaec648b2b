"""Work in processes of its own, which have only the benchmark's imports behind them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

Result = TypeVar("Result")


@contextmanager
def helper() -> Iterator[ProcessPoolExecutor]:
    """Give one process, forked from one that has imported the benchmark and done nothing else."""
    context = get_context("forkserver")
    # by name: before Python 3.14 the benchmark's own file is imported in every process anew
    # (CPython issue 126631); numba is imported by the first kernel that is called
    libraries = ["torch", "numba", *(name for name in sys.modules if name.startswith("raydpzv."))]
    context.set_forkserver_preload(libraries)
    with ProcessPoolExecutor(1, context) as process:
        yield process


def in_fresh_process(work: Callable[..., Result], *arguments: object) -> Result:
    """Return work(*arguments) of a process of its own, which ends with it."""
    with helper() as process:
        return process.submit(work, *arguments).result()
