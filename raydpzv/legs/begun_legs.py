"""How often a run went on from one place: what each of these legs released before it was lost, no record tells.

A run of users is charged for what may have been under way when a kill came. A checkpoint knows of one kill alone, that
of the leg which wrote it; legs that came no further leave their count here, before they release anything.
"""

from __future__ import annotations

import json

from raydpzv.errors import DataError
from raydpzv.files import as_json, write_atomically
from raydpzv.records.run_folder import RunFolder

_FILE = "begun_legs.json"


def legs_begun(folder: RunFolder) -> int:
    """Return how many legs went on from a folder's last checkpoint, or without one from the start, to no other."""
    path = folder.path / _FILE
    if not path.is_file():
        return 0
    try:
        found = json.loads(path.read_bytes())
        place, legs = str(found["place"]), int(found["legs"])
        if legs < 1:
            raise ValueError(f"{legs} legs")
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: is damaged ({error}): it says what may have been released and is on no other record; bring it "
            "back from a copy"
        ) from None
    return legs if place == folder.checkpoint_sha256() else 0


def went_on(folder: RunFolder) -> bool:
    """Tell whether any leg went on from a place of a folder's run, which may have released what was released before."""
    return (folder.path / _FILE).is_file()


def note_leg(folder: RunFolder) -> None:
    """Put on record, for good, that another leg begins; call it before it releases anything."""
    facts = {"place": folder.checkpoint_sha256(), "legs": legs_begun(folder) + 1}
    write_atomically(folder.path / _FILE, as_json(facts).encode(), fsync=True)
