"""The report of one run or of several side by side: pictures for papers and one self-contained HTML
page.

The page holds its data, its style and its two scripts, which alone may run: uPlot, and
`assets/page.js`, which draws. It asks nothing of a network. Texts of runs are escaped by jinja in
the page, and are text nodes in what a script makes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from raydpzv.errors import DataError, InputError
from raydpzv.files import inner_folder, write_atomically
from raydpzv.privacy.claim_words import stated
from raydpzv.privacy.claim_words import withheld as is_withheld
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import EMPTY, SCHEMAS
from raydpzv.records.store import Rows, read_rows
from raydpzv.report import (
    client_plots,
    measure_plots,
    page_data,
    page_steps,
    plots,
    privacy,
    run_plots,
    run_settings,
    run_summary,
    run_tables,
)
from raydpzv.report.plots import ReportFigure
from raydpzv.report.run_tables import RunView
from raydpzv.report.table import grid

DRAWINGS: tuple[Callable[[Sequence[RunView]], ReportFigure | None], ...] = (
    run_plots.accuracy_over_updates,
    run_plots.accuracy_over_seconds,
    run_plots.accuracy_over_bytes,
    measure_plots.measures_over_updates,
    run_plots.loss_over_updates,
    run_plots.lag_histogram,
    run_plots.epsilon_over_updates,
    client_plots.records_per_user,
    client_plots.staleness_by_client,
    client_plots.timeline,
)
"""Every picture of a report, in the page's order."""
_REDRAWN = ("accuracy_over_seconds", "accuracy_over_bytes", "timeline")
"""Pictures whose place on the page a chart takes: another x axis of the accuracy, the timeline of
all clients.
"""
TARGETS = (0.8, 0.9)
"""Test accuracies for which a report of several runs says what they cost, if a run reached them."""


@dataclass(frozen=True)
class ReportedRun:
    """What a report shows of a run: what pictures need, the scenario as text and tree, the
    environment as JSON.

    withheld: what a published run's page leaves out, in words; "" if it shows all that there is.
    keep: whether the page shows what no ε covers, of a private run. damaged: what is said of
    rows that cannot be read. steps: what the slider shows (`page_steps`).
    """

    view: RunView
    scenario: str
    settings: Mapping[str, Any]
    environment: str
    withheld: str = ""
    keep: bool = False
    damaged: tuple[str, ...] = ()
    steps: page_steps.Data | None = None


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    targets: Sequence[float] = TARGETS,
    moved: Sequence[str] = (),
    form: str = "png",
) -> Path:
    """Write `plots/*` and `report.html` into `out` (one run: its own folder by default); return the
    page.

    It shows all that a folder holds: of what was published of a private run
    (`raydpzv.records.publish`) what may leave, of a run's own folder everything.
    targets: test accuracies, shares of 1, for which several runs are compared by what it took to
    reach them. moved: see `RunFolder.open`; a report reads no data, so it may be left out. form: of
    the pictures, "png", "pdf" or "svg". Raises DataError if a folder is not a run's, InputError if
    several runs are given without `out`.
    """
    plots.check_form(form)
    if not runs:
        raise InputError("a report needs at least one run folder; none was given")
    if out is None and len(runs) > 1:
        raise InputError(
            f"{len(runs)} runs need a folder of their own for the report; say which one"
        )
    page, drawn = write_page(runs, out, targets=targets, moved=moved)
    # those of another page go
    plots_folder = inner_folder(page.parent / "plots")
    write_pictures(plots_folder, drawn, {draw.__name__ for draw in DRAWINGS}, form)
    return page


def write_page(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    targets: Sequence[float] = TARGETS,
    moved: Sequence[str] = (),
) -> tuple[Path, list[ReportFigure]]:
    """Write `report.html` alone; return it and its pictures. Arguments as of `write_report`."""
    folders = read_runs(runs, moved)
    drawn = [p for draw in DRAWINGS if (p := draw([f.view for f in folders]))]
    page = (runs[0] if out is None else out) / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, rendered("page", **words(folders, targets, drawn)).encode())
    return page, drawn


def live_page(run: ReportedRun, version: str) -> str:
    """Return the page of a run that is watched; it is loaded again when the server has another
    version.
    """
    drawn = [p for draw in DRAWINGS if draw.__name__ not in _REDRAWN and (p := draw([run.view]))]
    return rendered("page", version=version, **words([run], (), drawn))


def unfinished(folder: RunFolder, summary: Mapping[str, Any], rows: Rows) -> ReportedRun:
    """Return what a page shows of a run without a summary of its own."""
    environment, settings = _shown(folder.environment()), folder.settings()
    view = RunView(labels([summary], [settings])[0], summary, rows)
    if summary["epsilon"]:
        so_far = "; ".join(curve.newest for curve in run_plots.spent([view])) or "0"
        view = replace(view, summary={**summary, run_summary.SO_FAR: so_far})
    return ReportedRun(view, folder.scenario(), settings, environment, keep=is_withheld(summary))


def run_pictures(folder: Path) -> dict[str, bytes]:
    """Return the pictures of a run that may leave, PNG by name: none of a private run."""
    run = _read(RunFolder.open(folder), 0)
    if is_withheld(run.view.summary):
        return {}
    view = replace(run.view, label=labels([run.view.summary], [run.settings])[0])
    drawn = [found for draw in DRAWINGS if (found := draw([view]))]
    return {p.name: plots.image(p.figure) for p in drawn if p.figure}


def write_pictures(
    folder: Path, drawn: Sequence[ReportFigure], names: Collection[str] = (), form: str = "png"
) -> None:
    """Write figures by name, and delete others of these names and forms."""
    images = {f"{p.name}.{form}": plots.image(p.figure, form) for p in drawn if p.figure}
    for stale in {f"{name}.{kind}" for name in names for kind in plots.FORMS} - set(images):
        (folder / stale).unlink(missing_ok=True)
    for name, image in images.items():
        write_atomically(folder / name, image)


def embedded(picture: ReportFigure) -> dict[str, str]:
    """Return a picture as a page embeds it."""
    image = plots.image(picture.figure) if picture.figure else b""
    return {"caption": picture.caption, "image": base64.b64encode(image).decode()}


def read_runs(runs: Sequence[Path], moved: Sequence[str] = ()) -> list[ReportedRun]:
    """Read run folders and label them so that they can be told apart.

    Raises DataError.
    """
    room = page_steps.ROOM // max(len(runs), 1)
    found = [_read(RunFolder.open(run, moved), room) for run in runs]
    names = labels([run.view.summary for run in found], [run.settings for run in found])
    return [
        replace(run, view=replace(run.view, label=name))
        for run, name in zip(found, names, strict=True)
    ]


def _read(folder: RunFolder, room: int) -> ReportedRun:
    """Return what is shown of a run, without a label; room: bytes for its updates."""
    summary, settings = folder.summary(), folder.settings()
    environment, scenario = _shown(folder.environment()), folder.scenario()

    if folder.published:
        withheld = str(summary["published"]["withheld"])
        view = RunView("", summary, EMPTY)
        shown = page_steps.steps(folder, view, withheld=True, room=room)
        return ReportedRun(view, scenario, settings, environment, withheld, steps=shown)

    rows, damaged = _rows(folder)
    view = RunView("", summary, rows)
    return ReportedRun(
        view,
        scenario,
        settings,
        environment,
        keep=is_withheld(summary),
        damaged=tuple(damaged),
        steps=page_steps.steps(folder, view, withheld=False, room=room),
    )


def _rows(folder: RunFolder) -> tuple[Rows, list[str]]:
    """Return the rows, and what is damaged; a damaged part leaves out the rows of its type
    alone.
    """
    try:
        return folder.rows(), []
    except DataError:
        found, damaged = dict(EMPTY), []
        for name in SCHEMAS:
            try:
                found[name] = read_rows(folder.path, name)
            except DataError as error:
                damaged.append(str(error))
        return found, damaged


def _shown(environment: Mapping[str, Any]) -> str:
    return json.dumps(environment, indent=2, ensure_ascii=False)


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("raydpzv.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters["sortable"] = lambda value: (
        "" if math.isnan(value) else str(value).replace("inf", "Infinity")
    )
    return made


def rendered(template: str, **said: Any) -> str:
    """Return a page made of the template of this name.

    data: what its charts draw, as JSON, if it has any; version: of a page that is watched
    (`watch.js`).
    """
    library = f"/*\n{asset('uPlot.LICENSE')}*/\n{asset('uPlot.iife.min.js')}"
    scripts = [library, asset("page.js")] if said.get("data") else []
    scripts += [asset("steps.js")] if said.get("steps") else []
    scripts += [asset("watch.js")] if said.get("version") else []
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    frame = {
        "style": Markup(asset("uPlot.min.css") + asset("page.css")),
        "scripts": [Markup(script) for script in scripts],
        "version": "",
        "allowed": Markup(" ".join(f"'sha256-{h}'" for h in hashes) or "'none'"),
    }
    return _templates().get_template(f"{template}.html.jinja").render(frame | said)


@cache
def asset(name: str) -> str:
    """Return a script or a style sheet that comes with the pages."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def as_data(found: Mapping[str, Any]) -> Markup:
    """Return data as JSON that no text of it can leave: the text of a script element ends at
    `</script` alone.
    """
    plain = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(plain.replace("<", "\\u003c"))


def _data(folders: Sequence[ReportedRun], drawn: Sequence[ReportFigure]) -> dict[str, Any]:
    """Return what the page's charts draw."""
    views = [f.view for f in folders]
    clocks = {(f.settings.get("clock") or {}).get("kind", "virtual") for f in folders}
    axes, tables = page_data.axes(views, clocks.pop() if len(clocks) == 1 else "virtual")
    of = [f" of {view.label}" if len(views) > 1 else "" for view in views]
    heats = [page_data.heat(view, f"Staleness{of[i]}") for i, view in enumerate(views)]
    lines = [
        page_data.timeline(view, f"Round trips{of[i]}", len(views)) for i, view in enumerate(views)
    ]
    return {
        "axes": axes,
        "tables": tables,
        "charts": [*page_data.charts(drawn), *filter(None, lines), *filter(None, heats)],
        "steps": [
            {"label": f.view.label, **f.steps} for f in folders if f.steps and "last" in f.steps
        ],
    }


def words(
    folders: Sequence[ReportedRun], targets: Sequence[float], drawn: Sequence[ReportFigure]
) -> dict[str, Any]:
    """Return what the page says."""
    views = [f.view for f in folders]
    summaries = [view.summary for view in views]
    data = _data(folders, drawn)
    return {
        "data": as_data(data),
        "charts": data["charts"],
        "captions": {p.name: p.caption for p in drawn if p.panels},
        "pictures": [
            embedded(p) for p in drawn if p.figure and not p.panels and p.name not in _REDRAWN
        ],
        "sayings": [p.caption for p in drawn if not p.figure],
        "thinning": page_data.thinning_words(data["charts"]),
        "axes": data["axes"],
        "steps": data["steps"],
        "unread": [f.steps["problem"] for f in folders if f.steps and "problem" in f.steps],
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
    clock = (tree.get("clock") or {}).get("kind", "virtual")
    traffic = run_summary.participant_rows(view.rows["message"]) if view.horizontal else []
    if view.horizontal and not alone:  # what a lone run's summary table says already
        traffic = [*run_summary.lag_rows(summary), *run_summary.ledger_rows(summary), *traffic]
    return {
        "label": view.label,
        "verdict": stated(summary),
        "warnings": summary.get("warnings", []),
        "withheld": folder.withheld,
        "keep": folder.keep,
        "damaged": folder.damaged,
        "summary": run_summary.published_rows(summary)
        if folder.withheld
        else run_summary.summary_rows(summary, clock),
        "so_far": summary.get(run_summary.SO_FAR),
        "figures": run_summary.key_figures(summary, clock, published=bool(folder.withheld)),
        "claims": privacy.privacy_table(summary.get("epsilon") or ()),
        "clients": grid(run_tables.CLIENTS, run_tables.client_rows(view, tree)),
        "catch_up": traffic,
        "phases": run_tables.phase_grid(view.rows),
        "scenario": folder.scenario,
        "differences": run_settings.differences(tree),
        "command": run_settings.command(tree),
        "environment": folder.environment,
    }


def _title(summaries: Sequence[run_summary.Summary]) -> str:
    if len(summaries) > 1:
        return f"{len(summaries)} runs side by side"
    return ": ".join(
        str(summaries[0][part]) for part in ("scenario", "method") if summaries[0].get(part)
    )


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

    That is the scenario and the seed, then settings; scenarios: the runs' settings as trees. Runs
    that no few settings tell apart are numbered.
    """
    names = [str(s.get("method")) for s in summaries]
    names = _distinguished(names, summaries, _scenario_and_seed)
    if scenarios:
        trees = [
            {k: run_settings.said(v) for k, v in run_settings.leaves(tree) if k not in _IGNORED}
            for tree in scenarios
        ]
        names = _distinguished(names, trees, _settings)
    if len(set(names)) < len(names):
        return [f"{name}, run {i}" for i, name in enumerate(names, 1)]
    return names


def _distinguished(
    names: Sequence[str], facts: Facts, say: Callable[[Facts], list[list[str]]]
) -> list[str]:
    """Return the names, those that several runs share with what is to be said about just these
    runs.
    """
    found = list(names)
    for name in {n for n in names if names.count(n) > 1}:
        same = [i for i, n in enumerate(names) if n == name]
        for i, words in zip(same, say([facts[i] for i in same]), strict=True):
            found[i] = ", ".join(dict.fromkeys([name, *words]))
    return found


def _scenario_and_seed(summaries: Facts) -> list[list[str]]:
    differing = [k for k in ("scenario", "seed") if len({str(s.get(k)) for s in summaries}) > 1]
    return [
        [str(s.get(k)) if k == "scenario" else f"{k} {s.get(k)}" for k in differing]
        for s in summaries
    ]


def _settings(settings: Facts) -> list[list[str]]:
    """Return the settings in which the runs differ, the method's alone if they do; nothing if they
    are too many.
    """
    keys = [
        k
        for k in dict.fromkeys(k for s in settings for k in s)
        if len({s.get(k) for s in settings}) > 1
    ]
    for chosen in ([k for k in keys if k.startswith("method.")], keys):
        words = [[f"{k.split('.')[-1]}={s[k]}" for k in chosen if k in s] for s in settings]
        if len(chosen) <= _MOST and len({tuple(w) for w in words}) == len(settings):
            return words
    return [[] for _ in settings]
