"""What a person sees: live progress, then tables. Quiet when not on a terminal."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from raydpzv.config.scenario import AnyScenario, HorizontalScenario, VerticalScenario
from raydpzv.report.text import size
from raydpzv.sim.interfaces import Status
from scenarios import screen

_REDRAW = 0.1
"""Seconds between redraws; between them a call costs next to nothing."""


@contextmanager
def live_progress(spec: AnyScenario, console: Console) -> Iterator[Callable[[Status], None]]:
    """Show progress while the block runs; yields the function to call with where the run stands."""
    if not console.is_terminal:
        yield lambda status: None
        return
    limit, unit = limit_of(spec)
    bar = Progress(
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    rounds = isinstance(spec, HorizontalScenario) and not _pulls(spec) and not spec.descriptor.agent
    task = bar.add_task("rounds" if unit == "updates" and rounds else unit, total=limit)
    last, latest = 0.0, Status()
    delta = (spec.privacy.delta if isinstance(spec, VerticalScenario) else None) or math.nan

    with Live(Group(bar, Text("starting")), console=console, refresh_per_second=4) as live:

        def draw(status: Status) -> None:
            amounts = {"updates": float(status.updates), "seconds": status.time}
            bar.update(task, completed=amounts.get(unit, status.bytes_up + status.bytes_down))
            live.update(Group(bar, *_facts(status, spec, delta)))

        def update(status: Status) -> None:
            nonlocal last, latest
            latest = status
            if time.monotonic() - last >= _REDRAW:
                last = time.monotonic()
                draw(status)

        yield update
        draw(latest)


def _facts(status: Status, spec: AnyScenario, delta: float) -> list[Text]:
    """Accuracy, bytes and what is stale; then ε with all its terms, if there is one."""
    sent = f"up {size(status.bytes_up)}  down {size(status.bytes_down)}"
    lines = [f"accuracy {_number(status.accuracy, '.3f')}  {sent}{_stale(status, spec)}"]
    if not math.isnan(status.epsilon_paper):
        lines += [
            f"ε (Gaussian mechanism, replace one record, δ={delta:g}, closed-form GDP):",
            f"  {_number(status.epsilon_paper, ',.3g')} claimed by the paper, not proved; "
            f"{_number(status.epsilon_client, ',.4g')} proved against the clients",
        ]
    return [Text(line) for line in lines]


def _stale(status: Status, spec: AnyScenario) -> str:
    """Ages of cached embeddings (vertical) or lag (asynchronous), and the late share; rounds wait, nothing is stale."""
    late = f"late {status.late / status.uploads if status.uploads else 0.0:.0%}"
    if isinstance(spec, VerticalScenario):
        return f"  staleness {_number(status.staleness, '.1f')} rounds  {late}"
    return f"  lag {_number(status.staleness, ',.0f')} updates  {late}" if _pulls(spec) else ""


def _pulls(spec: AnyScenario) -> bool:
    return isinstance(spec, HorizontalScenario) and spec.descriptor.pulls(spec.method)


@contextmanager
def stop_on_signal(console: Console) -> Iterator[threading.Event]:
    """Turn the first Ctrl-C (or SIGTERM) into a clean stop; a second one interrupts at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        console.print("stopping after the update in progress; once more to interrupt at once")

    signals = (signal.SIGINT, signal.SIGTERM)
    before: list[Any] = [signal.signal(number, handle) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def limit_of(spec: AnyScenario) -> tuple[float, str]:
    """Return the budget that a bar is drawn against, and its unit: "updates", "seconds" or "bytes"."""
    budget = spec.budget
    if budget.updates is not None:
        return budget.updates, "updates"
    if budget.seconds is not None:
        return budget.seconds, "seconds"
    if budget.bytes is not None:
        return budget.bytes, "bytes"
    return math.inf, "updates"


def _number(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else format(value, form)


def show_run(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """Print a run's summary: tables, or its summary.json alone."""
    if as_json:
        print((folder / "summary.json").read_text(), end="")
        return
    from raydpzv.report.privacy import PrivacyBlock
    from raydpzv.report.tables import summary_table, verdict_line

    console = screen.console()
    console.print(summary_table(summary))
    console.print()
    if summary["epsilon"]:
        console.print(PrivacyBlock(summary["epsilon"]))
        console.print()
    console.print(verdict_line(summary["privacy_verdict"]))
    for warning in summary["warnings"]:
        console.print(Text(f"warning: {warning}", style="yellow"))
    console.print(f"\nrun folder: {folder}\nreport: raydpzv report {folder}", soft_wrap=True)


def show_privacy(table: list[dict[str, Any]], why: str, facts: dict[str, Any], *, planned: bool) -> None:
    """Print what is known of a scenario's privacy before it runs."""
    from raydpzv.report.privacy import PrivacyBlock, calibration
    from raydpzv.report.tables import verdict_line

    console = screen.console()
    if table:
        console.print(Text(calibration(facts)))
        if not planned:
            console.print("The scenario plans no number of updates: this is the table for ONE update.")
        console.print()
        console.print(PrivacyBlock(table))
        console.print()
    console.print(verdict_line(why))
    if table and facts["delta"] * facts["rows"] > 1:
        console.print(
            Text(
                f"warning: δ={facts['delta']:g} is above 1/D (D·δ = {facts['delta'] * facts['rows']:.3g}): such an ε "
                "permits revealing whole records",
                style="yellow",
            )
        )
