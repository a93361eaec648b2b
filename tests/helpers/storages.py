"""Storages whose every change is seen or fails, and copies without a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from raydpzv.storage.filesystem import StorageFolder
from raydpzv.storage.run_copy import RunCopy

FRESH_NOISE = "no other machine can continue it if this one is lost"
"""What a run with noise of the system warns of when it starts with a storage."""


class AtOnce(Executor):
    """Does its work where it is given, so that each checkpoint is copied."""

    def __init__(self, workers: int) -> None:
        pass

    def submit(self, work: Any, /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*given, **named))
        except Exception as error:
            done.set_exception(error)
        return done


def copy_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let runs wait for each copy, and try the last one again at once."""
    patch.setattr("raydpzv.storage.run_copy.ThreadPoolExecutor", AtOnce)
    patch.setattr("raydpzv.storage.run_copy._WAITS", (0.0,))


def before_each_change(patch: pytest.MonkeyPatch, act: Callable[[str], Any]) -> None:
    """Call this with the name of each file of a storage before it is written or deleted."""
    for name in ("write", "delete"):
        patch.setattr(StorageFolder, name, _seen(getattr(StorageFolder, name), act))


def _seen(real: Any, act: Callable[[str], Any]) -> Any:
    def changed(place: StorageFolder, file: str, *given: Any) -> Any:
        act(file)
        return real(place, file, *given)

    return changed


def full_disk(name: str) -> Callable[[str], None]:
    """Return what fails the changes of files with such names as a full disk does."""

    def fail(file: str) -> None:
        if file.startswith(name):
            raise OSError(28, "No space left on device")

    return fail


def leave_as_killed(patch: pytest.MonkeyPatch) -> None:
    """Copy nothing from here on, as if the process had been killed."""
    patch.setattr(RunCopy, "checkpointed", lambda copy: None)
    patch.setattr(RunCopy, "end", lambda copy: None)
