"""The compiled kernels as everybody calls them: numba is imported and a kernel compiled or loaded
when first called.

Compiling takes seconds of CPU, loading what is compiled milliseconds. So the first process on a
machine compiles under a lock in the cache's folder, and every other process waits and loads. What a
run compiles is thereby what its rule (law of the directions, momentum) calls, and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

_TIMEOUT = 120.0
"""Seconds to wait for another process that compiles; then this one compiles as well, which harms
nothing.
"""


class FirstCalls(NamedTuple):
    """What first calls of kernels took in a process: how many were compiled here, and seconds in
    which one was made ready, compiled or loaded, or waited for another process.
    """

    compiled: int = 0
    seconds: float = 0.0

    def since(self, before: FirstCalls) -> FirstCalls:
        """Return what was added since then."""
        return FirstCalls(self.compiled - before.compiled, self.seconds - before.seconds)

    def beside(self, other: FirstCalls) -> FirstCalls:
        """Return what two processes did side by side: one waits while the other compiles."""
        return FirstCalls(self.compiled + other.compiled, max(self.seconds, other.seconds))


class _Stopwatch:
    """Counts what first calls take; of threads that make some at the same time the time counts
    once.
    """

    def __init__(self) -> None:
        self._lock, self._under_way, self._began = threading.Lock(), 0, 0.0
        self.found = FirstCalls()

    @contextmanager
    def runs(self) -> Iterator[None]:
        """Take the time of the block."""
        with self._lock:
            self._began = self._began if self._under_way else time.monotonic()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                if not self._under_way:
                    seconds = self.found.seconds + time.monotonic() - self._began
                    self.found = self.found._replace(seconds=seconds)

    def count(self) -> None:
        """Count a kernel that was compiled."""
        with self._lock:
            self.found = self.found._replace(compiled=self.found.compiled + 1)


_stopwatch = _Stopwatch()
_to_tell: list[Callable[[], None]] = []


@contextmanager
def announce_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` before the first kernel that this process compiles in the block, which takes
    seconds.
    """
    _to_tell.append(tell)
    try:
        yield
    finally:
        if tell in _to_tell:
            _to_tell.remove(tell)


def _compiling() -> None:
    while _to_tell:
        _to_tell.pop()()


def first_calls() -> FirstCalls:
    """Return what first calls of kernels took in this process until now."""
    return _stopwatch.found


class Kernel:
    """A compiled function of a module, whose docstring says what it does; many threads may call
    it.
    """

    def __init__(self, name: str, module: str = "raydpzv.zo.numba_kernel") -> None:
        self._name, self._from = name, module
        self._function: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        if self._function is None:
            self._function = _prepared(self._from, self._name, arguments)
        return self._function(*arguments)


def _prepared(module: str, name: str, arguments: tuple[Any, ...]) -> Any:
    """Return this kernel of a module, ready for such arguments."""
    with _stopwatch.runs():
        found = getattr(import_module(module), name)
        from raydpzv.zo import kernel_cache

        with _one_process_at_a_time(kernel_cache.folder_of(module, name)):
            if kernel_cache.prepare(module, name, arguments, _compiling):
                _stopwatch.count()
        return found


@contextmanager
def _one_process_at_a_time(folder: Path | None) -> Iterator[None]:
    """Hold the folder's lock. None (nothing is kept): every process compiles for itself, and
    waiting gains nothing.
    """
    if folder is None:
        yield
        return
    lock = FileLock(folder / "raydpzv-kernels.lock")
    try:
        lock.acquire(timeout=_TIMEOUT)
    except (Timeout, OSError):  # the other is slow or stopped, or this file system has no locks
        yield
        return
    try:
        yield
    finally:
        lock.release()


add_both_ways = Kernel("add_both_ways")
add_direction = Kernel("add_direction")
add_scaled = Kernel("add_scaled")
add_signs = Kernel("add_signs")
squared_norm = Kernel("squared_norm")
subtract_directions = Kernel("subtract_directions")
subtract_signs = Kernel("subtract_signs")
subtract_products = Kernel("subtract_products")
