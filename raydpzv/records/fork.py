"""Fork a run: copy its checkpoint, ledger and rows to a run with settings of its own.

The first run made the copied releases. A fork sends them again, which releases nothing more.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from raydpzv.config.toml import as_toml, override, scenario_sha256
from raydpzv.errors import DataError
from raydpzv.files import as_json, private_folder, write_atomically
from raydpzv.records.checkpoint import CHECKPOINT
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.secrets_file import OPERATOR
from raydpzv.records.write_ahead_log import TAIL

_STATE = (CHECKPOINT, "ledger")
"""The files that a run resumes from."""
_RECORD = ("rows", TAIL, OPERATOR)
"""The record of the run so far."""


def fork(run: Path, path: Path, changes: Sequence[str], moved_to: Path) -> None:
    """Make `path` the folder of a run that resumes from a run's checkpoint; move an older folder
    there to `moved_to`.

    changes: settings, "key=value" each, that take effect only after the checkpoint. Repeat an
    interrupted call. Raises DataError if the run has no checkpoint.
    """
    folder = RunFolder.open(run)
    spec = override(folder.spec(), changes)
    if folder.checkpoint() is None:
        raise DataError(
            f"{run}: has no checkpoint from which another run could continue; start a new search"
        )
    made = path.with_name(f"{path.name}.fork")
    shutil.rmtree(made, ignore_errors=True)
    private_folder(made)
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
