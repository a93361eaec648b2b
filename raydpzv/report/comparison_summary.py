"""What a comparison comes to on one screen: a line per method and ε, one line each for failures, targets, privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.text import Text

from raydpzv.records.summary_fields import shown
from raydpzv.report import text
from raydpzv.report.comparison_lines import FAILURES, NOT_RUN
from raydpzv.report.comparison_privacy import privacy_line
from raydpzv.report.comparison_table import equal_bytes, equal_seconds, table, target_name
from raydpzv.report.comparison_text import (
    ConsoleGrid,
    Grid,
    bytes_text,
    calibrated,
    named,
    seconds_text,
    target_title,
    warning_lines,
)

_TITLE = "median over the seeds (lowest to highest)"
AIM = "aim: ε"
_AIM = f"; {AIM} is what noise is calibrated to by each method's own argument, not what is proved"
_MOST_WARNINGS = 3

Cell = Callable[[Mapping[str, Any]], str]


def brief_report(runs: pa.Table, curves: pa.Table, claims: pa.Table, targets: Sequence[float]) -> Group:
    """Return it for a console of 120 columns. runs, curves, claims: of `raydpzv.report.comparison_table`'s schemas."""
    folded = table(runs, curves, targets)
    grid = brief_rows(folded, equal_bytes(curves, runs), equal_seconds(curves, runs))
    failed = failures_line(runs)
    score = next(name for name in ("concordance", "accuracy") if name in grid.heads)
    parts: list[RenderableType] = [
        ConsoleGrid(f"Test {score}: {_TITLE}{_AIM if AIM in grid.heads else ''}", grid),
        Text(failed, "bold red" if "FAILED" in failed else ""),
        *(Text(target_line(folded, target)) for target in dict.fromkeys(targets) if score == "accuracy"),
        Text(privacy_line(claims, runs)),
        *_warnings(warning_lines(runs, curves)),
    ]
    return Group(*parts)


def _warnings(lines: Sequence[str]) -> list[Text]:
    """Return the first few warnings, and how many more there are."""
    first = [Text(line, "yellow") for line in lines[:_MOST_WARNINGS]]
    left = len(lines) - len(first)
    return first + ([Text(f"{left} more warnings: --explain", "yellow")] if left > 0 else [])


def brief_rows(folded: pa.Table, bytes_at: int, seconds_at: float) -> Grid:
    """Return one row of one line for each method at each ε; columns that would say nothing are left out.

    bytes_at, seconds_at: budgets that every run covers, 0 and NaN where there is none.
    """
    rows = folded.to_pylist()
    columns: dict[str, Cell] = {"method": lambda r: str(r["label"])}
    if any(row["epsilon"] is not None for row in rows):
        columns[AIM] = lambda r: calibrated(r["epsilon"])
    columns |= {"runs": _runs}
    if any(row["concordance_median"] > 0 for row in rows):
        columns["concordance"] = partial(_range, name="concordance", shown=lambda v: text.number(v, 3))
    else:
        columns["accuracy"] = partial(_range, name="accuracy", shown=text.percent)
    if bytes_at:
        columns[f"at {text.size(bytes_at)}"] = lambda r: text.percent(r["equal_bytes_median"])
    if not math.isnan(seconds_at):
        columns[f"at {seconds_text(seconds_at)}"] = lambda r: text.percent(r["equal_seconds_median"])
    columns["bytes up"] = lambda r: bytes_text(r["bytes_up_median"])
    columns["bytes down"] = lambda r: bytes_text(r["bytes_down_median"])
    if not all(math.isnan(row["vector_length_median"]) for row in rows):
        columns["numbers per client"] = lambda r: text.number(r["vector_length_median"])
    if not math.isnan(seconds_at):
        columns["simulated"] = lambda r: seconds_text(r["seconds_median"])
    return Grid(
        tuple(columns),
        tuple(tuple(cell(row) for cell in columns.values()) for row in rows),
        tuple(row["failures"] > 0 for row in rows),
    )


def failures_line(runs: pa.Table) -> str:
    """Return how many runs failed, the first with its folder and reason, and how many were not made."""
    rows = runs.to_pylist()
    failed = [row for row in rows if row["outcome"] in FAILURES]
    missing = sum(row["outcome"] == NOT_RUN for row in rows)
    left = f"; {missing} not made to the end, left out of every number" if missing else ""
    if not failed:
        return f"Failures: none of {len(rows)} runs{left}"
    first = failed[0]
    reason = f": {shown(first['reason'])}" if first["reason"] else ""
    return (
        f"FAILED: {len(failed)} of {len(rows)} runs{left}; first {named(first['label'], first['epsilon'])}, seed "
        f"{first['seed']} (runs/{first['run']}): {shown(first['outcome'])}{reason}"
    )


def target_line(folded: pa.Table, target: float) -> str:
    """Return which lines reached an accuracy, and the least that half of a line's runs took to reach it."""
    name, rows = target_name(target), folded.to_pylist()
    reached = sum(row[f"reached_{name}"] > 0 for row in rows)
    title = target_title(target)
    if not reached:
        return f"No run reached {title}."
    costs: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("fewest updates", f"updates_{name}_median", "{:,.0f}".format),
        ("fewest bytes", f"bytes_{name}_median", bytes_text),
        ("least simulated time", f"seconds_{name}_median", seconds_text),
    )
    least = [said for cost in costs if (said := _least(rows, *cost))]
    said = ", ".join(least) if least else "none of them with half of its runs"
    return f"Reached {title}: {reached} of {len(rows)} lines; {said}"


def _least(rows: Sequence[Mapping[str, Any]], what: str, name: str, said: Callable[[float], str]) -> str:
    """Return the row with the least cost in words, "" if none is finite or nothing was spent."""
    best = min(rows, key=lambda row: math.inf if math.isnan(row[name]) else row[name])
    cost = best[name]
    if not 0 < cost < math.inf:
        return ""
    return f"{what} {named(best['label'], best['epsilon'])} ({said(cost)})"


def _runs(row: Mapping[str, Any]) -> str:
    said = f"{row['runs']}"
    if row["failures"]:
        said += f", {row['failures']} FAILED"
    return said + (f", {row['not_run']} not run" if row["not_run"] else "")


def _range(row: Mapping[str, Any], name: str, shown: Callable[[float], str]) -> str:
    median, low, high = (row[f"{name}_{what}"] for what in ("median", "min", "max"))
    if math.isnan(median) or low == high:
        return shown(median)
    ends = (shown(end).removesuffix(" %") for end in (low, high))
    return f"{shown(median)} ({' to '.join(ends)})"
