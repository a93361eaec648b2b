"""`raydpzv report`: write a page and pictures of runs."""

from __future__ import annotations

from raydpzv.compare.compare_methods import write
from raydpzv.compare.folder import PLAN, is_comparison
from raydpzv.compare.plan import read_comparison
from raydpzv.compare.results import collect
from raydpzv.errors import InputError
from scenarios.command_options import ReportCommand


def report_command(options: ReportCommand) -> None:
    """Write the report of runs, or of one comparison that may still be running, and print where it is."""
    runs, moved, out = options.runs, options.moved or (), options.out
    from raydpzv.report.page import write_report

    if compared := [run for run in runs if is_comparison(run)]:
        if len(runs) > 1:
            raise InputError(f"{compared[0]}: is a comparison; it is reported alone")
        plan = read_comparison(runs[0] / PLAN, moved)
        print(write(plan, runs[0], collect(plan, runs[0]), out))
        return
    print(write_report(runs, out, moved=moved, operator=options.operator))
