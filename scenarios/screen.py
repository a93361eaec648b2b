"""What a person sees: live progress, then tables. Quiet when not on a terminal."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from raydpzv.experiment.spec import Spec
from raydpzv.report.text import size
from raydpzv.sim.desk import Status


class _Facts(ProgressColumn):
    """Accuracy, ε, bytes and staleness of the run in progress."""

    def render(self, task: Task) -> Text:
        status: Status | None = task.fields.get("status")
        if status is None:
            return Text("starting")
        parts = [
            f"accuracy {_number(status.accuracy, '.3f')}",
            f"up {size(status.bytes_up)} down {size(status.bytes_down)}",
            f"staleness {_number(status.staleness, '.1f')}",
        ]
        if not math.isnan(status.epsilon_paper):
            parts.insert(1, _epsilons(status, task.fields["delta"]))
        return Text("  ".join(parts))


def _epsilons(status: Status, delta: float) -> str:
    """Both numbers name whose they are; relation: replace one record; the full terms stand in the table after."""
    return (
        f"ε at δ={delta:g}: paper's claim {_number(status.epsilon_paper, '.3g')}, "
        f"proved against clients {_number(status.epsilon_client, '.3g')}"
    )


@contextmanager
def live_progress(spec: Spec, console: Console) -> Iterator[Callable[[Status], None]]:
    """Show progress while the block runs; yields the function to call with where the run stands."""
    if not console.is_terminal:
        yield lambda status: None
        return
    columns = (
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}"),
        BarColumn(bar_width=20),
        _Facts(),
        TimeRemainingColumn(),
    )
    limit, unit = _limit(spec)
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        task = progress.add_task(unit, total=limit, status=None, delta=spec.privacy.delta or math.nan)

        def update(status: Status) -> None:
            done = {"updates": status.updates, "seconds": status.time}.get(
                unit, status.bytes_up + status.bytes_down
            )
            progress.update(task, completed=done, status=status)

        yield update


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


def _limit(spec: Spec) -> tuple[float, str]:
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

    console = Console()
    console.print(summary_table(summary))
    console.print()
    if summary["epsilon"]:
        console.print(PrivacyBlock(summary["epsilon"]))
        console.print()
    console.print(verdict_line(summary["privacy_verdict"]))
    console.print(f"\nrun folder: {folder}\nreport: raydpzv report {folder}", soft_wrap=True)


def show_privacy(table: list[dict[str, Any]], why: str, facts: dict[str, Any], *, planned: bool) -> None:
    """Print what is known of a scenario's privacy before it runs."""
    from raydpzv.report.privacy import PrivacyBlock, calibration
    from raydpzv.report.tables import verdict_line

    console = Console()
    if table:
        console.print(Text(calibration(facts)))
        if not planned:
            console.print("The scenario plans no number of updates: this is the table for ONE update.")
        console.print()
        console.print(PrivacyBlock(table))
        console.print()
    console.print(verdict_line(why))
