"""The report of one run or of several side by side: PNG pictures and one self-contained HTML page.

The page holds its pictures and its style; it asks nothing of a network and runs no script. It is light only:
the pictures have white grounds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from raydpzv.records.schema import EMPTY
from raydpzv.report import client_plots, measure_plots, plots, privacy, run_plots, run_summary, run_tables
from raydpzv.report.plots import ReportFigure
from raydpzv.report.run_tables import RunView
from raydpzv.report.table import grid
from raydpzv.storage.download import check_not_midway

DRAWINGS: tuple[Callable[[Sequence[RunView]], ReportFigure | None], ...] = (
    run_plots.accuracy_over_updates,
    run_plots.accuracy_over_seconds,
    run_plots.accuracy_over_bytes,
    measure_plots.measures_over_updates,
    run_plots.loss_over_updates,
    run_plots.bytes_per_update,
    run_plots.missed_over_updates,
    run_plots.lag_histogram,
    run_plots.epsilon_over_updates,
    run_plots.records_per_user,
    client_plots.staleness_by_client,
    client_plots.timeline,
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
    # those of another page go: an operator's pictures are not to lie beside a public page
    pictures = write_pictures(target / "plots", drawn, {draw.__name__ for draw in DRAWINGS})
    page = rendered("page", pictures=pictures, **_words(folders, targets))
    write_atomically(target / "report.html", page.encode())
    return target / "report.html"


def write_pictures(
    folder: Path, drawn: Sequence[ReportFigure], names: Collection[str] = ()
) -> list[dict[str, str]]:
    """Write figures as PNG by name, and delete others of these names; return pictures as pages embed them."""
    pictures, images = [], {p.name: plots.png(p.figure) for p in drawn if p.figure}
    for name in sorted(set(names) - set(images)):
        (folder / f"{name}.png").unlink(missing_ok=True)
    for picture in drawn:
        image = images.get(picture.name, b"")
        if image:
            write_atomically(folder / f"{picture.name}.png", image)
        pictures.append({"caption": picture.caption, "image": base64.b64encode(image).decode()})
    return pictures


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
    withheld = str(summary["published"]["withheld"])
    return ReportedRun(RunView("", summary, EMPTY), scenario, settings, _shown(environment), withheld)


def _shown(environment: Mapping[str, Any]) -> str:
    return json.dumps(environment, indent=2, ensure_ascii=False)


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("raydpzv.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )


def rendered(template: str, **words: Any) -> str:
    """Return a page made of the template of this name."""
    return _templates().get_template(f"{template}.html.jinja").render(words)


def _words(folders: Sequence[ReportedRun], targets: Sequence[float]) -> dict[str, Any]:
    """Return what the page says but for its pictures."""
    views = [f.view for f in folders]
    summaries = [view.summary for view in views]
    return {
        "title": _title(summaries),
        "facts": _facts(summaries),
        "runs": [_for_page(f, alone=len(folders) == 1) for f in folders],
        "condition": privacy.CONDITION,
        "compare": grid(run_tables.COMPARED, views),
        "compare_note": run_tables.COMPARE_NOTE,
        "targets": run_tables.target_grid(views, targets),
        "client_note": run_tables.CLIENT_NOTE,
        "phase_note": run_tables.PHASE_NOTE,
    }


def _for_page(folder: ReportedRun, *, alone: bool) -> dict[str, Any]:
    view, summary, tree = folder.view, folder.view.summary, folder.settings
    traffic = run_summary.participant_rows(view.rows["message"]) if view.horizontal else []
    if view.horizontal and not alone:  # what a lone run's summary table says already
        traffic = [*run_summary.lag_rows(summary), *run_summary.ledger_rows(summary), *traffic]
    return {
        "label": view.label,
        "verdict": stated(summary),
        "warnings": summary.get("warnings", []),
        "withheld": folder.withheld,
        "operators": folder.operators,
        "summary": run_summary.published_rows(summary)
        if folder.withheld
        else run_summary.summary_rows(summary, clock=(tree.get("clock") or {}).get("kind", "virtual")),
        "claims": privacy.privacy_table(summary.get("epsilon") or ()),
        "clients": grid(run_tables.CLIENTS, run_tables.client_rows(view, tree)),
        "catch_up": traffic,
        "phases": run_tables.phase_grid(view.rows),
        "scenario": folder.scenario,
        "environment": folder.environment,
    }


def _title(summaries: Sequence[run_summary.Summary]) -> str:
    if len(summaries) > 1:
        return f"{len(summaries)} runs side by side"
    return ": ".join(str(summaries[0][part]) for part in ("scenario", "method") if summaries[0].get(part))


def _facts(summaries: Sequence[run_summary.Summary]) -> str:
    if len(summaries) > 1:
        return ", ".join(sorted({str(s.get("scenario")) for s in summaries}))
    rows = dict(run_summary.summary_rows(summaries[0]))
    return f"method {rows['method']}, seed {rows['seed']}, {rows['status']}"


_MOST = 3  # settings in one label
_IGNORED = ("name", "title", "seed", "method.name")

Facts = Sequence[Mapping[str, Any]]


def labels(summaries: Facts, scenarios: Facts = ()) -> list[str]:
    """Return one label per run: its method, and what runs of the same method differ in.

    That is the scenario and the seed, then settings; scenarios: the runs' settings as trees. Runs that no few
    settings tell apart are numbered.
    """
    names = [str(s.get("method")) for s in summaries]
    names = _distinguished(names, summaries, _scenario_and_seed)
    if scenarios:
        names = _distinguished(names, [dict(_leaves(tree)) for tree in scenarios], _settings)
    if len(set(names)) < len(names):
        return [f"{name}, run {i}" for i, name in enumerate(names, 1)]
    return names


def _distinguished(names: Sequence[str], facts: Facts, say: Callable[[Facts], list[list[str]]]) -> list[str]:
    """Return the names, those that several runs share with what is to be said about just these runs."""
    found = list(names)
    for name in {n for n in names if names.count(n) > 1}:
        same = [i for i, n in enumerate(names) if n == name]
        for i, words in zip(same, say([facts[i] for i in same]), strict=True):
            found[i] = ", ".join(dict.fromkeys([name, *words]))
    return found


def _scenario_and_seed(summaries: Facts) -> list[list[str]]:
    differing = [k for k in ("scenario", "seed") if len({str(s.get(k)) for s in summaries}) > 1]
    return [[str(s.get(k)) if k == "scenario" else f"{k} {s.get(k)}" for k in differing] for s in summaries]


def _settings(settings: Facts) -> list[list[str]]:
    """Return the settings in which the runs differ, the method's alone if they do; nothing if they are too many."""
    keys = [k for k in dict.fromkeys(k for s in settings for k in s) if len({s.get(k) for s in settings}) > 1]
    method = [k for k in keys if k.startswith("method.")]
    for chosen in (method, keys):
        words = [[f"{k.split('.')[-1]}={s[k]}" for k in chosen if k in s] for s in settings]
        if len(chosen) <= _MOST and len({tuple(w) for w in words}) == len(settings):
            return words
    return [[] for _ in settings]


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a tree as (dotted key, value in words)."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        elif f"{path}{key}" not in _IGNORED:
            yield f"{path}{key}", value if isinstance(value, str) else json.dumps(value, default=str)
