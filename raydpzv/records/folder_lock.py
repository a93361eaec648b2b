"""Whether somebody writes a folder: whoever does has its lock, as long as the process lives."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
"""In the folder of a run or a search."""


def is_written(folder: Path) -> bool | None:
    """Tell whether another process writes a folder; None: it cannot be locked here, so that nobody can tell."""
    lock = folder / LOCK
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return None
