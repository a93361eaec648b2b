"""A storage's folder on this machine's disk: downloaded, or the one that wrote the storage."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

from raydpzv.errors import DataError, InputError
from raydpzv.files import is_written, write_atomically
from raydpzv.records.run_folder import RunFolder
from raydpzv.storage.filesystem import StorageFolder, naming, open_storage, reason
from raydpzv.storage.index import INDEXES, OBJECTS, Index, latest
from raydpzv.storage.link import Link, link_of, newest_here, require_resumable, write_link
from raydpzv.storage.run_copy import copied

_NAMED = 3
"""Foreign files that an error names."""


def unused_storage(uri: str, folder: Path) -> StorageFolder:
    """Return a storage for a new run in this folder. Raises InputError if it holds anything, or if
    one of the two lies in the other.
    """
    place, here = open_storage(uri), folder.resolve()
    there = place.on_this_disk
    if there and (there.is_relative_to(here) or here.is_relative_to(there)):
        raise InputError(
            f"--storage {uri}: lies in {folder}, or has it in itself; choose another --storage or "
            "--out"
        )
    with naming(uri):
        if latest(place):
            raise InputError(
                f"{uri}: holds a run already; choose another --storage, or continue it: raydpzv "
                f"resume {shlex.quote(uri)}"
            )
        others = [name for name in place.names() if name not in (INDEXES, OBJECTS)]
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise InputError(
            f"{uri}: holds other things ({', '.join(others[:_NAMED])}{more}) and no run; give the "
            "URI of a folder that is empty or not there yet"
        )
    return place


def copy_folder(uri: str) -> Path:
    """Return the default folder of a storage on this machine: below runs/, with its name there."""
    parts = urlsplit(uri)
    return Path("runs") / (Path(unquote(parts.path)).name or parts.netloc)


def find_copy(uri: str, folder: Path) -> bool:
    """Return whether a storage holds a run, which then is in this folder: downloaded, if it was not
    there yet.

    Raises InputError for a folder with another run or an older copy.
    """
    uri, link = uri.rstrip("/"), link_of(folder)
    if link and link.uri == uri:
        newest_here(folder, link)
        return True
    place = open_storage(uri)
    with naming(uri):
        index = latest(place)
    if index is None and not RunFolder.begun(folder):
        return False
    if index is None or (folder.exists() and any(folder.iterdir())):
        raise InputError(
            f"{folder}: holds something else than a copy of {uri}; choose another --out"
        )
    _download(place, index, folder)
    return True


def local_copy(uri: str, folder: Path | None = None) -> Path:
    """Return the folder of a storage on this machine, by default `copy_folder`; see
    `find_copy`.
    """
    folder = folder or copy_folder(uri)
    if not find_copy(uri, folder):
        raise InputError(
            f"{uri}: holds no run; start one with: raydpzv run SCENARIO --storage "
            f"{shlex.quote(uri)}"
        )
    return folder


def copy_rest(folder: Path) -> None:
    """Copy what the storage of a complete run lacks, since the run was killed at its very end.

    Raises as `require_resumable` does.
    """
    if found := require_resumable(folder):
        place, index = found
        ended = is_written(folder) is False and RunFolder.open(folder).completed_by()
        if ended and not (index and index.over):
            with copied(folder, place, fresh_noise=False):
                pass  # the end of the block copies all of it


def _download(place: StorageFolder, index: Index, folder: Path) -> None:
    """Write the files of an index to a folder that does not exist or is empty."""
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        scratch.mkdir(parents=True)
        for path, file in index.files.items():
            data = place.read(f"{OBJECTS}/{file.sha256}")
            if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
                raise DataError(
                    f"{place.uri}: {path} is missing or damaged, or a run writes there at this "
                    "moment; wait for the run, or restore the storage from a copy"
                )
            (scratch / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(scratch / path, data, mode=file.mode)
        (scratch / "rows").mkdir(exist_ok=True)  # storages have no empty folders
        write_link(scratch, Link(place.uri, "", index.name))
        if folder.exists():
            folder.rmdir()
        scratch.rename(folder)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot download {place.uri} there ({reason(error)}); see to disk and "
            "storage"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
