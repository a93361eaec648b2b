"""Run folders as whoever continues with a run opens them."""

from collections.abc import Sequence
from pathlib import Path

from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter


def reopened(path: Path, moved: Sequence[str] = ()) -> RunFolder:
    """Open a run's folder to continue from its checkpoint."""
    folder = RunWriter.locked(path, moved)
    try:
        folder.go_back()
    except BaseException:
        folder.__exit__()
        raise
    return folder
