"""A storage's folder on this machine's disk: a new one, a downloaded copy, or the one that wrote
the storage.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from raydpzv.errors import DataError, InputError
from raydpzv.files import as_json, is_written, write_atomically
from raydpzv.records.checkpoint import CHECKPOINT
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.secrets_file import OPERATOR
from raydpzv.storage.filesystem import StorageFolder, naming, open_storage, reason
from raydpzv.storage.lease import LEASES, Lease, Waits, last_writer
from raydpzv.storage.manifest import (
    MANIFESTS,
    OBJECTS,
    Manifest,
    content,
    latest,
    newest_epoch,
    require_repeatable,
)
from raydpzv.storage.snapshot import LINK
from raydpzv.storage.uploader import FolderUploader, StorageTimes

_TRIES = 10
"""Downloads of a folder whose storage is written meanwhile."""
TIMES = StorageTimes()
"""How often storages are written."""
_PRIVATE = (OPERATOR, CHECKPOINT)
"""Files that only their owner may read."""
_OWN = re.compile(rf"{MANIFESTS}|{LEASES}|{OBJECTS}\d{{8}}")
_NAMED = 3
"""Foreign files that an error names."""


@dataclass(frozen=True)
class Link:
    """The storage that a folder is a copy of; the id of its writer ("": it was only downloaded),
    and the manifest.
    """

    uri: str
    writer: str
    commit: str


def link_of(folder: Path) -> Link | None:
    """Return the storage that a folder is a copy of; None if there is none. Raises DataError if the
    link is damaged.
    """
    path = folder / LINK
    if not path.is_file():
        return None
    try:
        return Link(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: is damaged ({error}); download the folder again: raydpzv fetch URI FOLDER"
        ) from None


def check_apart(folder: Path, uri: str) -> None:
    """Raise InputError if a storage lies in the folder that it is a copy of, or the folder in the
    storage.
    """
    there, here = open_storage(uri).on_this_disk, folder.resolve()
    if there and (there.is_relative_to(here) or here.is_relative_to(there)):
        raise InputError(
            f"--storage {uri}: lies in {folder}, or has it in itself; choose another --storage or "
            "--out"
        )


def link(folder: Path, uploader: FolderUploader) -> None:
    """Record that a folder is uploaded to a storage, before anything is uploaded."""
    check_apart(folder, uploader.uri)
    _link(folder, Link(uploader.uri, uploader.writer, ""))


def stored(uri: str) -> Manifest | None:
    """Return the newest manifest of a storage; None if it is empty. Raises InputError where it
    cannot be read.
    """
    with naming(uri):
        return latest(open_storage(uri))


def stored_kind(uri: str) -> str | None:
    """Return what a storage holds, "run" or "search"; None if it is empty."""
    found = stored(uri)
    return found.kind if found else None


@contextmanager
def created(uri: str, kind: str, waits: Waits = lambda sentence: None) -> Iterator[FolderUploader]:
    """Hold an empty storage while the block runs, for a new folder.

    waits: see `raydpzv.storage.lease`. Raises InputError if the storage holds anything; nothing is
    written there then.
    """
    storage = open_storage(uri)
    with naming(uri):
        check_unused(storage)
    _check_empty(uri)  # before a lease is waited for
    with _leased(storage, kind, waits) as uploader:
        _check_empty(uri)
        yield uploader


def _check_empty(uri: str) -> None:
    if kind := stored_kind(uri):
        raise InputError(
            f"{uri}: holds a {kind} already; choose another --storage, or continue it: raydpzv "
            f"resume {uri}"
        )


@contextmanager
def resumed(
    uri: str, folder: Path, waits: Waits = lambda sentence: None
) -> Iterator[FolderUploader]:
    """Hold a storage while the block runs, with its content in this folder.

    A folder that the storage's last writer wrote is used as it is: it holds everything that was
    released. Else the newest manifest is downloaded, which may lack the writer's last releases.

    waits: see `raydpzv.storage.lease`. Raises InputError for an empty storage, and for a folder
    with other or older content; NotRecomputable where a release would be made twice.
    """
    storage = open_storage(uri)
    with naming(uri):
        base = _newest(storage)  # before a lease is written there
        holder = last_writer(storage)[1]
        own = _is_last_writers(folder, storage.uri, base, holder)
        if not own:
            require_repeatable(storage, base)
    if is_written(folder):  # before its lease is waited for
        kind = "run" if RunFolder.begun(folder) else "search"
        raise InputError(
            f"{folder}: another process is writing this {kind}; wait for it, or stop it"
        )
    with _leased(storage, "", waits) as uploader:
        with naming(uri):
            base = _newest(storage)
            own = _is_last_writers(folder, storage.uri, base, holder)
            if not own:
                require_repeatable(storage, base)
        if not own and not _is_copy(folder, storage.uri, base):
            base = _download(storage, folder, base)
        uploader.resume_from(base)
        link(folder, uploader)
        yield uploader


def check_free(folder: Path) -> None:
    """Raise InputError unless a storage can be downloaded to a folder: no file is replaced."""
    if not _free(folder):
        raise InputError(f"{folder}: is there already; choose a folder that is not, or delete it")


def fetch(uri: str, folder: Path) -> Manifest:
    """Download a storage's folder to one that does not exist or is empty; return its manifest."""
    if base := stored(uri):
        return _download(open_storage(uri), folder, base)
    raise InputError(f"{uri}: holds no run and no search")


def check_not_midway(folder: Path) -> None:
    """Raise InputError for a downloaded copy of a run that had not ended: it may be under way
    elsewhere.
    """
    if said := midway(folder):
        raise InputError(f"{folder}: {said}")


def midway(folder: Path) -> str:
    """Return, for a downloaded copy of a run that had not ended, what it is and what to do; "" for
    all else.
    """
    found = link_of(folder)
    if (
        found is None
        or found.writer
        or not RunFolder.begun(folder)
        or RunFolder(folder).has_summary()
    ):
        return ""
    uri = shlex.quote(found.uri)
    return (
        f"is a copy of {found.uri} from before its run ended, and the run may be under way "
        f"elsewhere; once it has ended download it again: raydpzv fetch {uri} FOLDER; or, if its "
        f"machine is lost, continue it: raydpzv resume {uri} --out FOLDER"
    )


def _newest(storage: StorageFolder) -> Manifest:
    if found := latest(storage):
        return found
    check_unused(storage)
    uri = shlex.quote(storage.uri)
    raise InputError(
        f"{storage.uri}: holds no run and no search; begin one with: raydpzv run SCENARIO "
        f"--storage {uri}"
    )


@contextmanager
def _leased(storage: StorageFolder, kind: str, waits: Waits) -> Iterator[FolderUploader]:
    with naming(storage.uri):
        # above the manifests' epochs too, in case the leases were deleted: the newest manifest has
        # the newest epoch
        lease = Lease.acquire(storage, TIMES.lease, newest_epoch(storage), waits=waits)
    uploader = FolderUploader(storage, lease, kind, TIMES)
    with uploader.released():
        yield uploader


def _is_last_writers(folder: Path, uri: str, base: Manifest, holder: str) -> bool:
    """Return whether a folder is the one that the storage's last writer wrote. holder: of the last
    lease.
    """
    found = link_of(folder)
    return (
        found is not None
        and found.uri == uri
        and found.writer != ""
        and found.writer in (base.writer, holder)
    )


def _is_copy(folder: Path, uri: str, base: Manifest) -> bool:
    """Return whether a folder is a copy of this manifest; False if empty. Raises InputError for
    another folder.
    """
    found = link_of(folder)
    if found == Link(uri, "", base.name):
        return True
    if not _free(folder):
        if found and found.uri == uri:
            raise InputError(
                f"{folder}: holds an older copy of this storage, which was written to elsewhere "
                f"since; continue in another folder: raydpzv resume {shlex.quote(uri)} --out "
                "FOLDER; or delete this one"
            )
        raise InputError(f"{folder}: holds something else; choose another --out, or delete it")
    return False


def _free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _download(storage: StorageFolder, folder: Path, base: Manifest) -> Manifest:
    """Download a manifest's files, or those of a newer one if they are gone; return the
    manifest.
    """
    check_free(folder)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    for _ in range(_TRIES):
        try:
            if _downloaded(storage, scratch, base):
                _link(scratch, Link(storage.uri, "", base.name))
                if folder.exists():
                    folder.rmdir()
                scratch.rename(folder)
                return base
        except OSError as error:
            raise InputError(
                f"{folder}: cannot download {storage.uri} there ({reason(error)}); see to disk and "
                "storage"
            ) from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        found = latest(storage)
        assert found is not None
        if found.name == base.name:
            raise DataError(
                f"{storage.uri}: objects of its newest commit are missing; restore them from a copy"
            )
        base = found
    raise InputError(f"{storage.uri}: is written to faster than it can be downloaded; try again")


def _downloaded(storage: StorageFolder, target: Path, base: Manifest) -> bool:
    """Write a manifest's files to a new folder; False if one of them is gone."""
    target.mkdir(parents=True)
    for path, file in base.files.items():
        whole = target / path
        if target.resolve() not in whole.resolve().parents:
            raise DataError(
                f"{storage.uri}: {path} lies outside of its folder; the storage's commit is damaged"
            )
        data = content(storage, path, file)
        if data is None:
            return False
        whole.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(whole, data, mode=0o600 if whole.name in _PRIVATE else 0o666)
        if whole.name == "scenario.toml":
            (whole.parent / "rows").mkdir(
                exist_ok=True
            )  # storages have no empty folders, and runs have one
    return True


def _link(folder: Path, found: Link) -> None:
    write_atomically(folder / LINK, as_json(asdict(found)).encode())


def check_unused(storage: StorageFolder) -> None:
    """Raise InputError for a folder that holds other files, unless it has ever been a storage.

    Files that are put beside a storage later do no harm. An interrupted first upload may leave only
    empty folders.
    """
    others = [name for name in storage.entries() if not _OWN.fullmatch(name)]
    others.sort(key=lambda name: name.startswith("."))
    if not others or last_writer(storage)[0] or newest_epoch(storage):
        return
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    raise InputError(
        f"{storage.uri}: holds other things ({', '.join(others[:_NAMED])}{more}) and no storage; "
        "give the URI of a folder that is empty or not there yet"
    )
