"""A run's ledger: where it begins, and what summary.json says about it. Imports no torch: some processes need none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydpzv.ledger.header import Header
from raydpzv.ledger.ledger import Ledger


def begin_ledger(path: Path | None, header: Header, round: int | None, *, fsync: bool = False) -> Ledger:
    """Return the ledger of a run that goes on after `round` updates: new, or cut back to them (None: all it has).

    path: where it is kept; None: in memory only. A folder without a header is what a kill left of the beginning.
    Raises InputError and DataError as `Ledger.open` does.
    """
    if path is None or not (path / "header.json").exists():
        return Ledger.create(path, header, fsync=fsync)
    ledger = Ledger.open(path, expect=header, write=True)
    try:
        ledger.truncate(ledger.version if round is None else round)
    except BaseException:
        ledger.close()
        raise
    return ledger


def ledger_facts(ledger: Ledger | None) -> dict[str, Any]:
    """Return what summary.json says about a ledger."""
    if ledger is None:
        return {}
    return {
        "ledger": {
            "updates": ledger.version,
            "pairs": ledger.entries,
            "bytes": ledger.disk_bytes,
            "memory_bytes": ledger.memory_bytes,
            "digest": ledger.digest,
        }
    }
