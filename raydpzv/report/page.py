"""The report of one run or of several side by side: PNG pictures and one self-contained HTML page.

The page holds its pictures and its style; it asks nothing of a network and runs no script. It is light only:
the pictures have white grounds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from raydpzv.errors import InputError
from raydpzv.files import write_atomically
from raydpzv.privacy.claim_words import stated
from raydpzv.privacy.claim_words import withheld as is_withheld
from raydpzv.records.publish import publication
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import SCHEMAS
from raydpzv.report import (
    client_table,
    clients,
    horizontal,
    plots,
    privacy,
    style,
    tables,
    traffic,
    user_level,
)
from raydpzv.report.figure import ReportFigure, RunView
from raydpzv.report.run_names import labels
from raydpzv.storage.download import check_not_midway

DRAWINGS: tuple[Callable[[Sequence[RunView]], ReportFigure | None], ...] = (
    plots.accuracy_over_updates,
    plots.accuracy_over_seconds,
    plots.accuracy_over_bytes,
    plots.loss_over_updates,
    traffic.bytes_per_update,
    traffic.missed_over_updates,
    traffic.lag_histogram,
    plots.epsilon_over_updates,
    user_level.records_per_user,
    clients.staleness_by_client,
    clients.timeline,
)
"""Every picture of a report, in the page's order."""
TARGETS = (0.8, 0.9)
"""Test accuracies for which a report of several runs says what they cost, if a run reached them."""


@dataclass(frozen=True)
class ReportedRun:
    """What a report shows of a run: what pictures need, the scenario as text and tree, the environment as JSON.

    withheld: what a private run's page leaves out, in words; "" if it shows all that there is. operators: whether the
    page of a private run shows what must not leave.
    """

    view: RunView
    scenario: str
    settings: Mapping[str, Any]
    environment: str
    withheld: str = ""
    operators: bool = False


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    targets: Sequence[float] = TARGETS,
    moved: Sequence[str] = (),
    operator: bool = False,
) -> Path:
    """Write `plots/*.png` and `report.html` into `out` (one run: its own folder by default); return the page.

    Of a private run it shows what may leave (`raydpzv.records.publish`); with `operator`, everything.
    targets: test accuracies, shares of 1, for which several runs are compared by what it took to reach them. moved: see
    `RunFolder.open`; a report reads no data, so it may be left out. Raises DataError if a folder is not a run's,
    InputError if several runs are given without `out`.
    """
    if not runs:
        raise InputError("a report needs at least one run folder; none was given")
    if out is None and len(runs) > 1:
        raise InputError(f"{len(runs)} runs need a folder of their own for the report; say which one")
    folders = read_runs(runs, moved, operator=operator)
    target = runs[0] if out is None else out
    (target / "plots").mkdir(parents=True, exist_ok=True)
    drawn = [p for draw in DRAWINGS if (p := draw([f.view for f in folders]))]
    images = [style.png(p.figure) if p.figure else b"" for p in drawn]
    _write_pictures(
        target / "plots", {p.name: image for p, image in zip(drawn, images, strict=True) if image}
    )
    page = _render(folders, [(p.caption, image) for p, image in zip(drawn, images, strict=True)], targets)
    write_atomically(target / "report.html", page.encode())
    return target / "report.html"


def _write_pictures(folder: Path, images: Mapping[str, bytes]) -> None:
    """Write pictures by name, and delete those of another page: an operator's are not to lie beside a public one."""
    for name in {draw.__name__ for draw in DRAWINGS} - set(images):
        (folder / f"{name}.png").unlink(missing_ok=True)
    for name, image in images.items():
        write_atomically(folder / f"{name}.png", image)


def read_runs(runs: Sequence[Path], moved: Sequence[str] = (), *, operator: bool = True) -> list[ReportedRun]:
    """Read run folders and label them so that they can be told apart; operator: all of private ones too.

    Raises DataError; InputError if all is asked for of what was published, or for what was fetched in mid-run.
    """
    for run in runs:
        check_not_midway(run)
    found = [_read(RunFolder.open(run, moved), operator=operator) for run in runs]
    names = labels([run.view.summary for run in found], [run.settings for run in found])
    return [replace(run, view=replace(run.view, label=name)) for run, name in zip(found, names, strict=True)]


def _read(folder: RunFolder, *, operator: bool) -> ReportedRun:
    """Return what is shown of a run, without a label."""
    summary, settings = folder.summary(), folder.settings()
    environment, scenario = folder.environment(), folder.scenario()
    if folder.published and operator:
        raise InputError(
            f"{folder.path}: holds what was published of a run alone; --operator wants the run's own folder"
        )
    private = is_withheld(summary)
    if operator or not private:
        view = RunView("", summary, folder.rows())
        return ReportedRun(view, scenario, settings, _shown(environment), operators=private)
    if not folder.published:
        found = publication(summary, settings, environment)
        summary, settings, environment = found.summary, found.settings, found.environment
        scenario = tomli_w.dumps(settings)
    nothing = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    withheld = str(summary["published"]["withheld"])
    return ReportedRun(RunView("", summary, nothing), scenario, settings, _shown(environment), withheld)


def _shown(environment: Mapping[str, Any]) -> str:
    return json.dumps(environment, indent=2, ensure_ascii=False)


@cache
def templates() -> jinja2.Environment:
    """Return the templates of all pages, each compiled once."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("raydpzv.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )


def _render(
    folders: Sequence[ReportedRun], pictures: Sequence[tuple[str, bytes]], targets: Sequence[float]
) -> str:
    views = [f.view for f in folders]
    names, summaries = [v.label for v in views], [v.summary for v in views]
    compare_head, compare = tables.compare_rows(names, summaries)
    return (
        templates()
        .get_template("page.html.jinja")
        .render(
            title=_title(summaries),
            facts=_facts(summaries),
            runs=[_for_page(f, alone=len(folders) == 1) for f in folders],
            condition=privacy.CONDITION,
            compare_head=compare_head,
            compare=compare,
            compare_note=tables.COMPARE_NOTE,
            target_head=tables.TARGET_HEAD,
            targets=tables.target_rows(names, [v.rows for v in views], targets),
            client_head=client_table.CLIENT_HEAD,
            client_note=client_table.CLIENT_NOTE,
            phase_head=user_level.PHASE_HEAD,
            phase_note=user_level.PHASE_NOTE,
            pictures=[{"caption": c, "image": base64.b64encode(i).decode()} for c, i in pictures],
        )
    )


def _for_page(folder: ReportedRun, *, alone: bool) -> dict[str, Any]:
    view, summary, tree = folder.view, folder.view.summary, folder.settings
    traffic_rows = horizontal.client_rows(view.rows["message"]) if view.horizontal else []
    if view.horizontal and not alone:  # what a lone run's summary table says already
        traffic_rows = [*horizontal.lag_rows(summary), *horizontal.ledger_rows(summary), *traffic_rows]
    return {
        "label": view.label,
        "verdict": stated(summary),
        "warnings": summary.get("warnings", []),
        "withheld": folder.withheld,
        "operators": folder.operators,
        "summary": tables.published_rows(summary)
        if folder.withheld
        else tables.summary_rows(summary, clock=(tree.get("clock") or {}).get("kind", "virtual")),
        "claims": privacy.privacy_table(summary.get("epsilon") or ()),
        "clients": client_table.client_table_rows(summary, view.rows, tree),
        "catch_up": traffic_rows,
        "phases": user_level.phase_rows(view.rows),
        "scenario": folder.scenario,
        "environment": folder.environment,
    }


def _title(summaries: Sequence[tables.Summary]) -> str:
    if len(summaries) > 1:
        return f"{len(summaries)} runs side by side"
    return f"{summaries[0].get('scenario')}: {summaries[0].get('method')}"


def _facts(summaries: Sequence[tables.Summary]) -> str:
    if len(summaries) > 1:
        return ", ".join(sorted({str(s.get("scenario")) for s in summaries}))
    rows = dict(tables.summary_rows(summaries[0]))
    return f"method {rows['method']}, seed {rows['seed']}, {rows['status']}"
