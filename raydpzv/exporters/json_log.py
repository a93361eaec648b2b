"""A structured log in the run's folder: one JSON object a line, with run, actor, client and update."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from raydpzv.exporters.scalar_log import INTERVAL, evaluation_scalars, own_folder, status_scalars
from raydpzv.files import json_line
from raydpzv.records.callbacks import Callback, Evaluation, Fault, RunStart
from raydpzv.sim.interfaces import Status

FILE = "log.jsonl"
_CLIENT = re.compile(r"client (\d+)")


class JsonLog(Callback):
    """log.jsonl: one JSON object a line with run, actor, client, update."""

    place = FILE
    interval = INTERVAL

    def start(self, run: RunStart) -> None:
        """Open the file, and say what the run is."""
        self._file = (own_folder(run) / FILE).open("a")
        self._run, self._update = run.name, 0
        spec = run.spec
        names = {"scenario": run.scenario, "method": spec.method.name, "seed": spec.seed}
        self._line("start", names | {"clock": spec.clock.kind, "runner": run.runner})

    def status(self, status: Status) -> None:
        """Say where the run stands."""
        if not status.stage:
            self._update = status.updates
            self._line("status", {"time": status.time, **status_scalars(status)})
            self._file.flush()

    def evaluation(self, evaluation: Evaluation) -> None:
        """Say what was measured."""
        place = {"update": evaluation.update, "actor": "server", "time": evaluation.time}
        self._line("evaluation", place | evaluation_scalars(evaluation))

    def fault(self, fault: Fault) -> None:
        """Say who failed, and how."""
        client, whole = _CLIENT.fullmatch(fault.party), fault.party == "run"
        who = {
            "level": "error" if whole else "warning",
            "actor": "driver" if whole else fault.party,
            "client": int(client[1]) if client else None,
        }
        self._line("fault", who | {"time": fault.time, "kind": fault.kind, "message": fault.message})
        self._file.flush()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Say how the run ended, and close the file."""
        told = summary or {}
        self._update = told.get("updates", self._update)
        kept = {name: told.get(name) for name in ("status", "stopped_by", "accuracy", "loss", "digest")}
        level = "error" if kept["status"] == "failed" else "info"
        self._line("end", kept | {"level": level})
        self._file.close()

    def _line(self, event: str, more: Mapping[str, Any]) -> None:
        # the time of day, which joins it to the logs of other programs; the run's own clock is `time`
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": "info", "event": event, "run": self._run}
        who = {"actor": "driver", "client": None, "update": self._update}
        self._file.write(json_line({**line, **who, **more}))
