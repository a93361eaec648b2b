"""Scalars as TensorBoard's event files in the run's folder."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from raydpzv.errors import missing
from raydpzv.exporters.scalar_log import ScalarLog, own_folder
from raydpzv.records.callbacks import RunStart

FOLDER = "tensorboard"
_FLUSH = 10.0
"""Seconds after which events are in the file: it is synced each time."""


class TensorBoardLog(ScalarLog):
    """Event files of TensorBoard: scalars over updates. Raises InputError if tensorboardX is not installed.

    They are written here and now: the library's own writers hand each event to a thread through a process queue, which
    takes two thirds of the CPU time that all logs do.
    """

    place = FOLDER

    def __init__(self) -> None:
        try:
            library = importlib.import_module("tensorboardX")
        except ImportError:
            raise missing("--log tensorboard: tensorboardX", "tensorboard") from None
        self._events, self._event = library.event_file_writer.EventsWriter, library.proto.event_pb2.Event

    def start(self, run: RunStart) -> None:
        """Open an event file; a run that goes on has a further one."""
        folder = own_folder(run) / FOLDER
        folder.mkdir(exist_ok=True)
        self._writer, self._flushed = self._events(str(folder / "events")), time.monotonic()

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write them as one event, which takes a third of the time that one for each does."""
        values = [{"tag": name, "simple_value": value} for name, value in scalars.items()]
        at = datetime.now(UTC).timestamp()  # TensorBoard shows the time of day
        self._writer.write_event(self._event(wall_time=at, step=update, summary={"value": values}))

    def flush(self) -> None:
        """Bring them to the file, from time to time."""
        if (now := time.monotonic()) - self._flushed >= _FLUSH:
            self._flushed = now
            self._writer.flush()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Write what is left and close the file."""
        self._writer.close()
