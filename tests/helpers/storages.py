"""Storages that record what is done to them, or fail; and what a kill after each act leaves."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.fs

from raydpzv.storage.filesystem import StorageFolder
from raydpzv.storage.uploader import FolderUploader, StorageTimes

QUICK = StorageTimes(lease=0.4, commit=0.02, retrying=0.3, first=0.01)
"""Times for tests."""
FRESH_NOISE = "no other machine can continue it if this one is lost"
"""What a run with noise of the system warns of when it starts with a storage."""


class Act(NamedTuple):
    """A file that was written, or deleted (data: None)."""

    name: str
    data: bytes | None


class RecordedStorage(StorageFolder):
    """A storage on a disk that records all writes and deletions; before: called before each of
    them.
    """

    def __init__(self, folder: Path, before: Callable[[Act], Any] = lambda act: None) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), str(folder), folder.as_uri())
        self.acts: list[Act] = []
        self.before = before

    def write(self, name: str, data: bytes) -> None:
        self._act(Act(name, data))
        super().write(name, data)

    def delete(self, name: str) -> None:
        self._act(Act(name, None))
        super().delete(name)

    def _act(self, act: Act) -> None:
        self.before(act)
        self.acts.append(act)


def full_disk(times: float = float("inf"), name: str = "by-") -> Callable[[Act], None]:
    """Return what fails the first writes of these names as a full disk does."""
    left = [times]

    def fail(act: Act) -> None:
        if act.name.startswith(name) and left[0] > 0:
            left[0] -= 1
            raise OSError(28, "No space left on device")

    return fail


def leave_as_killed(uploader: FolderUploader) -> None:
    """Leave the storage as a kill of its writer leaves it now, whatever the folder comes to hold
    from here on.
    """
    with uploader.paused():  # private, since no public way ends an uploader without its last upload
        vars(uploader).update(_write=_nothing, _finish=_nothing)
        vars(uploader._lease).update(release=_nothing)


def _nothing(**how: Any) -> None:
    """Do what the dead do."""


def left_after(acts: Sequence[Act], folder: Path, *, torn: Act | None = None) -> StorageFolder:
    """Return a storage as a kill after these acts leaves it; torn: the next one, of which half was
    done.
    """
    storage = StorageFolder(pyarrow.fs.LocalFileSystem(), str(folder), folder.as_uri())
    for act in acts:
        if act.data is None:
            storage.delete(act.name)
        else:
            storage.write(act.name, act.data)
    if torn is not None and torn.data is not None:
        storage.write(torn.name, torn.data[: len(torn.data) // 2])
    return storage
