"""Scalars, settings and pictures for experiment trackers: MLflow, Weights & Biases, Trackio.

Each works offline unless its own environment says otherwise. An error in one warns and ends no run
(`raydpzv.records.callbacks`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raydpzv.config.toml import as_tree
from raydpzv.errors import InputError, missing
from raydpzv.records.callbacks import RunStart
from raydpzv.records.exporters import PictureLog, own_folder
from raydpzv.records.settings_diff import leaves

PROJECT = "raydpzv"
"""The experiment or project under which a tracker shows runs."""
_LONGEST = 500
"""Letters of a setting that MLflow takes."""


class TrackerLog(PictureLog):
    """A tracker with a library of its own. Raises InputError if that is not installed."""

    library: str

    def __init__(self) -> None:
        try:
            self._tracker: Any = importlib.import_module(self.library)
        except ImportError:
            raise missing(f"--log {self.library}: {self.library}", self.library) from None

    def settings(self, run: RunStart) -> dict[str, Any]:
        """Return the scenario's settings by their dotted names."""
        return {"scenario": run.scenario, "runner": run.runner, **dict(leaves(as_tree(run.spec)))}

    def draw(self, drawn: Mapping[str, bytes], update: int) -> None:
        with TemporaryDirectory() as scratch:
            files = {name: Path(scratch) / f"{name}.png" for name in drawn}
            for name, file in files.items():
                file.write_bytes(drawn[name])
            self.show(files, update)

    def show(self, files: Mapping[str, Path], update: int) -> None:
        """Log pictures by name; the tracker copies their files."""
        raise NotImplementedError


class MlflowLog(TrackerLog):
    """A run of MLflow, in `mlflow.db` of the run's folder or where MLFLOW_TRACKING_URI says."""

    place, library = "mlflow.db", "mlflow"

    def start(self, run: RunStart) -> None:
        """Start a run; a resumed one has a further run of the same name."""
        super().start(run)
        own, chosen = own_folder(run).resolve(), os.environ.get("MLFLOW_TRACKING_URI")
        where, files = (
            chosen or f"sqlite:///{own / self.place}",
            None if chosen else (own / "mlflow").as_uri(),
        )
        self._client = self._tracker.MlflowClient(tracking_uri=where)
        found = self._client.get_experiment_by_name(PROJECT)
        if found and files and found.artifact_location != files:  # a database may say anything
            raise InputError(
                f"{own / self.place}: keeps pictures in {found.artifact_location}, wanted the run's "
                "own folder; move the database away to start another"
            )
        experiment = (
            found.experiment_id if found else self._client.create_experiment(PROJECT, files)
        )
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        entities = self._tracker.entities
        self._metric = entities.Metric
        params = [
            entities.Param(key, str(value)[:_LONGEST]) for key, value in self.settings(run).items()
        ]
        for first in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[first : first + 100])

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Log the scalars, with the time of day."""
        now = int(datetime.now(UTC).timestamp() * 1000)
        self._client.log_batch(
            self._id,
            metrics=[self._metric(name, value, now, update) for name, value in scalars.items()],
        )

    def show(self, files: Mapping[str, Path], update: int) -> None:
        for file in files.values():
            self._client.log_artifact(self._id, str(file), "plots")

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Say how the run ended."""
        done = {"done": "FINISHED", "failed": "FAILED"}.get(
            str((summary or {}).get("status")), "KILLED"
        )
        self._client.set_terminated(self._id, done)


class WandbLog(TrackerLog):
    """A run of Weights & Biases: offline, in the run's folder, unless WANDB_MODE says otherwise."""

    place, library = "wandb", "wandb"

    def start(self, run: RunStart) -> None:
        """Start a run; a resumed one has a further run of the same name."""
        super().start(run)
        self._run = self._tracker.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=run.name, dir=str(own_folder(run)),
            config=self.settings(run), mode=os.environ.get("WANDB_MODE", "offline"), reinit="create_new",
        )  # fmt: skip
        self._run.define_metric("*", step_metric="update")

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Log the scalars over updates."""
        self._run.log({**scalars, "update": update, "seconds": time})

    def show(self, files: Mapping[str, Path], update: int) -> None:
        images = {f"plots/{name}": self._tracker.Image(str(file)) for name, file in files.items()}
        self._run.log({**images, "update": update})

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Keep what the run came to."""
        kept = {
            name: (summary or {}).get(name)
            for name in ("status", "accuracy", "loss", "privacy_verdict")
        }
        self._run.summary.update(kept)
        self._run.finish(exit_code=int(kept["status"] == "failed"))


class TrackioLog(TrackerLog):
    """A run of Trackio, in its own folder (TRACKIO_DIR)."""

    place, library = "trackio", "trackio"

    def start(self, run: RunStart) -> None:
        """Start a run; a resumed one continues that of its name."""
        super().start(run)
        self._run = self._tracker.init(
            project=PROJECT, name=run.name, config=self.settings(run), resume="allow", embed=False
        )

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Log the scalars over updates."""
        self._run.log({**scalars, "seconds": time}, step=update)

    def show(self, files: Mapping[str, Path], update: int) -> None:
        self._run.log(
            {f"plots/{name}": self._tracker.Image(str(file)) for name, file in files.items()},
            step=update,
        )

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Send what is left."""
        self._run.finish()
