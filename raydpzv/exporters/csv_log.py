"""Scalars as a CSV file in the run's folder: a line for each, by name, update and time."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from raydpzv.exporters.scalar_log import ScalarLog, own_folder
from raydpzv.records.callbacks import RunStart

FILE = "scalars.csv"


class CsvLog(ScalarLog):
    """scalars.csv: a line for each scalar, with its update and time."""

    place = FILE

    def start(self, run: RunStart) -> None:
        """Open the file; that of a run which goes on is gone on with."""
        self._file = (own_folder(run) / FILE).open("a", newline="")
        self._lines = csv.writer(self._file)
        if not self._file.tell():
            self._lines.writerow(("update", "time", "scalar", "value"))

    def write(self, update: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write a line for each."""
        self._lines.writerows((update, time, name, value) for name, value in scalars.items())

    def flush(self) -> None:
        """Bring them to the file."""
        self._file.flush()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._file.close()
