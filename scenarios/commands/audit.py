"""`raydpzv audit`: what a finished run's ε is worth, by what an adversary makes of its record or of
runs like it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.text import Text

from raydpzv.audit.audit_run import Watch, audit
from raydpzv.audit.findings import FALSIFIED, Finding
from raydpzv.files import as_json as json_text
from raydpzv.report.table import text_grid
from scenarios import screen
from scenarios.command_options import AuditCommand
from scenarios.display import Bar, Display
from scenarios.options import numbers
from scenarios.run_output import tables_console


def audit_command(options: AuditCommand) -> None:
    """Audit a run and print the finding; exit with 1 if its ε is falsified."""
    with _progress(options.quiet) as watch:
        finding = audit(
            options.run,
            options.out,
            watch=watch,
            by=options.by,
            canaries=options.canaries,
            row=options.row or (),
            kind=options.kind or (),
            runs=options.runs,
            epsilons=numbers("--epsilons", options.epsilons),
            moved=options.moved or (),
        )
    if options.as_json:
        sys.stdout.write(json_text(finding.facts))
    else:
        _show(finding, options.out)
    if finding.verdict == FALSIFIED:
        raise typer.Exit(1)


def _show(finding: Finding, out: Path | None) -> None:
    console = tables_console()
    console.print(Text(finding.line, style="bold red" if finding.verdict == FALSIFIED else "bold"))
    console.print(text_grid(finding.heads, finding.rows).console())
    for note in finding.notes:
        console.print(Text(note))
    if out:
        console.print(f"page: {out / 'audit.html'}", soft_wrap=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[Watch]:
    """Show how far the audit is."""
    steps = [0, 0]

    def line() -> str:
        return (
            f"audit: {steps[0]} of {steps[1]} steps"
            if steps[1]
            else "audit: reading the run and its data"
        )

    with Display(
        screen.console(stderr=True), Bar("audit", None), list, line, quiet=quiet
    ) as display:

        def watch(done: int, of: int) -> None:
            steps[:] = done, of
            display.count(done, of)

        yield watch
