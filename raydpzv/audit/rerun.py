"""Runs of a recorded scenario over again, with fresh noise, for audits that need more than the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from raydpzv.audit.recorded import RecordedRun
from raydpzv.errors import InputError, NotRecomputable
from raydpzv.experiment.runner import run_local
from raydpzv.experiment.vertical import PreparedVertical


def check_rerunnable(run: RecordedRun) -> None:
    """Raise InputError for a run whose like cannot be made: of real time, or with noise that a seed repeats."""
    path, spec = run.folder.path, run.spec
    if spec.clock.kind == "wall":
        raise InputError(
            f"{path}: a wall-clock run is made again in real time; audit one of the virtual clock"
        )
    if spec.privacy.noise == "seeded":
        raise NotRecomputable(
            f'{path}: its noise comes from the seed and would be the same in every run; use privacy.noise = "system"'
        )


def final_models(prepared: PreparedVertical) -> Mapping[str, np.ndarray]:
    """Run without a record, evaluated at both ends alone; return the parameters that it ends with, by party."""
    spec = prepared.spec
    often = {"evaluate": spec.evaluate.model_copy(update={"every": max(spec.budget.updates or 1, 1)})}
    quiet = {"record": spec.record.model_copy(update={"staleness": False})}
    return run_local(replace(prepared, spec=spec.model_copy(update=often | quiet))).models
