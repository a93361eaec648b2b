"""A storage's folder on this machine's disk: begun there, brought here, or found here again."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import DataError, InputError, NotRecomputable
from raydpzv.files import as_json, write_atomically
from raydpzv.records.checkpoint import CHECKPOINT
from raydpzv.records.folder_lock import is_written
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.secrets_file import OPERATOR
from raydpzv.storage.commits import (
    ANNOUNCED,
    COMMITS,
    NO_NOISE,
    OBJECTS,
    UNBOUNDED,
    Commit,
    commit_names,
    content,
    latest,
    newest_epoch,
)
from raydpzv.storage.filesystem import StorageFolder, open_place, reason
from raydpzv.storage.lease import LEASES, Lease, Waits, last_writer
from raydpzv.storage.lost_updates import add_missing
from raydpzv.storage.snapshot import LINK
from raydpzv.storage.uploader import FolderUploader, StorageTimes

_TRIES = 10
"""Times that a folder is brought anew whose storage was written to meanwhile."""
PACE = StorageTimes()
"""How storages are written."""
_OWN_ALONE = (OPERATOR, CHECKPOINT)
"""Files that nobody but their owner may read."""
_OWN = re.compile(rf"{COMMITS}|{LEASES}|{OBJECTS}\d{{8}}")
_NAMED = 3
"""Names of others' files that are said."""
_READ = ("scenario.toml", "environment.json")
"""What tells of a run's scenario: in all its commits, and never written over."""


@dataclass(frozen=True)
class Link:
    """Of which storage a folder is a copy; by whom it was written ("": it was only brought), and of which commit."""

    uri: str
    writer: str
    commit: str


def link_of(folder: Path) -> Link | None:
    """Return of which storage a folder is a copy; None if it is none. Raises DataError if that is damaged."""
    path = folder / LINK
    if not path.is_file():
        return None
    try:
        return Link(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: is damaged ({error}); bring the folder anew: raydpzv fetch URI FOLDER"
        ) from None


def check_apart(folder: Path, uri: str) -> None:
    """Raise InputError for a storage that is in the folder that it is a copy of, or has that in it."""
    there, here = open_place(uri).on_this_disk, folder.resolve()
    if there and (there.is_relative_to(here) or here.is_relative_to(there)):
        raise InputError(
            f"--storage {uri}: lies in {folder}, or has it in itself; choose another --storage or --out"
        )


def link(folder: Path, mirror: FolderUploader) -> None:
    """Write down that a folder is what a mirror brings to its storage, before anything else is brought there."""
    check_apart(folder, mirror.uri)
    _link(folder, Link(mirror.uri, mirror.writer, ""))


def begun_at(uri: str) -> str | None:
    """Return what a storage holds, "run" or "search"; None if nothing. Raises InputError where it cannot be read."""
    with naming(uri):
        found = latest(open_place(uri))
    return found.kind if found else None


def is_over(uri: str) -> bool:
    """Tell whether the last writer of a storage brought all that it had."""
    with naming(uri):
        found = latest(open_place(uri))
    return found is not None and found.over


@contextmanager
def begun(uri: str, kind: str, waits: Waits = lambda what: None) -> Iterator[FolderUploader]:
    """Hold a storage while the block runs, for a folder that begins there.

    Raises InputError where it holds one already; or other things, before anything is written there.
    waits: told of another process whose lease has to run out first.
    """
    place = open_place(uri)
    with naming(uri):
        check_unused(place)
    _check_new(place, uri)  # before the lease of who writes there is waited for
    with _taken(place, kind, waits) as mirror:
        _check_new(place, uri)
        yield mirror


def _check_new(place: StorageFolder, uri: str) -> None:
    with naming(uri):
        found = latest(place)
    if found:
        raise InputError(
            f"{uri}: holds a {found.kind} already; choose another --storage, or go on with it: raydpzv resume {uri}"
        )


@contextmanager
def continued(
    uri: str,
    folder: Path,
    charge: Callable[[Path, Commit], None] = lambda folder, base: None,
    waits: Waits = lambda what: None,
) -> Iterator[tuple[FolderUploader, int]]:
    """Hold a storage while the block runs, with its content in this folder, which the block goes on with.

    A folder that its last writer wrote here is taken as it is: it has all that was released. Else the storage's content
    is brought here, of which a lost writer may have had more: `charge` puts on record what it may have released, beside
    a run's updates; `waits` is told of a process whose lease has to run out first. Yields with it how many of these
    updates were announced and may be missing. Raises InputError for a storage without content, and for a folder with
    another or older content; NotRecomputable where nobody knows what is missing.
    """
    place = open_place(uri)
    with naming(place.uri):
        _newest(place)  # before a lease is written there
        holder = last_writer(place)[1]
    _check_not_at_work(folder)  # whose lease would be waited for
    with _taken(place, "", waits) as mirror:
        with naming(uri):
            base = _newest(place)

        def charged(made: Path, found: Commit) -> None:
            _charge(made, found, place)
            charge(made, found)

        missing = 0
        if not _is_newest(folder, place.uri, base, holder):
            if _is_copy(folder, place.uri, base):
                charged(folder, base)
            else:
                base = _bring(place, folder, charged, base)
            missing = _missing(base, place)
        mirror.go_on_from(base)
        link(folder, mirror)
        yield mirror, missing


def check_free(folder: Path) -> None:
    """Raise InputError unless a storage can be downloaded to a folder: no file is replaced."""
    if not _free(folder):
        raise InputError(f"{folder}: is there already; choose a folder that is not, or delete it")


def fetch(uri: str, folder: Path) -> Commit:
    """Bring what a storage holds to a folder that is not there or empty; return the commit that it is of."""
    place = open_place(uri)
    with naming(uri):
        base = latest(place)
    if base is None:
        raise InputError(f"{uri}: holds no run and no search")
    return _bring(place, folder, lambda made, found: None, base)


def check_not_midway(folder: Path) -> None:
    """Raise InputError for what was fetched of a run before its end: it may be under way where it was begun."""
    if said := midway(folder):
        raise InputError(f"{folder}: {said}")


def midway(folder: Path) -> str:
    """Return, of what was fetched of a run before its end, that it was and what to do; of all else ""."""
    found = link_of(folder)
    if found is None or found.writer or not RunFolder.begun(folder) or RunFolder(folder).has_summary():
        return ""
    uri = shlex.quote(found.uri)
    return (
        f"is a copy of {found.uri} from before its run had come to an end, and the run may be under way "
        f"elsewhere; once it has ended bring it anew: raydpzv fetch {uri} FOLDER; or, if its machine is lost, go on "
        f"with it: raydpzv resume {uri} --out FOLDER"
    )


def _newest(place: StorageFolder) -> Commit:
    """Return the newest commit. Raises InputError where there is none."""
    if found := latest(place):
        return found
    check_unused(place)
    uri = shlex.quote(place.uri)
    raise InputError(
        f"{place.uri}: holds no run and no search; begin one with: raydpzv run SCENARIO --storage {uri}"
    )


def _check_not_at_work(folder: Path) -> None:
    """Raise InputError for a folder that another process of this machine writes."""
    if is_written(folder):
        what = "run" if RunFolder.begun(folder) else "search"
        raise InputError(f"{folder}: another process is writing this {what}; wait for it, or stop it")


@contextmanager
def _taken(place: StorageFolder, kind: str, waits: Waits) -> Iterator[FolderUploader]:
    with naming(place.uri):
        # above the commits' epochs too, where somebody has deleted the leases: the newest commit is by its epoch
        lease = Lease.take(place, PACE.lease, newest_epoch(place), waits=waits)
    mirror = FolderUploader(place, lease, kind, PACE)
    with mirror.released():
        yield mirror


def _is_newest(folder: Path, uri: str, base: Commit, holder: str) -> bool:
    """Tell whether a folder is the one that the storage's last writer wrote, which has all that it released."""
    found = link_of(folder)
    written = found is not None and found.uri == uri and found.writer != ""
    return written and found is not None and found.writer in (base.writer, holder)


def _is_copy(folder: Path, uri: str, base: Commit) -> bool:
    """Tell whether a folder has what a commit names; False if it is to be brought. Raises InputError for another."""
    found = link_of(folder)
    if found == Link(uri, "", base.name):
        return True
    if not _free(folder):
        if found and found.uri == uri:
            raise InputError(
                f"{folder}: holds an older copy of this storage, which was written to elsewhere since; go on in "
                f"another folder: raydpzv resume {shlex.quote(uri)} --out FOLDER; or delete this one"
            )
        raise InputError(f"{folder}: holds something else; choose another --out, or delete it")
    return False


def _free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _missing(base: Commit, place: StorageFolder) -> int:
    """Return how many updates with fresh noise the writer of a commit may have made after it.

    A newer commit that is damaged may have been whole once, and have announced as many more.
    """
    damaged = sum(name > base.name for name in commit_names(place)) if base.noise != NO_NOISE else 0
    if damaged and base.announced == base.covered:
        raise DataError(
            f"{place.uri}: its newest commit is damaged, so that nobody knows how many releases came after the one "
            "before it; bring it back from a copy"
        )
    if base.noise == UNBOUNDED:
        raise NotRecomputable(
            f"{place.uri}: its writer was lost, and a wall-clock run stands still for no storage, so that nobody knows "
            "how many releases with noise of the system's came after the last commit; they would be drawn a second "
            "time: go on in the folder where it was written, or start a new run"
        )
    return (base.announced - base.covered) * (1 + damaged) if base.noise == ANNOUNCED else 0


def _charge(folder: Path, base: Commit, place: StorageFolder) -> None:
    """Put on record what may be missing after a commit."""
    if missing := _missing(base, place):
        add_missing(folder, after=base.covered, updates=missing)


def _bring(place: StorageFolder, folder: Path, then: Callable[[Path, Commit], None], base: Commit) -> Commit:
    """Make a folder of a commit's files, or of a newer one's where these have gone; `then` completes it."""
    check_free(folder)
    made = folder.with_name(f".{folder.name}.{os.getpid()}")
    for _ in range(_TRIES):
        try:
            if _made(place, made, base):
                then(made, base)
                _link(made, Link(place.uri, "", base.name))
                if folder.exists():
                    folder.rmdir()
                made.rename(folder)
                return base
        except OSError as error:
            raise InputError(
                f"{folder}: cannot bring {place.uri} there ({reason(error)}); see to disk and storage"
            ) from None
        finally:
            shutil.rmtree(made, ignore_errors=True)
        found = latest(place)
        assert found is not None
        if found.name == base.name:
            raise DataError(
                f"{place.uri}: objects of its newest commit are missing; bring them back from a copy"
            )
        base = found
    raise InputError(f"{place.uri}: is written to faster than it can be brought; try again")


def _made(place: StorageFolder, made: Path, base: Commit) -> bool:
    """Write the files of a commit to a new folder; False if one of them has gone meanwhile."""
    made.mkdir(parents=True)
    for path, file in base.files.items():
        whole = made / path
        if made.resolve() not in whole.resolve().parents:
            raise DataError(
                f"{place.uri}: {path} lies outside of its folder; the storage's commit is damaged"
            )
        data = content(place, path, file)
        if data is None:
            return False
        whole.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(whole, data, mode=0o600 if whole.name in _OWN_ALONE else 0o666)
        if whole.name == "scenario.toml":
            (whole.parent / "rows").mkdir(exist_ok=True)  # storages have no empty folders, and runs have one
    return True


def _link(folder: Path, found: Link) -> None:
    write_atomically(folder / LINK, as_json(asdict(found)).encode())


@contextmanager
def naming(uri: str) -> Iterator[None]:
    """Say which storage it was that could not be read or written."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{uri}: cannot be read or written ({reason(error)}); see to its permissions and to the way there"
        ) from None


def check_unused(place: StorageFolder) -> None:
    """Raise InputError for a place that holds other things, unless somebody has ever written to a storage there.

    What is laid beside a storage later does not make it another one; and of one that was begun and interrupted its
    folders alone may be there, empty.
    """
    others = [name for name in place.entries() if not _OWN.fullmatch(name)]
    others.sort(key=lambda name: name.startswith("."))
    if not others or last_writer(place)[0] or newest_epoch(place):
        return
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    raise InputError(
        f"{place.uri}: holds other things ({', '.join(others[:_NAMED])}{more}) and no storage; give the URI of a "
        "folder that is empty or not there yet"
    )


def stored_scenario(uri: str, moved: Sequence[str] = ()) -> AnyScenario | None:
    """Return the scenario of the run that a storage holds; None where it holds nothing yet.

    moved: where its data are now, see `RunFolder.open`. Raises InputError for the storage of a search, DataError where
    what it holds is damaged.
    """
    place = open_place(uri)
    with naming(uri):
        found = latest(place)
        if found is None:
            return None
        if found.kind != "run":
            raise InputError(f"{uri}: holds a {found.kind}; choose another --storage")
        files = {name: content(place, name, found.files[name]) for name in _READ}
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in files.items():
            if data is None:
                raise DataError(f"{uri}: objects of {name} are missing; bring them back from a copy")
            (Path(scratch) / name).write_bytes(data)
        try:
            return RunFolder.open(Path(scratch), moved).spec()
        except InputError as error:
            raise type(error)(str(error).replace(scratch, uri)) from None
