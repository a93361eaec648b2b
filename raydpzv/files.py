"""Files and bytes: atomic writes, JSON as it is written here, parameters, digests."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import platform
import stat
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from filelock import FileLock, Timeout

from raydpzv.errors import DataError, InputError

if TYPE_CHECKING:  # the command line starts without it
    import numpy as np


_MOST_FACTS = 1 << 26
PRIVATE = 0o600
"""The mode of files that hold secrets, or numbers before noise."""


def write_atomically(
    path: Path, data: bytes | memoryview, fsync: bool = False, mode: int = 0o666
) -> None:
    """Write a file so that a reader sees either the old content or the new; with `fsync` also after
    a power loss.

    mode: who may read and write it, as far as the process's umask lets them. A symbolic link in its
    place is replaced, and not followed.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _new(scratch, mode) as file:
            file.write(data)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    if fsync:
        sync_folder(path.parent)


def read_small(path: Path, most: int = _MOST_FACTS) -> bytes:
    """Return the content of a file of settings or facts.

    Raises OSError for what is no file, such as a pipe that never ends, and for more than `most`
    bytes.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"wanted at most {most:,} bytes, got {found.st_size:,}")
    return path.read_bytes()


def require_files(folder: Path) -> None:
    """Raise DataError if there is a pipe, socket or device below a folder, whose reader would wait
    without end.
    """
    # a run at work may delete a folder meanwhile; of one that is closed its reader complains
    with suppress(FileNotFoundError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                require_files(Path(entry.path))
            elif not entry.is_file() and not entry.is_dir() and os.path.exists(entry.path):
                raise DataError(f"{entry.path}: is no file (a pipe or a device); delete it")


def _new(scratch: Path, mode: int) -> BinaryIO:
    """Open a file that is not there: one of a killed process, or a link in its place, is deleted."""
    try:
        return open(scratch, "xb", opener=no_link(mode))
    except FileExistsError:
        scratch.unlink()
        return open(scratch, "xb", opener=no_link(mode))


def no_link(mode: int = PRIVATE) -> Callable[[str, int], int]:
    """Return what opens a file for `open`: made with this mode, and no symbolic link."""
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)


def appended(path: Path, newline: str | None = None) -> TextIO:
    """Open a log to append to, which its owner alone may read."""
    return open(path, "a", newline=newline, opener=no_link())


def private_folder(path: Path) -> None:
    """Make a folder that its owner alone may enter; so becomes one that is there and is empty."""
    if not path.is_dir():
        path.mkdir(0o700, parents=True, exist_ok=True)
    elif not any(path.iterdir()):
        with suppress(PermissionError):  # it is another's
            path.chmod(0o700)


def inner_folder(path: Path) -> Path:
    """Make a folder inside of one that is written, and return it. Raises InputError for a link."""
    if path.is_symlink():
        raise _link(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def keep_traceback(folder: Path) -> Path:
    """Write the traceback of the error in hand to a run's error.log, and return the file."""
    path = folder / "error.log"
    write_atomically(path, traceback.format_exc().encode(), mode=PRIVATE)
    return path


def refuse_links(folder: Path) -> None:
    """Raise InputError for a folder that is to be written and has a symbolic link in it."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(place) / name).is_symlink():
                raise _link(path)


def _link(path: Path) -> InputError:
    return InputError(
        f"{path}: is a symbolic link, and nothing in a folder of runs is written through one; put "
        "what it names in its place"
    )


def sync_folder(folder: Path) -> None:
    """Make renames and deletions in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def as_json(value: Any) -> str:
    """Return indented JSON. NaN becomes null and infinity the word, since JSON has neither."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_number(value: Any) -> float:
    """Return a number that `as_json` wrote."""
    if value is None:
        return math.nan
    return math.inf if value == "infinity" else float(value)


def json_line(value: Any) -> str:
    """Return the same in one line, for files to which lines are added."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else "infinity"
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def write_npz(path: Path, models: Mapping[str, np.ndarray]) -> None:
    """Write parameters by party ("client 0" as client_0) to one file; InputError if it cannot be
    written.
    """
    import numpy as np

    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a file; choose another name for the models")
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name.replace(" ", "_"): values for name, values in models.items()}
    np.savez(buffer, **arrays)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise InputError(f"{path}: cannot write the models ({error.strerror or error})") from None


def sha256(values: np.ndarray) -> str:
    """Return the digest of an array's bytes."""
    return hashlib.sha256(values.tobytes()).hexdigest()


def file_sha256(path: Path) -> str | None:
    """Return the digest of a file's bytes; None for a file that is not there."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def check_same(path: Path, wanted: str | None) -> None:
    """Raise DataError for a file that differs from the one that another machine has at its path;
    None: unknown.
    """
    if wanted and (found := file_sha256(path)) and found != wanted:
        raise DataError(
            f'"{path}" differs on {platform.node()} from the file that the run started with '
            f"(sha256 {found[:8]}, "
            f"wanted {wanted[:8]}); copy the same file to every machine"
        )


LOCK, PLAN, SEARCH = ".lock", "comparison.toml", "search.toml"
"""In folders: the lock of a run or a search, the plan of a comparison, and that of a search."""
RECORDS = ("environment.json", PLAN, SEARCH)
"""Files by which a folder is one that the program wrote: of a run, a comparison or a search."""


def is_comparison(folder: Path) -> bool:
    """Return whether a folder is a comparison's."""
    return (folder / PLAN).is_file()


def is_search(folder: Path) -> bool:
    """Return whether a folder is a search's."""
    return (folder / SEARCH).is_file()


def is_written(folder: Path) -> bool | None:
    """Return whether another process writes a folder; None: it cannot be locked here, so that
    nobody can know.
    """
    lock = folder / LOCK
    if lock.is_symlink():
        return None
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return None
