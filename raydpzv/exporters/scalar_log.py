"""The scalars of a run as it goes on, by name: what CSV files, event files and structured logs hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from raydpzv.errors import InputError
from raydpzv.records.callbacks import Callback, Evaluation, RunStart
from raydpzv.sim.interfaces import Status

INTERVAL = 1.0
"""Seconds between two statuses that are written; evaluations are written all."""


@lru_cache(maxsize=1)  # all logs of a run ask for the same
def status_scalars(status: Status) -> Mapping[str, float]:
    """Return what is known of where a run stands, without what comes of evaluations; ε by adversary, if finite."""
    users = status.privacy.user_epsilons()
    names = ("external", "client", "server") if users else ("paper", "client")
    found = {
        "uploads": status.uploads,
        "bytes_up": status.bytes_up,
        "bytes_down": status.bytes_down,
        "late_share": status.late / status.uploads if status.uploads else math.nan,
        "staleness": status.staleness,
        "checkpoint_seconds": status.checkpoint_seconds if status.checkpoints else math.nan,
    } | dict(zip((f"epsilon_{name}" for name in names), users or status.privacy.epsilons(), strict=True))
    return {name: value for name, value in found.items() if math.isfinite(value)}


def evaluation_scalars(evaluation: Evaluation) -> dict[str, float]:
    """Return the scores of an evaluation that are defined, those of validation rows under names that say so."""
    before = "validation_" if evaluation.part == "validation" else ""
    return {before + name: value for name, value in evaluation.scores.items() if not math.isnan(value)}


def own_folder(run: RunStart) -> Path:
    """Return the folder to write to. Raises InputError where the run has none."""
    if run.folder is None:
        raise InputError(f"{run.name}: wanted a run folder to write a log to, got none; run with out=FOLDER")
    return run.folder


class ScalarLog(Callback):
    """Writes the scalars of evaluations as they come, those of the status every second and at the end.

    What is written is in the file with the next status.
    """

    place: str
    """Where it is in the run's folder."""
    interval = INTERVAL

    def status(self, status: Status) -> None:
        """Write where the run stands."""
        if not status.stage:
            self.write(status.updates, status.time, status_scalars(status))
            self.flush()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write its scores."""
        self.write(evaluation.update, evaluation.time, evaluation_scalars(evaluation))

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write scalars of after an update, at a time of the run's clock."""
        raise NotImplementedError

    def flush(self) -> None:
        """Bring it to the file, for whoever reads along."""
