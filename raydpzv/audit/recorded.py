"""A finished run as an audit needs it: its folder, its record and what it claims; or what is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from raydpzv.config.scenario import VerticalScenario
from raydpzv.errors import DataError, InputError, command
from raydpzv.experiment.release_ledger import compare, released
from raydpzv.experiment.resuming import check_recomputable, check_same, prepared_again
from raydpzv.experiment.vertical import PreparedVertical
from raydpzv.ledger.ledger import Ledger
from raydpzv.privacy.mechanisms import Address
from raydpzv.records.run_folder import RunFolder, unended
from raydpzv.records.store import Rows
from raydpzv.report import text


@dataclass(frozen=True)
class RecordedRun:
    """A finished vertical run with noise: folder, scenario with its data, summary."""

    folder: RunFolder
    prepared: PreparedVertical
    summary: Mapping[str, Any]

    @property
    def spec(self) -> VerticalScenario:
        return self.prepared.spec

    @property
    def relation(self) -> str:
        """What neighbouring tables of the run differ in: "replace", "labels" or "add_remove"."""
        return getattr(self.spec.privacy, "relation", None) or "replace"

    @property
    def updates(self) -> int:
        return int(self.summary["updates"])

    def claim(self, adversary: str) -> Mapping[str, Any] | None:
        """Return what the run says of this adversary under its relation; None if it says
        nothing.
        """
        wanted, claims = (adversary, self.relation), self.summary.get("epsilon") or ()
        return next((c for c in claims if (c["adversary"], c["relation"]) == wanted), None)

    def delta(self, adversary: str) -> float:
        """Return δ of what the run says of this adversary, 1/(10 D) if it says none."""
        claim = self.claim(adversary)
        if claim is None or not text.known(claim["delta"]):
            return 0.1 / len(self.prepared.numbers)
        return float(claim["delta"])


def recorded_run(path: Path, moved: Sequence[str] = ()) -> RecordedRun:
    """Open the folder of a finished run. moved: see `RunFolder.open`.

    Raises DataError if it is no run's folder, InputError if it is what was published of one or a
    horizontal run, if the run has not ended or adds no noise, or if scenario or data are not what
    they were.
    """
    folder = RunFolder.open(path, moved)
    if folder.published:
        raise InputError(
            f"{path}: holds what was published of a run, which has neither its rows nor its data; "
            "an audit is the operator's: give the run's own folder"
        )
    spec = folder.spec()
    if spec.one_model:
        raise InputError(
            f"{path}: {spec.method.name} is a horizontal method, whose claims no audit here can "
            "falsify; an audit wants a vertical run with privacy.mode set"
        )
    if folder.completed_by() is None:
        again = f"continue it first: {command('resume', path)}"
        why = again if folder.has_summary() else unended(path)
        raise InputError(
            f"{path}: this run has not finished, so what it releases is not known; {why}"
        )
    prepared = cast(PreparedVertical, prepared_again(folder))
    check_same(prepared, folder)
    if prepared.setting is None:
        raise InputError(
            f"{path}: the run adds no noise and claims no ε; there is nothing to falsify"
        )
    return RecordedRun(folder, prepared, folder.summary())


def recorded_releases(run: RecordedRun) -> tuple[Rows, dict[Address, float]]:
    """Return the rows of a run and its releases, which are those of its ledger. Raises InputError
    without a ledger.
    """
    path, plan = run.folder.path, run.prepared.plan()
    if plan is None:
        raise InputError(
            f"{path}: {run.spec.method.name} keeps no ledger of its releases; use --by runs or "
            "--by guesses"
        )
    check_recomputable(run.prepared, path)
    if not (run.folder.ledger / "header.json").is_file():
        raise DataError(
            f"{path}: has no ledger (ledger/header.json), which holds what the run released; "
            "restore it from a copy, or use --by runs or --by guesses"
        )
    rows = run.folder.rows()
    with Ledger.open(run.folder.ledger, expect=plan.header()) as ledger:
        compare(rows, ledger)
        return rows, released(rows, ledger)
