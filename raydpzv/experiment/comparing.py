"""One run of a comparison after the other, each in a folder of its own; then all of them as tables."""

from __future__ import annotations

import dataclasses
import math
import shutil
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from raydpzv.errors import DataError, InputError, RaydpzvError, StoppedEarly
from raydpzv.experiment.comparison import Comparison, Planned
from raydpzv.experiment.failure import DIVERGED
from raydpzv.experiment.folder import RunFolder
from raydpzv.experiment.local import continued, run_here
from raydpzv.experiment.prepared import Prepared, prepared
from raydpzv.experiment.spec import Spec
from raydpzv.privacy.adversaries import Claim
from raydpzv.records import folds
from raydpzv.records.comparison import CLAIMS, CURVES, RUNS
from raydpzv.sim.terms import Status

PLAN, RUNS_FOLDER = "comparison.toml", "runs"
NOT_RUN, FAILED, OK = "not run", "failed", "ok"


@dataclasses.dataclass(frozen=True)
class Compared:
    """The tables of a comparison (schemas in `raydpzv.records.comparison`)."""

    runs: pa.Table
    curves: pa.Table
    claims: pa.Table


def check_ready(comparison: Comparison) -> None:
    """Load every line's data and models once, so that what is wrong with the input shows before the first run.

    Raises SpecError and DataError, which name the line.
    """
    for line in comparison.lines:
        try:
            prepared(line.spec)
        except InputError as error:
            raise type(error)(f"{line}: {error}") from None


def finished(folder: Path) -> bool:
    """Tell whether a run is over for good: its budget is spent, or it diverged, which it would do again."""
    if not (folder / "summary.json").is_file():
        return False
    summary = RunFolder.open(folder).summary()
    return summary.get("status") == "done" or (
        summary.get("status") == "failed" and summary.get("failure") == DIVERGED
    )


def perform(
    planned: Planned,
    folder: Path,
    progress: Callable[[Status], None] = lambda status: None,
    stop: threading.Event | None = None,
) -> str:
    """Make one run in this process, or go on with it; return why there is no result, "" if there is one.

    What was begun and can be continued is; what cannot (its noise was not kept) begins again. A failure is left in the
    folder, as of any run; only what has no folder is told by the returned sentence alone.
    """
    try:
        experiment, out = _begun(planned, folder)
        run_here(experiment, out, scenario=planned.line.label, progress=progress, stop=stop)
    except StoppedEarly as error:
        return str(error)
    except Exception as error:
        if folder.is_dir():
            (folder / "error.log").write_text(traceback.format_exc())
        line = str(error) if isinstance(error, RaydpzvError) else f"{type(error).__name__}: {error}"
        return " ".join(line.split())
    (folder / "error.log").unlink(missing_ok=True)
    return ""


def _begun(planned: Planned, folder: Path) -> tuple[Prepared, Path | RunFolder]:
    if folder.is_dir():
        try:
            experiment, opened, _ = continued(folder)
            return experiment, opened
        except (InputError, DataError):
            shutil.rmtree(folder)
    return prepared(planned.spec), folder


def one_by_one(
    todo: Iterable[Planned],
    root: Path,
    *,
    progress: Callable[[Mapping[str, Status]], None],
    ended: Callable[[Planned, str], None],
    stop: threading.Event,
) -> None:
    """Make runs in this process, until all are over or `stop` is set.

    progress: called often with where the run in progress stands, by its folder's name; ended: with each run and why it
    has no result ("": it has one).
    """
    for planned in todo:
        if stop.is_set():
            return

        def report(status: Status, name: str = planned.folder) -> None:
            progress({name: status})

        ended(planned, perform(planned, root / RUNS_FOLDER / planned.folder, report, stop))


def collect(
    comparison: Comparison, root: Path, reasons: Mapping[str, str] = MappingProxyType({})
) -> Compared:
    """Read every run's folder below `root`; reasons: by run, why one has no result to show."""
    runs, curves, claims = [], [], []
    for planned in comparison.runs():
        folder = root / RUNS_FOLDER / planned.folder
        who = {
            "label": planned.line.label,
            "epsilon": planned.line.epsilon,
            "seed": planned.spec.seed,
        }
        summary = RunFolder.open(folder).summary() if (folder / "summary.json").is_file() else {}
        runs.append(who | _run_row(planned, summary, reasons.get(planned.folder, "")))
        if summary:
            curves += [who | row for row in _curve(folder)]
            claims += [who | row for row in _claims(summary)]
    return Compared(_table(runs, RUNS), _table(curves, CURVES), _table(claims, CLAIMS))


def _run_row(planned: Planned, summary: Mapping[str, Any], reason: str) -> dict[str, Any]:
    outcome, why = _outcome(summary, reason)
    return {
        "method": planned.spec.method.name,
        "control": planned.line.control,
        "run": planned.folder,
        "status": summary.get("status", "missing"),
        "outcome": outcome,
        "reason": why,
        **{name: _number(summary.get(name)) for name in _NUMBERS},
        **{name: int(summary.get(name) or 0) for name in _COUNTS},
        "staleness": _number((summary.get("staleness") or {}).get("mean")),
        "private": summary.get("private") is True,
        "verdict": str(summary.get("privacy_verdict", "")),
    }


_NUMBERS = ("accuracy", "best_accuracy", "loss", "top_share", "simulated_seconds", "seconds")
_COUNTS = ("updates", "bytes_up", "bytes_down")


def _outcome(summary: Mapping[str, Any], reason: str) -> tuple[str, str]:
    """Return what became of a run, and why it is no result."""
    status, word = summary.get("status"), str(summary.get("failure") or "")
    if status == "done":
        return word or OK, str(summary.get("failure_reason") or "")
    if status == "failed":
        return word or FAILED, str(summary.get("stopped_by", reason))
    if reason:
        return FAILED, reason
    return NOT_RUN, "stopped before its end" if summary else "not begun"


def _curve(folder: Path) -> Iterable[dict[str, Any]]:
    rows = RunFolder.open(folder).rows()
    series = folds.accuracy_series(rows["evaluation"], rows["message"])
    rounds, up, down = folds.bytes_by_round(rows["message"])
    for i, at in enumerate(series.round.tolist()):
        before = int(rounds.searchsorted(at, "right"))
        yield {
            "update": at,
            "time": float(series.time[i]),
            "bytes_up": int(up[before - 1]) if before else 0,
            "bytes_down": int(down[before - 1]) if before else 0,
            "accuracy": float(series.accuracy[i]),
            "loss": float(series.loss[i]),
        }


def _claims(summary: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for claim in summary.get("epsilon") or ():
        row = {name: claim[name] for name in _CLAIM if name in claim}
        for name in ("delta", "sensitivity"):
            row[name] = _number(row.get(name))
        yield row | {"claimed": _number(claim["epsilon"])}


_CLAIM = tuple(f.name for f in dataclasses.fields(Claim) if f.name not in ("epsilon", "direct_only"))


def _number(value: Any) -> float:
    """Read a number as summary.json has it: null is NaN, infinity a word."""
    if value is None:
        return math.nan
    return math.inf if value == "infinity" else float(value)


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def adds_noise(comparison: Comparison) -> bool:
    """Tell whether any line has an ε to account for."""
    return any(isinstance(x.spec, Spec) and x.spec.privacy.mode != "none" for x in comparison.lines)
