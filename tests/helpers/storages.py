"""Storages that keep account of what is done to them, or fail; and what a kill after each act leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.fs

from raydpzv.storage.filesystem import StorageFolder
from raydpzv.storage.uploader import FolderUploader, StorageTimes

QUICK = StorageTimes(lease=0.4, commit=0.02, retrying=0.3, first=0.01)
"""Times for tests: of a lease, commits and trying again."""


class Act(NamedTuple):
    """A file that was written, or deleted (data: None)."""

    name: str
    data: bytes | None


class KeptPlace(StorageFolder):
    """A storage on a disk that keeps account of all that is done to it; before: called before each act."""

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


def leave_as_killed(mirror: FolderUploader) -> None:
    """Leave the storage as a kill of its writer leaves it now, whatever the folder comes to hold from here on."""
    with mirror.still():
        vars(mirror).update(_commit=_nothing, _last=_nothing)
        vars(mirror._lease).update(release=_nothing)


def _nothing(**how: Any) -> None:
    """Do what the dead do."""


def left_after(acts: Sequence[Act], folder: Path, *, torn: Act | None = None) -> StorageFolder:
    """Return a storage as a kill after these acts leaves it; torn: the next one, of which half was done."""
    place = StorageFolder(pyarrow.fs.LocalFileSystem(), str(folder), folder.as_uri())
    for act in acts:
        if act.data is None:
            place.delete(act.name)
        else:
            place.write(act.name, act.data)
    if torn is not None and torn.data is not None:
        place.write(torn.name, torn.data[: len(torn.data) // 2])
    return place
