"""What a run writes besides its record, on request: scalars as CSV and TensorBoard files, and a log
as JSON lines.
"""

from __future__ import annotations

import csv
import importlib
import math
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from raydpzv.errors import InputError, missing
from raydpzv.files import appended, inner_folder, json_line, private_folder
from raydpzv.records.callbacks import Callback, Evaluation, Fault, RunStart
from raydpzv.sim.interfaces import Status

INTERVAL = 1.0
"""Seconds between two statuses that are written; every evaluation is written."""
_FLUSH = 10.0
"""Seconds after which TensorBoard's events are in the file: each flush syncs the disk."""
_SIZE = struct.Struct(">II")
"""Width and height of a PNG file, from its 16th byte on."""
_CLIENT = re.compile(r"client (\d+)")


@lru_cache(maxsize=1)  # all logs of a run ask for the same
def status_scalars(status: Status) -> Mapping[str, float]:
    """Return a status' scalars without those of evaluations; ε by adversary, if finite."""
    users = status.privacy.user_epsilons()
    names = ("external", "client", "server") if users else ("paper", "client")
    found = {
        "uploads": status.uploads,
        "bytes_up": status.bytes_up,
        "bytes_down": status.bytes_down,
        "late_share": status.late / status.uploads if status.uploads else math.nan,
        "staleness": status.staleness,
        "checkpoint_seconds": status.checkpoint_seconds if status.checkpoints else math.nan,
    } | dict(
        zip((f"epsilon_{name}" for name in names), users or status.privacy.epsilons(), strict=True)
    )
    return {name: value for name, value in found.items() if math.isfinite(value)}


def evaluation_scalars(evaluation: Evaluation) -> dict[str, float]:
    """Return the scores of an evaluation that are defined; those of validation rows have a
    prefix.
    """
    before = "validation_" if evaluation.part == "validation" else ""
    return {
        before + name: value for name, value in evaluation.scores.items() if not math.isnan(value)
    }


def own_folder(run: RunStart) -> Path:
    """Return the folder to write to. Raises InputError where the run has none."""
    if run.folder is None:
        raise InputError(
            f"{run.name}: wanted a run folder to write a log to, got none; run with out=FOLDER"
        )
    return run.folder


class ScalarLog(Callback):
    """Writes the scalars of evaluations as they come, and those of the status every second and at
    the end.

    A status writes everything so far to the file.
    """

    place: str
    """Name of the file or folder in the run's folder."""
    interval = INTERVAL

    def status(self, status: Status) -> None:
        if not status.stage:
            self.write(status.updates, status.time, status_scalars(status))
            self.flush()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the scores."""
        self.write(evaluation.update, evaluation.time, evaluation_scalars(evaluation))

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write the scalars after an update, at a time of the run's clock."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what is buffered to the file."""


Pictures = Callable[[Path], Mapping[str, bytes]]
"""Draws what a run's folder holds: PNG files by name."""


class PictureLog(ScalarLog):
    """A log that takes the run's pictures at its end.

    pictures: draws them. `chosen_logs` of the command line sets it, since a record knows nothing of
    drawing.
    """

    pictures: Pictures = staticmethod(lambda folder: {})

    def start(self, run: RunStart) -> None:
        """Keep where the run's record is."""
        self._folder = own_folder(run)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Take the pictures of a run with a summary, and close; also where drawing fails."""
        try:
            drawn = {} if summary is None else self.pictures(self._folder)
            if drawn:
                self.draw(drawn, int((summary or {}).get("updates") or 0))
        finally:
            self.close(summary)

    def draw(self, drawn: Mapping[str, bytes], update: int) -> None:
        """Write pictures, made after so many updates."""
        raise NotImplementedError

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Write how the run ended, and close."""
        raise NotImplementedError


class CsvLog(ScalarLog):
    """scalars.csv: a line for each scalar, with its update and time."""

    place = "scalars.csv"

    def start(self, run: RunStart) -> None:
        """Open the file; a resumed run appends to its own."""
        self._file = appended(own_folder(run) / self.place, newline="")
        self._lines = csv.writer(self._file)
        if not self._file.tell():
            self._lines.writerow(("update", "time", "scalar", "value"))

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write a line for each scalar."""
        self._lines.writerows((update, time, name, value) for name, value in scalars.items())

    def flush(self) -> None:
        self._file.flush()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardLog(PictureLog):
    """Event files of TensorBoard: scalars over updates, pictures. Raises InputError if tensorboardX
    is not installed.

    They are written here and now: the library's own writers hand each event to a thread through a
    process queue, which takes two thirds of the CPU time of all logs.
    """

    place = "tensorboard"

    def __init__(self) -> None:
        try:
            library = importlib.import_module("tensorboardX")
        except ImportError:
            raise missing("--log tensorboard: tensorboardX", "tensorboard") from None
        self._events, self._event = (
            library.event_file_writer.EventsWriter,
            library.proto.event_pb2.Event,
        )

    def start(self, run: RunStart) -> None:
        """Open an event file; a resumed run has a further one."""
        super().start(run)
        folder = own_folder(run) / self.place
        private_folder(inner_folder(folder))
        self._writer, self._flushed = self._events(str(folder / "events")), time.monotonic()

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write the scalars as one event, which takes a third of the time of one event each."""
        self._write(
            update, [{"tag": name, "simple_value": value} for name, value in scalars.items()]
        )

    def _write(self, update: int, values: Sequence[Mapping[str, Any]]) -> None:
        at = datetime.now(UTC).timestamp()  # TensorBoard shows the time of day
        self._writer.write_event(self._event(wall_time=at, step=update, summary={"value": values}))

    def flush(self) -> None:
        if (now := time.monotonic()) - self._flushed >= _FLUSH:
            self._flushed = now
            self._writer.flush()

    def draw(self, drawn: Mapping[str, bytes], update: int) -> None:
        for name, png in drawn.items():
            width, height = _SIZE.unpack_from(png, 16)
            held = {
                "width": width,
                "height": height,
                "colorspace": 4,
                "encoded_image_string": png,
            }  # RGBA
            self._write(update, [{"tag": name, "image": held}])

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._writer.close()


class JsonLog(Callback):
    """log.jsonl: one JSON object a line with run, actor, client, update."""

    place = "log.jsonl"
    interval = INTERVAL

    def start(self, run: RunStart) -> None:
        """Open the file and write what the run is."""
        self._file = appended(own_folder(run) / self.place)
        self._run, self._update = run.name, 0
        spec = run.spec
        names = {"scenario": run.scenario, "method": spec.method.name, "seed": spec.seed}
        self._line("start", names | {"clock": spec.clock.kind, "runner": run.runner})

    def status(self, status: Status) -> None:
        if not status.stage:
            self._update = status.updates
            self._line("status", {"time": status.time, **status_scalars(status)})
            self._file.flush()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the scores."""
        place = {"update": evaluation.update, "actor": "server", "time": evaluation.time}
        self._line("evaluation", place | evaluation_scalars(evaluation))

    def fault(self, fault: Fault) -> None:
        """Write who failed, and how."""
        client, whole = _CLIENT.fullmatch(fault.party), fault.party == "run"
        who = {
            "level": "error" if whole else "warning",
            "actor": "driver" if whole else fault.party,
            "client": int(client[1]) if client else None,
        }
        self._line(
            "fault", who | {"time": fault.time, "kind": fault.kind, "message": fault.message}
        )
        self._file.flush()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Write how the run ended and close the file."""
        stated = summary or {}
        self._update = stated.get("updates", self._update)
        kept = {
            name: stated.get(name)
            for name in ("status", "stopped_by", "accuracy", "loss", "digest")
        }
        self._line("end", kept | {"level": "error" if kept["status"] == "failed" else "info"})
        self._file.close()

    def _line(self, event: str, more: Mapping[str, Any]) -> None:
        # the time of day, which joins it to the logs of other programs; the run's own clock is
        # `time`
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": "info", "event": event, "run": self._run}
        who = {"actor": "driver", "client": None, "update": self._update}
        self._file.write(json_line({**line, **who, **more}))
