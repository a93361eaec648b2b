"""Read a folder that a run writes meanwhile, in a state in which a kill might have left it.

Some files refer to others: the summary to models and rows, the checkpoint to rows and ledger. These
are read first, so that the files they refer to hold at least as much. All files are replaced whole
or grow, but for checkpoints: their two files take turns, so their digest is checked after each
read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from raydpzv.errors import DataError, RunError
from raydpzv.records.checkpoint import CHECKPOINT, before, log_of
from raydpzv.records.write_ahead_log import TAIL, LogExtent

LINK = "storage.json"
"""In a folder on a disk: the storage that it is a copy of. It is not uploaded."""
_NOT_UPLOADED = (LINK, before(Path(CHECKPOINT)).name)
_FIRST = ("summary.json", CHECKPOINT, "scenario.toml")
_LAST = ("decisions.jsonl", "population.jsonl", "search.toml")
"""Files of a search that are written before the runs that follow from them, so they are read after
all runs.
"""
_HEADER, _LEDGER, _ROWS = "header.json", "ledger", "rows"
_TRIES = 100
"""Reads of a checkpoint that is overwritten meanwhile."""

Unchanged = Callable[[str, os.stat_result], bool]


class Moving(Exception):
    """A file was deleted before it was read: the folder has to be listed anew."""


def snapshot(root: Path, unchanged: Unchanged) -> Iterator[tuple[str, bytes | None]]:
    """Yield the relative path and content of all files of a folder, in an order that makes them a
    state of it.

    unchanged: whether a file's path and stat show that it still holds what was yielded before; its
    content is None then. Raises Moving if a file was deleted: drop what was yielded.
    """
    reader = _Reader(root, unchanged)
    listed = list(_files(root, ""))
    runs = [
        path.rpartition("/")[0] for path in listed if path.rpartition("/")[2] == "scenario.toml"
    ]
    below = tuple(f"{_under(run, name)}/" for run in runs for name in (TAIL, _ROWS, _LEDGER))
    heads = [path for path in listed if not path.startswith(below)] if below else listed
    last = [path for path in heads if path in _LAST]
    for run in runs:  # a copy without the last checkpoint would be of a run without any
        path = _under(run, CHECKPOINT)
        if before(root / path).is_file() and not (root / path).is_file():
            raise Moving(path)
    yield from map(reader.read, sorted(set(heads) - set(last), key=_rank))
    for run in runs:
        yield from _log(root, run, reader)
        yield from map(reader.read, sorted(_files(root, _under(run, _ROWS))))
    for run in runs:
        yield from _ledger(root, _under(run, _LEDGER), reader)
    yield from map(reader.read, last)


class _Reader:
    def __init__(self, root: Path, unchanged: Unchanged) -> None:
        self._root, self._unchanged = root, unchanged
        self.logs: dict[str, LogExtent | None] = {}
        """By run, the write-ahead log that its checkpoint names."""

    def read(self, path: str) -> tuple[str, bytes | None]:
        """Return a file; a checkpoint is complete."""
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
    """Return a checkpoint's bytes and the log it names. Read again if it is overwritten
    meanwhile.
    """
    for left in reversed(range(_TRIES)):
        data = path.read_bytes()
        try:
            return data, log_of(data, path)
        except DataError:
            if not left:
                raise
    raise RunError(f"{path}: changed each time that it was read")


def _log(root: Path, run: str, reader: _Reader) -> Iterator[tuple[str, bytes | None]]:
    """Yield the log that a run's checkpoint names; raise Moving where it holds later rows
    already.
    """
    if log := reader.logs.get(run):
        path, data = reader.read(_under(run, log.path))
        if data is not None and not log.holds(data):
            raise Moving(path)
        yield path, data


def _ledger(root: Path, folder: str, reader: _Reader) -> Iterator[tuple[str, bytes | None]]:
    """Yield a ledger as it is when its last segment is read; skip one that has no header yet.

    A segment that another one follows is full. It is read after the following one is seen, or once
    more.
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
    """Yield the paths of all files below a folder, but for hidden ones: locks and unfinished
    files.
    """
    try:
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        path = _under(folder, entry.name)
        if entry.name.startswith(".") or entry.name in _NOT_UPLOADED:
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
