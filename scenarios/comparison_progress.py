"""The progress of a comparison, and its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from raydpzv.compare.plan import Comparison, Planned
from raydpzv.compare.run_comparison import STOPPED
from raydpzv.files import as_json as json_text
from raydpzv.report.comparison_table import Compared, table
from raydpzv.report.comparison_text import console_report, heads_line, paper_table, summary_report
from raydpzv.sim.interfaces import Status
from scenarios.display import INTERVAL, Bar, Display
from scenarios.progress import limit_of, score
from scenarios.run_output import tables_console

_WIDTH = 120
"""Columns of the tables where the terminal does not say how many it has."""


class ComparisonProgress:
    """Shows progress while its block runs: a line for each run that ends, and the runs at work.

    reasons: filled with why runs have no result, by their folders' names; the others as in `Display`.
    """

    def __init__(
        self,
        comparison: Comparison,
        todo: Sequence[Planned],
        console: Console,
        reasons: dict[str, str],
        *,
        quiet: bool = False,
        interval: float = INTERVAL,
    ) -> None:
        self._reasons = reasons
        self._at_work: Mapping[str, Status] = {}
        self._names = {p.folder: p for p in todo}
        self._total = len(list(comparison.runs()))
        self._done = self._total - len(todo)
        bar = Bar("runs", self._total)
        self._display = Display(console, bar, self._below, self._line, quiet=quiet, interval=interval)

    def __enter__(self) -> ComparisonProgress:
        self._display.count(self._done)
        if self._done:
            self._display.say(f"{self._done} of {self._total} runs are there already")
        self._display.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._display.__exit__(*details)

    def progress(self, at_work: Mapping[str, Status]) -> None:
        """Show how far the runs at work are."""
        self._at_work = at_work
        self._display.redraw()

    def ended(self, planned: Planned, reason: str) -> None:
        """Print that a run is over, and why it has no result if it has none."""
        if reason:
            self._reasons[planned.folder] = reason
        self._done += reason != STOPPED
        self._display.count(self._done)
        said = reason if reason == STOPPED else f"no result: {reason}" if reason else "done"
        self._display.say(f"{self._done}/{self._total} {planned.line}, seed {planned.spec.seed}: {said}")

    def _lines(self) -> list[str]:
        return [_line(self._names[name], s) for name, s in self._at_work.items() if name in self._names]

    def _below(self) -> list[Text]:
        return [Text(f"  {line}") for line in self._lines()]

    def _line(self) -> str:
        idle = ["waiting for the next run to begin"] if self._done < self._total else []
        return "; ".join([f"{self._done}/{self._total} runs over", *(self._lines() or idle)])


def _line(planned: Planned, status: Status) -> str:
    who = f"{planned.line}, seed {planned.spec.seed}"
    if status.stage:
        return f"{who}: waiting for {status.stage}"
    limit, unit = limit_of(planned.spec)
    amounts = {"updates": float(status.updates), "seconds": status.time}
    at = amounts.get(unit, float(status.bytes_up + status.bytes_down))
    of = f"/{limit:,.0f}" if math.isfinite(limit) else ""
    scored = not (math.isnan(status.accuracy) and math.isnan(status.concordance))
    return f"{who}: {at:,.0f}{of} {unit}{', ' + score(status) if scored else ''}"


def show_comparison(
    comparison: Comparison,
    folder: Path,
    compared: Compared,
    *,
    as_json: bool,
    explain: bool = False,
    latex: bool = False,
) -> None:
    """Print what a comparison comes to: a screen of it or, with `explain`, all; or its table alone as JSON or LaTeX."""
    if latex:
        print(paper_table(compared, comparison.targets), end="")
        return
    if as_json:
        lines = table(compared.runs, compared.curves, comparison.targets).to_pylist()
        rows = {"runs": compared.runs.to_pylist(), "claims": compared.claims.to_pylist()}
        print(json_text({"folder": str(folder), "heads": comparison.heads, "lines": lines} | rows), end="")
        return
    console, report = tables_console(_WIDTH), console_report if explain else summary_report
    console.print(report(compared, comparison.targets))
    if comparison.heads:
        console.print(Text(heads_line(comparison.heads)))
    more = "" if explain else " (costs of every target, every ε and its notes: there, or --explain)"
    console.print(f"\ncomparison: {folder}\npage: {folder / 'comparison.html'}{more}", soft_wrap=True)
