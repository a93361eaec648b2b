"""`raydpzv report`: write a page and pictures of runs."""

from __future__ import annotations

from raydpzv.compare.compare_methods import report
from scenarios.command_options import ReportCommand


def report_command(options: ReportCommand) -> None:
    """Write the report of runs, or of one comparison that may still be running, and print where it is."""
    moved = options.moved or ()
    print(report(options.runs, options.out, moved=moved, operator=options.operator, form=options.format))
