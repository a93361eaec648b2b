"""Runs that end as a kill ends them: nothing is settled, nothing flushed, no summary written."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import scenarios
from raydpzv.experiment.finalize import RowWriter
from raydpzv.experiment.resuming import continued
from tests.helpers.runs import run_prepared


class Killed(BaseException):
    """What ends the run."""


def kill_at(updates: int, spec: Any, folder: Path, checkpoints: int = 0) -> None:
    """Begin or continue a run and end it after so many updates and checkpoints, or (wall clock) soon after."""

    def die(status: Any) -> None:
        if status.updates >= updates and status.checkpoints >= checkpoints:
            raise Killed

    def lost(self: RowWriter, rows: Any) -> None:
        if not any(frame.f_code.co_name in _OF_A_RUN for frame, _ in traceback.walk_stack(sys._getframe())):
            raise Killed
        add(self, rows)

    add, patch = RowWriter.add, pytest.MonkeyPatch()
    patch.setattr(RowWriter, "add", lost)
    try:
        with pytest.raises(Killed):
            _begin_or_go_on(spec, folder, die)
    finally:
        patch.undo()


_OF_A_RUN = ("_tick", "tick", "_updated")
"""Where a run writes while it goes on."""


def _begin_or_go_on(spec: Any, folder: Path, progress: Any) -> None:
    if not folder.exists():
        scenarios.run(spec, folder, progress=progress)
    experiment, opened, _ = continued(folder)
    run_prepared(experiment, opened, runner="local", progress=progress)
