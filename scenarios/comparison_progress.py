"""What a person sees of a comparison: which runs are over and where the others stand, then the tables."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from raydpzv.compare.plan import Comparison, Planned
from raydpzv.compare.run_comparison import STOPPED
from raydpzv.files import as_json as json_text
from raydpzv.report.comparison_table import Compared, table
from raydpzv.report.comparison_text import console_report, heads_line, summary_report
from raydpzv.sim.interfaces import Status
from scenarios.progress import INTERVAL, limit_of, repeated, score
from scenarios.run_output import tables_console

_REDRAW = 0.2
"""Seconds between redraws."""
_WIDTH = 120
"""Columns of the tables where the terminal does not say how many it has."""


class Watch:
    """Shows progress while its block runs: a line for each run that ends, and what runs.

    What runs is drawn below a bar on a terminal, and is a line every `interval` seconds elsewhere. reasons: filled with
    why runs have no result, by their folders' names; quiet: show nothing.
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
        self._console, self._reasons, self._quiet, self._interval = console, reasons, quiet, interval
        self._standing: Mapping[str, Status] = {}
        self._names = {p.folder: p for p in todo}
        total = len(list(comparison.runs()))
        self._done, self._total, self._last = total - len(todo), total, 0.0
        self._bar = Progress(
            TextColumn("runs"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._bar.add_task("runs", total=total, completed=self._done)
        self._stack = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Watch:
        if self._quiet:
            return self
        if self._done:
            self._console.print(f"{self._done} of {self._total} runs are there already", highlight=False)
        if self._console.is_terminal:
            self._live = self._stack.enter_context(
                Live(self._bar, console=self._console, refresh_per_second=4)
            )
        else:
            self._stack.enter_context(repeated(self._interval, self._say))
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def progress(self, standing: Mapping[str, Status]) -> None:
        """Show where the runs at work stand."""
        self._standing = standing
        if self._live is None or time.monotonic() - self._last < _REDRAW:
            return
        self._last = time.monotonic()
        self._live.update(Group(self._bar, *(Text(f"  {line}") for line in self._at_work())))

    def _at_work(self) -> list[str]:
        return [_line(self._names[name], s) for name, s in self._standing.items() if name in self._names]

    def _say(self) -> None:
        at_work = "; ".join(self._at_work()) or "waiting for the first run to begin"
        self._console.print(Text(f"{self._done}/{self._total} runs over; {at_work}"), soft_wrap=True)

    def ended(self, planned: Planned, reason: str) -> None:
        """Say that a run is over, and why it has no result if it has none."""
        if reason:
            self._reasons[planned.folder] = reason
        self._done += reason != STOPPED
        self._bar.update(self._task, completed=self._done)
        if self._quiet:
            return
        said = reason if reason == STOPPED else f"no result: {reason}" if reason else "done"
        line = f"{self._done}/{self._total} {planned.line}, seed {planned.spec.seed}: {said}"
        self._console.print(Text(line), soft_wrap=True)


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
    comparison: Comparison, folder: Path, compared: Compared, *, as_json: bool, explain: bool
) -> None:
    """Print what a comparison comes to: a screen of it or, with `explain`, all; or the lines of its table as JSON."""
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
