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
from raydpzv.compare.results import Compared
from raydpzv.compare.run_comparison import STOPPED
from raydpzv.compare.table import table
from raydpzv.files import as_json as json_text
from raydpzv.sim.interfaces import Status
from scenarios import screen
from scenarios.progress import limit_of

_REDRAW = 0.2
"""Seconds between redraws."""
_WIDTH = 120
"""Columns of the tables where the terminal does not say how many it has."""


class Watch:
    """Shows progress while its block runs: a line for each run that ends; on a terminal also a bar, and what runs.

    reasons: filled with why runs have no result, by their folders' names.
    """

    def __init__(
        self, comparison: Comparison, todo: Sequence[Planned], console: Console, reasons: dict[str, str]
    ) -> None:
        self._console, self._reasons = console, reasons
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
        if self._done:
            self._console.print(f"{self._done} of {self._total} runs are there already", highlight=False)
        if self._console.is_terminal:
            self._live = self._stack.enter_context(
                Live(self._bar, console=self._console, refresh_per_second=4)
            )
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def progress(self, standing: Mapping[str, Status]) -> None:
        """Show where the runs at work stand."""
        if self._live is None or time.monotonic() - self._last < _REDRAW:
            return
        self._last = time.monotonic()
        lines = [_line(self._names[name], status) for name, status in standing.items() if name in self._names]
        self._live.update(Group(self._bar, *lines))

    def ended(self, planned: Planned, reason: str) -> None:
        """Say that a run is over, and why it has no result if it has none."""
        if reason:
            self._reasons[planned.folder] = reason
        self._done += reason != STOPPED
        self._bar.update(self._task, completed=self._done)
        said = reason if reason == STOPPED else f"no result: {reason}" if reason else "done"
        line = f"{self._done}/{self._total} {planned.line}, seed {planned.spec.seed}: {said}"
        self._console.print(Text(line), soft_wrap=True)


def _line(planned: Planned, status: Status) -> Text:
    limit, unit = limit_of(planned.spec)
    amounts = {"updates": float(status.updates), "seconds": status.time}
    at = amounts.get(unit, float(status.bytes_up + status.bytes_down))
    of = f"/{limit:,.0f}" if math.isfinite(limit) else ""
    accuracy = "" if math.isnan(status.accuracy) else f", accuracy {status.accuracy:.3f}"
    return Text(f"  {planned.line}, seed {planned.spec.seed}: {at:,.0f}{of} {unit}{accuracy}")


def show_comparison(comparison: Comparison, folder: Path, compared: Compared, as_json: bool) -> None:
    """Print what a comparison comes to: tables, or the lines of its table as JSON."""
    tables = (compared.runs, compared.curves)
    if as_json:
        lines = table(*tables, comparison.targets).to_pylist()
        rows = {"runs": compared.runs.to_pylist(), "claims": compared.claims.to_pylist()}
        print(json_text({"folder": str(folder), "lines": lines} | rows), end="")
        return
    from raydpzv.compare.page import console_report

    console = screen.console()
    if not console.is_terminal:
        console = screen.console(width=_WIDTH)
    console.print(console_report(*tables, compared.claims, comparison.targets))
    console.print(f"\ncomparison: {folder}\npage: {folder / 'comparison.html'}", soft_wrap=True)
