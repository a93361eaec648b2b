"""The storage that a folder on this machine is a copy of, and whether the folder may go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from raydpzv.errors import DataError, InputError, NotRecomputable
from raydpzv.files import as_json, read_small, write_atomically
from raydpzv.storage.filesystem import StorageFolder, naming, open_storage
from raydpzv.storage.index import Index, latest

LINK = "storage.json"
"""Its file in the folder. It is not copied."""


@dataclass(frozen=True)
class Link:
    """What a folder remembers of its storage."""

    uri: str
    writer: str
    """The folder's id once a run writes here; "" for a copy that was downloaded alone."""
    seen: str
    """The newest index when the folder was downloaded, or a run last began to write here."""


def link_of(folder: Path) -> Link | None:
    """Return the storage that a folder is a copy of; None if there is none. Raises DataError if the
    link is damaged.
    """
    path = folder / LINK
    if not path.is_file():
        return None
    try:
        return Link(**json.loads(read_small(path)))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: is damaged ({error}); restore it, or resume its URI in another folder"
        ) from None


def write_link(folder: Path, link: Link) -> None:
    """Record the storage that a folder is a copy of."""
    write_atomically(folder / LINK, as_json(asdict(link)).encode())


def newest_here(folder: Path, link: Link) -> tuple[StorageFolder, Index | None]:
    """Return the storage of a folder and its index. Raises InputError if another folder has written
    there since.
    """
    place = open_storage(link.uri)
    with naming(link.uri):
        index = latest(place)
    known = index is not None and (index.writer == link.writer or index.name == link.seen)
    if not known and (index is not None or not link.writer):
        raise InputError(
            f"{folder}: holds an older copy of {link.uri}, which another folder has written to "
            "since; choose another --out, or delete this one"
        )
    return place, index


def require_resumable(folder: Path) -> tuple[StorageFolder, Index | None] | None:
    """Return the same for a run that is to resume in this folder; None if it has no storage.

    A writer that was killed may have released fresh noise after its last copy. Its own folder has
    that on record. Elsewhere the noise would be drawn a second time and not charged. Raises
    NotRecomputable there.
    """
    if (link := link_of(folder)) is None:
        return None
    place, index = newest_here(folder, link)
    if index and index.fresh_noise and not index.over and index.writer != link.writer:
        raise NotRecomputable(
            f"{link.uri}: this run draws its noise from the system, and its writer did not end "
            "cleanly: the releases after its last copy are not in the storage, and would be drawn "
            "a second time and not charged; resume on the machine that wrote it: raydpzv resume "
            "FOLDER; or start a new run in another storage"
        )
    return place, index
