"""Run folders as whoever goes on with a run opens them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydpzv.records.run_folder import RunFolder


def reopened(path: Path, moved: Sequence[str] = ()) -> RunFolder:
    """Open a run's folder to go on from its checkpoint."""
    folder = RunFolder.held(path, moved)
    try:
        folder.go_back()
    except BaseException:
        folder.__exit__()
        raise
    return folder


def beside(path: Path) -> RunFolder:
    """Open a run's folder to go on beside its record."""
    folder = RunFolder.held(path)
    folder.go_beside()
    return folder
