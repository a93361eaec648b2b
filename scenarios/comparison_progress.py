"""The progress of a comparison, and its tables."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from raydpzv.compare.compare_methods import PoolWatch
from raydpzv.compare.plan import Comparison, Planned
from raydpzv.compare.run_comparison import STOPPED
from raydpzv.files import as_json as json_text
from raydpzv.report.comparison_table import Compared, ComparisonView
from raydpzv.report.comparison_text import heads_line, paper_table, summary_report
from raydpzv.sim.interfaces import Status
from scenarios.display import INTERVAL, Bar, Display
from scenarios.progress import amount_of, limit_of, score
from scenarios.run_output import tables_console

_WIDTH = 120
"""Columns of the tables where the terminal does not say how many it has."""


@contextmanager
def comparison_progress(
    comparison: Comparison,
    todo: Sequence[Planned],
    console: Console,
    stop: threading.Event,
    *,
    quiet: bool = False,
    interval: float = INTERVAL,
) -> Iterator[PoolWatch]:
    """Show progress while the block runs: a line for each run that ends, and the runs at work.

    Yields their observer. stop: the event by which it stops them; the others as in `Display`.
    """
    names, total = {p.folder: p for p in todo}, len(list(comparison.runs()))
    done, working = total - len(todo), dict[str, Status]()

    def lines() -> list[str]:
        return [_line(names[name], status) for name, status in working.items() if name in names]

    def below() -> list[Text]:
        return [Text(f"  {line}") for line in lines()]

    def line() -> str:
        idle = ["waiting for the next run to begin"] if done < total else []
        return "; ".join([f"{done}/{total} runs over", *(lines() or idle)])

    def progress(at_work: Mapping[str, Status]) -> None:
        nonlocal working
        working = dict(at_work)
        display.redraw()

    def ended(planned: Planned, reason: str) -> None:
        nonlocal done
        done += reason != STOPPED
        display.count(done)
        said = reason if reason == STOPPED else f"no result: {reason}" if reason else "done"
        display.say(f"{done}/{total} {planned.line}, seed {planned.spec.seed}: {said}")

    display = Display(console, Bar("runs", total), below, line, quiet=quiet, interval=interval)
    display.count(done)
    if done:
        display.say(f"{done} of {total} runs are there already")
    with display:
        yield PoolWatch(progress, ended, stop)


def _line(planned: Planned, status: Status) -> str:
    who = f"{planned.line}, seed {planned.spec.seed}"
    if status.stage:
        return f"{who}: waiting for {status.stage}"
    limit, unit = limit_of(planned.spec)
    of = f"/{limit:,.0f}" if math.isfinite(limit) else ""
    scored = not (math.isnan(status.accuracy) and math.isnan(status.concordance))
    return (
        f"{who}: {amount_of(status, unit):,.0f}{of} {unit}{', ' + score(status) if scored else ''}"
    )


def show_comparison(
    comparison: Comparison, folder: Path, compared: Compared, *, as_json: bool, latex: bool = False
) -> None:
    """Print a screen of what a comparison comes to, or its table alone as JSON or LaTeX."""
    view = ComparisonView(compared, comparison.targets)
    if latex:
        print(paper_table(view), end="")
        return
    if as_json:
        rows = {
            "lines": view.rows,
            "runs": compared.runs.to_pylist(),
            "claims": compared.claims.to_pylist(),
        }
        print(json_text({"folder": str(folder), "heads": comparison.heads} | rows), end="")
        return
    console = tables_console(_WIDTH)
    console.print(summary_report(view))
    if comparison.heads:
        console.print(Text(heads_line(comparison.heads)))
    page = f"{folder / 'comparison.html'} (with the costs of every target, every ε and its notes)"
    console.print(f"\ncomparison: {folder}\npage: {page}", soft_wrap=True)
