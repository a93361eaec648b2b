"""Work in processes of its own, which have only the benchmark's imports behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

Result = TypeVar("Result")


@contextmanager
def helper() -> Iterator[ProcessPoolExecutor]:
    """Give one process, forked from one that has imported the benchmark and done nothing else."""
    with ProcessPoolExecutor(1, get_context("forkserver")) as process:
        yield process


def in_fresh_process(work: Callable[..., Result], *arguments: object) -> Result:
    """Return work(*arguments) of a process of its own, which ends with it."""
    with helper() as process:
        return process.submit(work, *arguments).result()
