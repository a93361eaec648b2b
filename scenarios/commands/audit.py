"""`raydpzv audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydpzv.interrupts import leaving_at_once
from scenarios.option_groups import AuditOptions, ShortOutput
from scenarios.options import Moved


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a complete run.")],
    options: AuditOptions,
    output: ShortOutput,
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the audit's page, pictures and JSON.")] = None,
) -> None:
    """Try to falsify a run's ε: print an observed ε beside the proved one; exit with 1 if it is falsified."""
    with leaving_at_once():
        from scenarios.audit_command import audit as audit_run
    audit_run(run, options, moved or (), out, as_json=output.as_json, quiet=output.quiet)
