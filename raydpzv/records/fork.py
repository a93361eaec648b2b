"""A run that goes on from where another one stands: its checkpoint, its ledger and its rows, under its own settings.

What is copied was released once, by the run that it is copied of. A fork gives it out again and releases nothing by it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raydpzv.config.toml import as_toml, override, scenario_sha256
from raydpzv.errors import DataError
from raydpzv.files import as_json, write_atomically
from raydpzv.records.checkpoint import CHECKPOINT
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.secrets_file import OPERATOR
from raydpzv.records.write_ahead_log import TAIL

_STATE = (CHECKPOINT, "ledger")
"""What a run goes on from."""
_RECORD = ("rows", TAIL, OPERATOR)
"""What says how it came there."""


@dataclass(frozen=True)
class Size:
    """Bytes of what a fork copies: checkpoint and ledger, and rows."""

    state: int
    rows: int


def fork_size(run: Path) -> Size:
    """Return how much a fork of a run copies."""
    return Size(
        sum(_bytes(run / name) for name in _STATE), sum(_bytes(run / name) for name in ("rows", TAIL))
    )


def fork(run: Path, path: Path, changes: Sequence[str], moved_to: Path) -> None:
    """Make `path` the folder of a run that goes on from a run's checkpoint; what was there goes to `moved_to`.

    changes: settings, "key=value" each, under which the run itself would stand where it stands: what changes after its
    checkpoint. A call that was interrupted is made again whole. Raises DataError if the run has no checkpoint.
    """
    folder = RunFolder.open(run)
    spec = override(folder.spec(), changes)
    if folder.checkpoint() is None:
        raise DataError(f"{run}: has no checkpoint from which another run could go on; start a new search")
    made = path.with_name(f"{path.name}.fork")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for name in (*_STATE, *_RECORD):
        source = run / name
        if source.is_dir():
            shutil.copytree(source, made / name, ignore=shutil.ignore_patterns(".*"))
        elif source.is_file():
            shutil.copy2(source, made / name)
    facts = folder.environment() | {"scenario_sha256": scenario_sha256(spec)}
    write_atomically(made / "environment.json", as_json(facts).encode())
    write_atomically(made / "scenario.toml", as_toml(spec).encode())
    if path.is_dir():
        path.rename(moved_to)
    made.rename(path)


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
