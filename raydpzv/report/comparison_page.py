"""The report of a comparison: rows and table as files, pictures for papers, and one self-contained
HTML page.

Equal tables give equal files. The page asks nothing of a network, and runs the two scripts of every
page alone.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydpzv.arrow_columns import as_csv
from raydpzv.files import inner_folder, write_atomically
from raydpzv.report import comparison_plots as plots
from raydpzv.report import comparison_text as words
from raydpzv.report import page_data
from raydpzv.report.comparison_lines import Line, band, fails, judged
from raydpzv.report.comparison_privacy import MEANING, compared_privacy, privacy_line
from raydpzv.report.comparison_table import Compared, ComparisonView
from raydpzv.report.page import as_data, rendered, write_pictures
from raydpzv.report.plots import ReportFigure, check_form

_NOT_DRAWN = {
    "accuracy_over_epsilon": "no noise is calibrated to an ε",
    "accuracy_over_updates": "no run was evaluated after its first update",
    "accuracy_over_bytes": "nothing travels",
    "accuracy_over_vector_length": "no horizontal run has sent a number",
    "accuracy_over_seconds": "no time passes: no delays are simulated",
    "bytes_to_target": "no line that sends anything reached a target with half of its runs",
    "seconds_to_target": "no line in which time passes reached a target with half of its runs",
}
"""The pictures, and why one of that name can be missing."""
_AXES = {
    "update": ("update", "updates"),
    "time": ("time", "simulated seconds"),
    "bytes": ("bytes", "bytes sent, up and down"),
    "vector": ("vector_length", "numbers sent, per client"),
}
"""The x axes of the page's accuracy: the field of a curve, and its words."""


@dataclass(frozen=True)
class About:
    """What a comparison's page says of its plan.

    plan: comparison.toml's text; targets: test accuracies, shares of 1; heads: why the methods'
    heads learn differently, "" if they do not. pages: where the page of a run is, seen from the
    comparison's, by the run's folder.
    """

    title: str
    plan: str
    targets: Sequence[float]
    heads: str = ""
    pages: Mapping[str, str] = field(default_factory=dict)


def write_comparison(folder: Path, compared: Compared, about: About, form: str = "png") -> Path:
    """Write `rows/*`, `table.*`, `plots/*` and `comparison.html` into `folder`; return the page.

    form: of the pictures, "png", "pdf" or "svg". A picture that an earlier call left and this one
    has not is deleted.
    """
    check_form(form)
    plots, tables = (inner_folder(folder / name) for name in ("plots", "rows"))
    view = ComparisonView(compared, about.targets)
    for name, rows in compared._asdict().items():
        _write_table(tables / name, rows)
    _write_table(folder / "table", view.table)
    write_atomically(folder / "table.tex", words.paper_table(view).encode())
    found = _pictures(view)
    write_pictures(plots, [p for p in found.values() if p], set(found), form)
    write_atomically(folder / "comparison.html", _page(view, about, found, form=form).encode())
    return folder / "comparison.html"


def comparison_page(compared: Compared, about: About, version: str) -> str:
    """Return the page of a comparison that is watched; version: see `rendered`."""
    view = ComparisonView(compared, about.targets)
    return _page(view, about, _pictures(view), version=version)


def _page(
    view: ComparisonView,
    about: About,
    found: Mapping[str, ReportFigure | None],
    *,
    form: str = "png",
    version: str = "",
) -> str:
    missing = [
        (name.replace("_", " "), why if len(view.compared.curves) else "no run has finished")
        for name, why in _NOT_DRAWN.items()
        if found[name] is None
    ]
    drawn = sorted(filter(found.get, found))
    return rendered(
        "comparison",
        version=version,
        missing=missing,
        form=form,
        drawn=drawn,
        **_words(view, about),
    )


def _words(view: ComparisonView, about: About) -> dict[str, Any]:
    """Return what the page says."""
    runs, _, claims = view.compared
    privacy, data = compared_privacy(claims, runs), _data(view.lines)
    return {
        "data": as_data(data),
        "axes": data["axes"],
        "groups": data["groups"],
        "charts": data["charts"],
        "title": about.title,
        "unpublished": any(claims.column("holds").to_pylist()),
        "plan": about.plan,
        "heads": words.heads_line(about.heads),
        "facts": _facts(runs),
        "accuracy": words.page_grid(view),
        "runs": words.run_rows(runs, about.pages),
        "accuracy_note": words.ACCURACY_NOTE + words.constant_text(runs, " On these test rows {}."),
        "targets": [
            (words.target_title(t), words.target_grid(view.rows, t))
            for t in dict.fromkeys(view.targets)
        ],
        "target_note": words.TARGET_NOTE,
        "privacy": privacy,
        "privacy_notes": [[privacy.notes[n - 1] for n in row.notes] for row in privacy.rows],
        "privacy_line": privacy_line(claims, runs),
        "privacy_meaning": MEANING,
        "failed": words.failures_line(runs, first=False),
        "failures": words.failure_lines(runs),
        "warnings": words.warning_lines(view),
    }


def _data(found: Sequence[Line]) -> dict[str, Any]:
    """Return what the page's charts draw: each line is a run of the charts, with clocks of its
    own.
    """
    tables = [
        {axis: _clock(line, of) for axis, (of, _) in _AXES.items()} for line in judged(found)[1]
    ]
    axes = {axis: said for axis, (_, said) in _AXES.items() if any(any(t[axis]) for t in tables)}
    shown = [panel for panel in (plots.accuracy_panel(found), plots.cost_panel(found)) if panel]
    groups = dict.fromkeys(
        curve.group for panel in shown for curve in panel.curves if curve.group != "*"
    )
    return {
        "axes": axes or {"update": "updates"},
        "groups": [*groups, *([""] if len(groups) > 1 else [])],
        "tables": tables,
        "charts": page_data.charts([ReportFigure("", "", None, shown)]),
    }


def _clock(line: Line, axis: str) -> list[float | int | None]:
    """Return the medians of an x axis at the line's updates; nothing where no run has any."""
    known = any(np.isfinite(getattr(curve, axis)).any() for curve in line.curves)
    return page_data.numbers(band(line.curves, axis).x) if known else []


def _facts(runs: pa.Table) -> str:
    rows = runs.to_pylist()
    counts = {
        "method": len({r["label"] for r in rows if not r["control"]}),
        "control": len({r["label"] for r in rows if r["control"]}),
        "seed": len({r["seed"] for r in rows}),
        "run": len(rows),
    }
    said = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items()]
    failed = sum(map(fails, rows))
    return ", ".join(said + ([f"{failed} of them FAILED"] if failed else []))


def _pictures(view: ComparisonView) -> dict[str, ReportFigure | None]:
    costs = {"bytes_to_target", "seconds_to_target"}
    return {
        name: getattr(plots, name)(view if name in costs else view.lines) for name in _NOT_DRAWN
    }


def _write_table(path: Path, rows: pa.Table) -> None:
    """Write a table as parquet and as CSV."""
    packed = io.BytesIO()
    pq.write_table(rows, packed)
    write_atomically(path.with_name(f"{path.name}.parquet"), packed.getvalue())
    write_atomically(path.with_name(f"{path.name}.csv"), as_csv(rows))
