"""`raydpzv report`: write a page and pictures of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raydpzv.files import is_comparison
from raydpzv.storage.download import local_copy
from raydpzv.storage.filesystem import is_uri
from scenarios.command_options import ReportCommand


def report_command(options: ReportCommand) -> None:
    """Write the report of runs, or of one comparison that may still be running, and print where it
    is.
    """
    make: Callable[..., Path]
    runs = [local_copy(run) if is_uri(run) else Path(run) for run in options.runs]
    if any(map(is_comparison, runs)):
        from raydpzv.compare.compare_methods import report as make
    else:
        from raydpzv.report.page import write_report as make
    print(make(runs, options.out, moved=options.moved or (), form=options.format))
