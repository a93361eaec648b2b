"""What scenario the run of a storage has, known before any of it is brought."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import DataError, InputError
from raydpzv.records.run_folder import RunFolder
from raydpzv.storage.commits import content, latest
from raydpzv.storage.copies import naming
from raydpzv.storage.place import open_place

_READ = ("scenario.toml", "environment.json")
"""What tells of a run's scenario: in all its commits, and never written over."""


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
