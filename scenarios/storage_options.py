"""Storages on the command line: their URIs, and their folders on this machine."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

from raydpzv.config.paths import locations
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.settings_diff import other_setting
from raydpzv.storage.download import fetch, link_of, stored_kind
from raydpzv.storage.filesystem import is_uri
from raydpzv.storage.lease import Waits
from scenarios.screen import complain, console


def copy_folder(uri: str) -> Path:
    """Return the default folder of a storage on this machine: below runs/, with its name there."""
    return Path("runs") / (
        Path(unquote(urlsplit(uri).path)).name or urlsplit(uri).netloc or "storage"
    )


def stored_at(what: str, out: Path | None) -> tuple[str | None, Path]:
    """Return the URI of the storage that a folder or URI is of (None: of none), and its folder on
    this machine.
    """
    if is_uri(what):
        return what.rstrip("/"), out or copy_folder(what)
    if out is not None:
        raise SpecError(
            "--out: is the folder to download a storage to, and goes with its URI; leave it out"
        )
    found = link_of(Path(what))
    return (found.uri if found else None), Path(what)


def waits(*, quiet: bool) -> Waits:
    """Return a function that prints what is waited for before other progress is visible."""

    def say(what: str) -> None:
        if not quiet:
            console(stderr=True).print(f"waiting for {what}", highlight=False, soft_wrap=True)

    return say


def fetched(uri: str, folder: Path) -> None:
    """Download a storage to a folder, and say so if its writer had more to come."""
    found = fetch(uri, folder)
    if not found.over:
        complain(
            f"note: {folder}: is of a {found.kind} that had not ended: it is under way, or its "
            f"machine is lost; if so, continue it: raydpzv resume {shlex.quote(uri)} --out FOLDER"
        )


def found_or_fetched(uri: str, folder: Path, spec: AnyScenario) -> Path:
    """Return a storage's folder on this machine, downloaded if it is missing and the storage is not
    empty.

    Raises InputError for a folder with another run, and for a storage with one that has other
    settings than these.
    """
    found = link_of(folder)
    if RunFolder.begun(folder) and (found is None or found.uri != uri.rstrip("/")):
        raise InputError(f"{folder}: holds a run that is no copy of {uri}; choose another --out")
    kind = stored_kind(uri)
    if kind == "search":
        raise InputError(f"{uri}: holds a search; choose another --storage")
    if found is None and kind:
        fetch(uri, folder)
        stored = RunFolder.open(folder, locations(as_tree(spec))).spec()
        if other := other_setting(stored, resolved(spec)):
            shutil.rmtree(folder)  # it was downloaded just now
            raise InputError(
                f"{uri}: holds a run with other settings: {other}; choose another --storage, or "
                "ask for the same settings"
            )
    return folder


def resolved(spec: AnyScenario) -> AnyScenario:
    """Return a scenario as a run has it on record: how many "all" are is for the data to say."""
    return prepare(spec).spec if getattr(spec.method, "batch", None) == "all" else spec
