"""Updates that a machine may have made before it was lost, whose releases are on no record: they are charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raydpzv.errors import DataError
from raydpzv.files import as_json, write_atomically

_FILE = "missing.json"


def missing_updates(folder: Path) -> int:
    """Return how many updates of a run's folder were made elsewhere, at the most, and are not on its record."""
    return sum(int(loss["updates"]) for loss in _losses(folder))


def add_missing(folder: Path, *, after: int, updates: int) -> None:
    """Put on record that so many updates after these may have been made elsewhere."""
    losses = [*_losses(folder), {"after": after, "updates": updates}]
    write_atomically(folder / _FILE, as_json(losses).encode())


def _losses(folder: Path) -> list[dict[str, Any]]:
    path = folder / _FILE
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_bytes())
        if not all(int(loss["updates"]) > 0 for loss in found):
            raise ValueError("a number of updates is not above 0")
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: is damaged ({error}): it says how much privacy was spent elsewhere; bring it back from a copy"
        ) from None
    return list(found)
