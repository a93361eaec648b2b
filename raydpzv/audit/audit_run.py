"""An audit from a run to its finding: the work of `raydpzv.audit(...)` and of `raydpzv audit`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydpzv.audit import findings
from raydpzv.audit.audit_page import label_accuracy_over_epsilon, noise_histogram, write_audit
from raydpzv.audit.canaries import LABEL, Canary, chosen
from raydpzv.audit.findings import Finding
from raydpzv.audit.label_inference import infer_labels
from raydpzv.audit.ledger_audit import audit_ledger
from raydpzv.audit.recorded import RecordedRun, recorded_run
from raydpzv.audit.rerun import audit_guesses, audit_runs
from raydpzv.config.scenario import AnyScenario
from raydpzv.errors import InputError, SpecError, suggest
from raydpzv.experiment.finalize import Run, folder_of
from raydpzv.experiment.runner import run as run_scenario
from raydpzv.report.plots import ReportFigure

Watch = Callable[[int, int], None]
"""Told of each step that is done, and of how many there are."""


@dataclass(frozen=True, kw_only=True)
class AuditTerms:
    """How a run is audited, as `raydpzv audit` has it; moved: where its data are now, see
    `RunFolder.open`.
    """

    by: str = "ledger"
    canaries: int | None = None
    row: Sequence[int] = ()
    kind: Sequence[str] = ()
    runs: int = 100
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0)
    moved: Sequence[str] = ()


def audit(
    run: Run | AnyScenario | str | Path,
    out: str | Path | None = None,
    *,
    watch: Watch = lambda done, of: None,
    **terms: Any,
) -> Finding:
    """Try to falsify a run's ε, as `raydpzv audit` does (docs/audit.md).

    run: a finished run or its folder; a scenario is run first, into a folder that is deleted. out:
    a folder for the
    page, pictures and JSON. terms: by ("ledger", "runs", "guesses" or "labels"), canaries, row,
    kind, runs, epsilons, moved. Raises InputError.
    """
    given = AuditTerms(**terms)
    if given.by not in _AUDITS:
        hint = suggest(given.by, _AUDITS)
        raise SpecError(f'--by: wanted {", ".join(_AUDITS)}, got "{given.by}". {hint}'.rstrip())
    if isinstance(run, AnyScenario):
        if run.one_model or not run.noised:
            raise InputError(
                "audit: wanted a vertical scenario with privacy.mode set, whose ε can be "
                f"falsified, got {run.method.name}"
            )
        with tempfile.TemporaryDirectory() as folder:
            return audit(run_scenario(run, Path(folder) / "audited"), out, watch=watch, **terms)
    path = folder_of(run, "audit")
    finding, pictures = _AUDITS[given.by](recorded_run(path, given.moved), given, watch)
    if out:
        write_audit(path, finding, pictures, Path(out))
    return finding


def _by_ledger(
    run: RecordedRun, options: AuditTerms, watch: Watch
) -> tuple[Finding, list[ReportFigure]]:
    found = audit_ledger(run, _canaries(run, options, 4, refusable=True), watch)
    return findings.of_ledger(run, found), [noise_histogram(found)]


def _by_runs(
    run: RecordedRun, options: AuditTerms, watch: Watch
) -> tuple[Finding, list[ReportFigure]]:
    return findings.of_runs(
        run, audit_runs(run, _canaries(run, options, 1)[0], options.runs, watch)
    ), []


def _by_guesses(
    run: RecordedRun, options: AuditTerms, watch: Watch
) -> tuple[Finding, list[ReportFigure]]:
    most = len(run.prepared.numbers)
    return findings.of_guesses(
        run, audit_guesses(run, _canaries(run, options, min(200, most)), watch)
    ), []


def _by_labels(
    run: RecordedRun, options: AuditTerms, watch: Watch
) -> tuple[Finding, list[ReportFigure]]:
    canaries = _canaries(run, options, 20, default_kind=LABEL)
    found = infer_labels(run, canaries, options.epsilons, watch)
    return findings.of_labels(run, found), [label_accuracy_over_epsilon(found)]


_AUDITS = {"ledger": _by_ledger, "runs": _by_runs, "guesses": _by_guesses, "labels": _by_labels}


def _canaries(
    run: RecordedRun,
    options: AuditTerms,
    count: int,
    default_kind: str | None = None,
    *,
    refusable: bool = False,
) -> list[Canary]:
    kinds = options.kind or ([default_kind] if default_kind else [])
    relation = "labels" if default_kind == LABEL else run.relation
    wanted = count if options.canaries is None else options.canaries
    return chosen(
        run.prepared, relation, count=wanted, rows=options.row, kinds=kinds, refusable=refusable
    )
