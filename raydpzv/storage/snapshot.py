"""What a folder holds at one moment, read while others write it: a state in which a kill might have left it.

Files of a run stand for others: its summary for models and rows, its checkpoint for rows and ledger. These are read
first, so that what they stand for is there, or more of it. All files are replaced whole, or grow; but for checkpoints,
whose files take turns and which are checked once they are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from raydpzv.errors import DataError, RunError
from raydpzv.records.checkpoint import CHECKPOINT, before, log_of
from raydpzv.records.write_ahead_log import TAIL, LogExtent

LINK = "storage.json"
"""In a folder on a disk: of which storage it is a copy. It stays there."""
_NOT_BROUGHT = (LINK, before(Path(CHECKPOINT)).name)
_FIRST = ("summary.json", CHECKPOINT, "scenario.toml")
_LAST = ("decisions.jsonl", "population.jsonl", "search.toml")
"""Of a search: written before what follows from them, so that all runs are read before."""
_ROWS = ("rows", "rows.next", "rows.old")
_HEADER, _LEDGER = "header.json", "ledger"
_TRIES = 100
"""Times that a file is read anew which was replaced meanwhile."""

Read = tuple[str, bytes]
"""A file's path from the folder, and its content."""


class Moving(Exception):
    """A file went while it was to be read: the folder has to be looked at anew."""


def snapshot(
    root: Path, unchanged: Callable[[str, os.stat_result], bool]
) -> Iterator[tuple[str, bytes | None]]:
    """Yield all files of a folder, in an order that makes them a state of it; None for one that has not changed.

    unchanged: tells by a file's path and stat that what was yielded before is what it still holds. Raises Moving where
    a file has gone: what was yielded is to be dropped then.
    """
    reader = _Reader(root, unchanged)
    listed = list(_files(root, ""))
    runs = [path.rpartition("/")[0] for path in listed if path.rpartition("/")[2] == "scenario.toml"]
    below = tuple(f"{_under(run, name)}/" for run in runs for name in (TAIL, *_ROWS, _LEDGER))
    heads = [path for path in listed if not path.startswith(below)] if below else listed
    last = [path for path in heads if path in _LAST]
    for run in runs:
        _require_checkpoint(root, run)
    yield from map(reader.read, sorted(set(heads) - set(last), key=_rank))
    for run in runs:
        yield from _tail(root, run, reader)
        for name in _ROWS:
            yield from map(reader.read, sorted(_files(root, _under(run, name))))
    for run in runs:
        yield from _ledger(root, _under(run, _LEDGER), reader)
    yield from map(reader.read, last)


class _Reader:
    def __init__(self, root: Path, unchanged: Callable[[str, os.stat_result], bool]) -> None:
        self._root, self._unchanged = root, unchanged
        self.logs: dict[str, LogExtent | None] = {}
        """Of each run whose checkpoint was read, the log that this tells of."""

    def read(self, path: str) -> tuple[str, bytes | None]:
        """Return a file; of a checkpoint one that is whole."""
        whole = self._root / path
        try:
            known = self._unchanged(path, whole.stat())
            if whole.name == CHECKPOINT:
                data, self.logs[path.rpartition("/")[0]] = _checkpoint(whole)
            elif not known:
                data = whole.read_bytes()
        except FileNotFoundError:
            raise Moving(path) from None
        return path, None if known else data


def _checkpoint(path: Path) -> tuple[bytes, LogExtent | None]:
    """Return a checkpoint's bytes, read anew where they were written over meanwhile, and of which log it tells."""
    for last in reversed(range(_TRIES)):
        data = path.read_bytes()
        try:
            return data, log_of(data, path)
        except DataError:
            if not last:
                raise
    raise RunError(f"{path}: changed each time that it was read")


def _require_checkpoint(root: Path, run: str) -> None:
    """Raise Moving where a run's last checkpoint is missing: without it a state of the run would be one without any."""
    last = root / _under(run, CHECKPOINT)
    if before(last).is_file() and not last.is_file():
        raise Moving(_under(run, CHECKPOINT))


def _tail(root: Path, run: str, reader: _Reader) -> Iterator[tuple[str, bytes | None]]:
    """Yield the rows that a run's checkpoint alone tells of; raise Moving where those of later ones are there now."""
    if log := reader.logs.get(run):
        path, data = reader.read(_under(run, log.path))
        if data is not None and not log.holds(data):
            raise Moving(path)
        yield path, data


def _ledger(root: Path, folder: str, reader: _Reader) -> Iterator[tuple[str, bytes | None]]:
    """Yield a ledger as it is when its last segment is read; one without a header is not yet begun.

    A segment that another follows is full: it is read after that is known, or once more.
    """
    if not (root / folder / _HEADER).is_file():
        return
    yield reader.read(f"{folder}/{_HEADER}")
    yield from map(reader.read, sorted(_files(root, f"{folder}/snapshots")))
    if (root / folder / "truncate").is_file():
        raise Moving(folder)
    number = 0
    while True:
        path, following = (f"{folder}/segment-{n:05d}.arrow" for n in (number, number + 1))
        followed = (root / following).is_file()
        found = reader.read(path)
        if not followed and (root / following).is_file():
            continue
        yield found
        if not followed:
            return
        number += 1


def _files(root: Path, folder: str) -> Iterator[str]:
    """Yield the paths of all files below a folder, but for hidden ones: locks, and what is being written."""
    try:
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        path = _under(folder, entry.name)
        if entry.name.startswith(".") or path.rpartition("/")[2] in _NOT_BROUGHT:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(root, path)
        elif entry.is_file():
            yield path


def _rank(path: str) -> tuple[int, str]:
    name = path.rpartition("/")[2]
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST)), path


def _under(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
