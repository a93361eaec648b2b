"""What the system lets a process have, and which errors say that it was too little."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from raydpzv.errors import InputError

_ROOM = ("failed to map segment", "cannot allocate memory", "can't start new thread", "bad_alloc")
"""What loaders, threads and C++ say where there is no room for them; lower case."""


_LEAST_ROOM = 5 * 2**28
"""Bytes of addresses below which the libraries of a run abort without a word; it maps more than it
uses.
"""

_ONE_FREE: ContextVar[bool] = ContextVar("one_thread_free", default=False)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_threads() -> int:
    """Return how many threads may work side by side: one a core, at most OMP_NUM_THREADS, which Ray
    sets in workers.
    """
    if _ONE_FREE.get():
        return 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), max(1, int(asked))) if asked.isdecimal() else cores()


@contextmanager
def one_thread_free() -> Iterator[None]:
    """Let runs that start in the block do all work in the thread that asks for it, in its order."""
    token = _ONE_FREE.set(True)
    try:
        yield
    finally:
        _ONE_FREE.reset(token)


def require_room() -> None:
    """Raise InputError where a run's libraries would not find room to be loaded."""
    room = soft_limit("AS")
    if room is not None and room < _LEAST_ROOM:
        raise InputError(
            f"wanted at least {_LEAST_ROOM / 2**30:g} GiB of addresses for a run, got a limit of "
            f"{room / 2**30:.3g}: too little memory; raise it (ulimit -v unlimited)"
        )


def shortage(error: BaseException) -> str | None:
    """Return in one line which limit an error ran into, and what to do; None: it ran into none."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            f"too many open files{_at_most('NOFILE', 1, 'files')}; raise the limit (ulimit -n "
            f"4096), or ask for fewer actors ({_short(error)})"
        )
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _lacks_room(error):
        return (
            "wanted a run that fits into memory, got one that does "
            f"not{_at_most('AS', 2**30, 'GiB of addresses')}; make data, model, batch or budget "
            f"smaller, or raise the limit (ulimit -v) ({_short(error)})"
        )
    return None


def _lacks_room(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, ImportError | RuntimeError | OSError) and any(
        words in text for words in _ROOM
    )


def _short(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:200]


def _at_most(name: str, unit: int, what: str) -> str:
    limit = soft_limit(name)
    return "" if limit is None else f" (this process may have {limit / unit:.4g} {what})"


def soft_limit(name: str) -> int | None:
    """Return a limit of this process, NOFILE or AS; None where there is none."""
    if sys.platform == "win32":
        return None
    import resource

    found: int = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
    return None if found == resource.RLIM_INFINITY else found


def raise_open_files(wanted: int) -> int | None:
    """Let this process have so many open files, as far as it may; return how many it may have,
    None: any number.
    """
    found = soft_limit("NOFILE")
    if found is None or found >= wanted:
        return found
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
