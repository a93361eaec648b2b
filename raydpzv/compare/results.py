"""The runs of a comparison as tables, each run checked against the plan, the others' data and its
own rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from raydpzv.compare.plan import Comparison, Planned
from raydpzv.compare.run_comparison import RUNS_FOLDER, STOPPED, read_made, set_aside
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError
from raydpzv.experiment.diagnostics import DIVERGED, blown_up
from raydpzv.files import json_number
from raydpzv.privacy.claims import Claim
from raydpzv.records import metrics
from raydpzv.records.environment import DATA_DIGEST
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import Rows
from raydpzv.report.comparison_lines import EARLY, NOT_RUN, as_meant
from raydpzv.report.comparison_table import CLAIMS, CURVES, RUNS, Compared
from raydpzv.sim.virtual import NOBODY_WAKES

FAILED, OK = "failed", "ok"

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Read:
    """What a run's folder says; data: their digest; `fault`: why it is not to be believed."""

    summary: Mapping[str, Any]
    curve: list[Row]
    data: str = ""
    fault: str = ""


def collect(
    comparison: Comparison, root: Path, reasons: Mapping[str, str] = MappingProxyType({})
) -> Compared:
    """Read every run's folder below `root`; reasons: by run, why one has no result to show.

    A run that is not the planned one, whose data are not those of the others with its seed, or
    whose rows are not those of its summary has failed, whatever its accuracy.
    """
    runs, curves, claims = [], [], []
    data: dict[int, str] = {}  # digests by seed
    for planned in comparison.runs():
        seed = planned.spec.seed
        found = _read(planned, root / RUNS_FOLDER / planned.folder)
        if found.data and found.data != data.setdefault(seed, found.data):
            found = dataclasses.replace(
                found, fault="its data are not those of the first run with this seed"
            )
        who = {"label": planned.line.label, "epsilon": planned.line.epsilon, "seed": seed}
        row = who | _run_row(planned, root, found, reasons.get(planned.folder, ""))
        runs.append(row)
        if row["outcome"] != NOT_RUN:  # half a run has half the releases, and no claim to show
            curves += [who | point for point in found.curve]
            claims += [who | claim for claim in _claims(found.summary)]
    _set_controls(runs)
    measures = list(dict.fromkeys(name for row in runs for name in row if name not in RUNS.names))
    runs = [{**dict.fromkeys(measures, math.nan), **row} for row in runs]
    more = [(name, pa.float64()) for name in measures]
    tables = (
        (runs, pa.schema([*RUNS, *more])),
        (curves, pa.schema([*CURVES, *more])),
        (claims, CLAIMS),
    )
    return Compared(*(pa.Table.from_pylist(rows, schema=schema) for rows, schema in tables))


def _read(planned: Planned, path: Path) -> _Read:
    summary, rows, fault = read_made(planned, path)
    if rows is None:
        return _Read({}, [], fault=fault)
    try:
        curve = _curve(rows, planned.spec)
        data = str(RunFolder.open(path).environment().get(DATA_DIGEST, ""))
    except InputError as error:
        return _Read({}, [], fault=" ".join(str(error).split()))
    fault = "" if _agree(summary, curve, rows) else "its rows are not those of its summary"
    return _Read(summary, curve, data, fault and f"{fault}; delete the folder to make the run")


def _agree(summary: Mapping[str, Any], curve: list[Row], rows: Rows) -> bool:
    """Return whether a run's rows give the accuracy and the bytes that its summary states."""
    sent = (metrics.bytes_up(rows["message"]), metrics.bytes_down(rows["message"]))
    stated, computed = (
        json_number(summary.get("accuracy")),
        curve[-1]["accuracy"] if curve else math.nan,
    )
    same = stated == computed or (math.isnan(stated) and math.isnan(computed))
    return same and sent == (summary.get("bytes_up"), summary.get("bytes_down"))


def _run_row(planned: Planned, root: Path, found: _Read, reason: str) -> Row:
    summary = found.summary
    outcome, why = (FAILED, found.fault) if found.fault else _outcome(summary, reason)
    losses = [row["loss"] for row in (*found.curve[:1], *found.curve[-1:])]
    if losses and as_meant({"method": planned.spec.method.name}, outcome) and blown_up(*losses):
        # a control may learn nothing, but this one's head has left what it could learn
        outcome = DIVERGED
    again = set_aside(root / RUNS_FOLDER / planned.folder)[1]
    if again:
        said = (
            f"restarted {again} time{'' if again == 1 else 's'}; what it drew before, set aside, is"
            " not in its ε"
        )
        why = f"{why}; {said}" if why else said
    return {
        "method": planned.spec.method.name,
        "multiplier": planned.spec.multiplier,
        "sigma": planned.spec.sigma,
        "control": planned.line.control,
        "run": planned.folder,
        "status": summary.get("status", "missing"),
        "outcome": outcome,
        "reason": why,
        **{name: json_number(summary.get(name)) for name in _NUMBERS},
        **{name: json_number(value) for name, value in (summary.get("measures") or {}).items()},
        **{name: int(summary.get(name) or 0) for name in _COUNTS},
        "staleness": json_number((summary.get("staleness") or {}).get("mean")),
        "private": summary.get("private") is True,
        "verdict": str(summary.get("privacy_verdict", "")),
    }


_NUMBERS = (
    "accuracy",
    "best_accuracy",
    "validation_accuracy",
    "peak_accuracy",
    "roc_auc",
    "pr_auc",
    "balanced_accuracy",
    "concordance",
    "loss",
    "top_share",
    "largest_class_share",
    "vector_length",
    "simulated_seconds",
    "seconds",
)
_COUNTS = ("updates", "bytes_up", "bytes_down")


def _set_controls(runs: Sequence[Row]) -> None:
    """Put beside each run that is no control the accuracy that frozen clients reach with its seed;
    NaN without one.

    A control that predicts one class still counts; one that did not finish does not.
    """
    done = [row for row in runs if row["method"] == "frozen" and row["status"] == "done"]
    frozen = {row["seed"]: row["accuracy"] for row in done if row["outcome"] != FAILED}
    for row in runs:
        row["control_accuracy"] = math.nan if row["control"] else frozen.get(row["seed"], math.nan)


def _outcome(summary: Mapping[str, Any], reason: str) -> tuple[str, str]:
    """Return what became of a run, and why it is no result."""
    status, word = summary.get("status"), str(summary.get("failure") or "")
    if status == "done" and summary.get("stopped_by") == NOBODY_WAKES:
        return EARLY, f"ended before its budget was spent: {NOBODY_WAKES}"
    if status == "done":
        return word or OK, str(summary.get("failure_reason") or "")
    if status == "failed":
        return word or FAILED, str(summary.get("stopped_by", reason))
    if status == "stopped":
        return NOT_RUN, STOPPED
    return (FAILED, reason) if reason else (NOT_RUN, "not started")


def _curve(rows: Rows, spec: AnyScenario) -> list[Row]:
    counted, lengths = (
        metrics.vector_length(rows["numbers"], spec.split.clients) if spec.one_model else ((), ())
    )
    numbers = dict(zip(counted, lengths, strict=True))
    series = metrics.accuracy_series(rows["evaluation"], rows["message"])
    rounds, up, down = metrics.bytes_by_round(rows["message"])
    validation = metrics.validation_by_round(rows["evaluation"])
    measures = {
        name: dict(zip(*(of.tolist() for of in pair), strict=True))
        for name, pair in metrics.measures(rows["measure"]).items()
    }
    found = []
    for i, at in enumerate(series.round.tolist()):
        before = int(rounds.searchsorted(at, "right"))
        amounts = (int(up[before - 1]), int(down[before - 1])) if before else (0, 0)
        found.append(
            {
                "update": at,
                "time": float(series.time[i]),
                "bytes_up": amounts[0],
                "bytes_down": amounts[1],
                "vector_length": numbers.get(at),
                "accuracy": float(series.accuracy[i]),
                "loss": float(series.loss[i]),
                "validation_accuracy": validation.get(at),
                **{name: values.get(at) for name, values in measures.items()},
            }
        )
    return found


def _claims(summary: Mapping[str, Any]) -> Iterator[Row]:
    for claim in summary.get("epsilon") or ():
        row = {name: claim[name] for name in _CLAIM if name in claim}
        for name in ("delta", "sensitivity"):
            row[name] = json_number(row.get(name))
        yield row | {"claimed": json_number(claim["epsilon"])}


_CLAIM = tuple(
    set(CLAIMS.names) & {field.name for field in dataclasses.fields(Claim)} - {"epsilon"}
)
