"""`raydpzv audit`: what a finished run's ε is worth, by what an adversary makes of its record or of runs like it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.text import Text

from raydpzv.audit import findings
from raydpzv.audit.audit_page import label_accuracy_over_epsilon, noise_histogram, write_audit
from raydpzv.audit.canaries import LABEL, Canary, chosen
from raydpzv.audit.findings import FALSIFIED, Finding
from raydpzv.audit.label_inference import infer_labels
from raydpzv.audit.ledger_audit import audit_ledger
from raydpzv.audit.recorded import RecordedRun, recorded_run
from raydpzv.audit.rerun import audit_guesses, audit_runs
from raydpzv.errors import SpecError, suggest
from raydpzv.files import as_json as json_text
from raydpzv.report.plots import ReportFigure
from raydpzv.report.table import text_grid
from scenarios import screen
from scenarios.command_options import AuditCommand
from scenarios.display import Bar, Display
from scenarios.run_output import tables_console

Watch = Callable[[int, int], None]


def audit_command(options: AuditCommand) -> None:
    """Audit a run and print the finding; exit with 1 if its ε is falsified."""
    if options.by not in _AUDITS:
        hint = suggest(options.by, _AUDITS)
        raise SpecError(f'--by: wanted {", ".join(_AUDITS)}, got "{options.by}". {hint}'.rstrip())
    run = recorded_run(options.run, options.moved or ())
    with _progress(options.quiet) as watch:
        finding, pictures = _AUDITS[options.by](run, options, watch)
    page = write_audit(options.run, finding, pictures, options.out) if options.out else None
    if options.as_json:
        sys.stdout.write(json_text(finding.facts))
    else:
        _show(finding, page)
    if finding.verdict == FALSIFIED:
        raise typer.Exit(1)


def _by_ledger(run: RecordedRun, options: AuditCommand, watch: Watch) -> tuple[Finding, list[ReportFigure]]:
    found = audit_ledger(run, _canaries(run, options, 3, new_labels=True), watch)
    return findings.of_ledger(run, found), [noise_histogram(found)]


def _by_runs(run: RecordedRun, options: AuditCommand, watch: Watch) -> tuple[Finding, list[ReportFigure]]:
    return findings.of_runs(run, audit_runs(run, _canaries(run, options, 1)[0], options.runs, watch)), []


def _by_guesses(run: RecordedRun, options: AuditCommand, watch: Watch) -> tuple[Finding, list[ReportFigure]]:
    most = len(run.prepared.numbers)
    return findings.of_guesses(run, audit_guesses(run, _canaries(run, options, min(200, most)), watch)), []


def _by_labels(run: RecordedRun, options: AuditCommand, watch: Watch) -> tuple[Finding, list[ReportFigure]]:
    canaries = _canaries(run, options, 20, default_kind=LABEL)
    found = infer_labels(run, canaries, _numbers(options.epsilons), watch)
    return findings.of_labels(run, found), [label_accuracy_over_epsilon(found)]


_AUDITS = {"ledger": _by_ledger, "runs": _by_runs, "guesses": _by_guesses, "labels": _by_labels}


def _canaries(
    run: RecordedRun,
    options: AuditCommand,
    count: int,
    default_kind: str | None = None,
    *,
    new_labels: bool = False,
) -> list[Canary]:
    kinds = options.kind or ([default_kind] if default_kind else [])
    relation = "labels" if default_kind == LABEL else run.relation
    wanted = count if options.canaries is None else options.canaries
    return chosen(
        run.prepared, relation, count=wanted, rows=options.row or (), kinds=kinds, new_labels=new_labels
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f'--epsilons: wanted numbers above 0, comma between them, got "{text}"') from None


def _show(finding: Finding, page: Path | None) -> None:
    console = tables_console()
    console.print(Text(finding.line, style="bold red" if finding.verdict == FALSIFIED else "bold"))
    console.print(text_grid(finding.heads, finding.rows).console())
    for note in finding.notes:
        console.print(Text(note))
    if page:
        console.print(f"page: {page}", soft_wrap=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[Watch]:
    """Show how far the audit is."""
    steps = [0, 0]

    def line() -> str:
        return f"audit: {steps[0]} of {steps[1] or '?'} steps"

    with Display(screen.console(stderr=True), Bar("audit", None), list, line, quiet=quiet) as display:

        def watch(done: int, of: int) -> None:
            steps[:] = done, of
            display.count(done, of)

        yield watch
