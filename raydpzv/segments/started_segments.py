"""How many segments of a run started from one checkpoint: what the lost ones released is on no
record.

A run of users is charged for what may have been under way when a kill came. A checkpoint knows of
one kill alone, that of the segment which wrote it. Segments that wrote none are counted here, each
before it releases anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from raydpzv.errors import DataError
from raydpzv.files import as_json, read_small, write_atomically
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter

_FILE = "begun_legs.json"


def segments_started(folder: RunFolder) -> int:
    """Return how many segments started from a folder's last checkpoint (or the run's start) and
    wrote no other.
    """
    path = folder.path / _FILE
    if not path.is_file():
        return 0
    try:
        found = json.loads(read_small(path))
        known = {str(at["place"]): int(at["legs"]) for at in (found, *found.get("older", ()))}
        if min(known.values()) < 1:
            raise ValueError(f"{min(known.values())} legs")
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: is damaged ({error}): it says what may have been released and is on no other "
            "record; restore it from a copy"
        ) from None
    return known.get(folder.checkpoint_sha256(), 0)


def has_restarted(folder: RunFolder) -> bool:
    """Return whether any segment of a folder's run was restarted, which may have released something
    twice.
    """
    return (folder.path / _FILE).is_file()


def note_segment(folder: RunFolder) -> None:
    """Record, for good, that another segment starts; call it before it releases anything."""
    facts = {"place": folder.checkpoint_sha256(), "legs": segments_started(folder) + 1}
    write_atomically(folder.path / _FILE, as_json(facts).encode(), fsync=True)


def note_fall_back(folder: RunWriter, each: int) -> None:
    """Record, for good, the lost segments that the account of the checkpoint before the last one
    does not have.

    Call it before the folder falls back. each: releases that a segment may have lost. A segment
    that wrote both checkpoints may count twice; no segment is left out.
    """
    last, older = folder.checkpoint(), folder.older_checkpoint()
    if last is None:
        return
    lost = _lost(last) - (_lost(older.checkpoint) if older else 0)
    killed = not _run(last).get("stopped", False)
    segments = segments_started(folder) + killed + math.ceil(lost / each)
    facts = {"place": folder.checkpoint_sha256(), "legs": max(1, segments_started(folder))}
    facts["older"] = [{"place": older.sha256 if older else "", "legs": max(1, segments)}]
    write_atomically(folder.path / _FILE, as_json(facts).encode(), fsync=True)


def _run(checkpoint: Checkpoint) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], checkpoint.state.get("run", checkpoint.state))


def _lost(checkpoint: Checkpoint) -> int:
    """Return the releases of lost segments that a checkpoint's account has charged."""
    return int(_run(checkpoint)["status"].get("privacy", {}).get("remade", 0))
