"""The report of a comparison: rows and table as files, pictures, one self-contained HTML page, a console's view.

Equal tables give equal files. The page asks nothing of a network and runs no script.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from rich.console import Group, RenderableType
from rich.text import Text

from raydpzv.files import write_atomically
from raydpzv.report import comparison_costs as costs
from raydpzv.report import comparison_plots as plots
from raydpzv.report import comparison_text as tables
from raydpzv.report import style
from raydpzv.report.comparison_lines import FAILURES, lines
from raydpzv.report.comparison_privacy import HEADS, MEANING, compared_privacy, privacy_block
from raydpzv.report.comparison_table import equal_bytes, equal_seconds, table
from raydpzv.report.figure import ReportFigure
from raydpzv.report.page import templates

_NOT_DRAWN = {
    "accuracy_over_updates": "no run was evaluated after its first update",
    "accuracy_over_bytes": "nothing travels",
    "accuracy_over_vector_length": "no horizontal run has sent a number",
    "accuracy_over_seconds": "no time passes: no delays are simulated",
    "accuracy_over_epsilon": "no noise is calibrated to an ε",
    "bytes_to_target": "no line that sends anything reached a target with half of its runs",
    "seconds_to_target": "no line in which time passes reached a target with half of its runs",
}
"""Why a picture of that name can be missing."""


def write_comparison(
    folder: Path,
    title: str,
    plan: str,
    runs: pa.Table,
    curves: pa.Table,
    claims: pa.Table,
    targets: Sequence[float],
    heads: str = "",
) -> Path:
    """Write `rows/*`, `table.*`, `plots/*.png` and `comparison.html` into `folder`; return the page.

    plan: comparison.toml's text, for the page. runs, curves, claims: of `raydpzv.report.comparison_table`'s schemas.
    targets: test accuracies, shares of 1. heads: why the methods' heads learn differently, "" if they do not.
    A picture that an earlier call left and this one has not is deleted.
    """
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    (folder / "rows").mkdir(exist_ok=True)
    folded = table(runs, curves, targets)
    for name, rows in (("runs", runs), ("curves", curves), ("claims", claims)):
        _write_table(folder / "rows" / name, rows)
    _write_table(folder / "table", folded)
    found = _pictures(folded, runs, curves, targets)
    images = {name: _png(picture) for name, picture in found.items() if picture}
    for name in found:
        path = folder / "plots" / f"{name}.png"
        if name in images:
            write_atomically(path, images[name])
        else:
            path.unlink(missing_ok=True)
    page = (
        templates()
        .get_template("comparison.html.jinja")
        .render(
            title=title,
            plan=plan,
            pictures=[
                {"caption": picture.caption, "image": base64.b64encode(images[name]).decode()}
                for name, picture in found.items()
                if picture
            ],
            missing=[
                (name.replace("_", " "), why if len(curves) else "no run has come to its end")
                for name, why in _NOT_DRAWN.items()
                if found[name] is None
            ],
            heads=tables.heads_line(heads),
            **_words(folded, runs, curves, claims, targets),
        )
    )
    write_atomically(folder / "comparison.html", page.encode())
    return folder / "comparison.html"


def console_report(runs: pa.Table, curves: pa.Table, claims: pa.Table, targets: Sequence[float]) -> Group:
    """Return what a comparison comes to, for a console of 120 columns."""
    folded = table(runs, curves, targets)
    parts: list[RenderableType] = [
        tables.accuracy_table(folded, runs, curves),
        Text(tables.ACCURACY_NOTE, "dim"),
    ]
    for target in dict.fromkeys(targets):
        parts += [Text(), tables.target_table(folded, target)]
    if targets:
        parts.append(Text(tables.TARGET_NOTE, "dim"))
    parts += [Text(), privacy_block(claims, runs), Text()]
    cautions = (Text(line, "yellow") for line in tables.warning_lines(runs, curves))
    return Group(*parts, *(Text(line, "bold red") for line in tables.failure_lines(runs)), *cautions)


def _words(
    folded: pa.Table, runs: pa.Table, curves: pa.Table, claims: pa.Table, targets: Sequence[float]
) -> dict[str, Any]:
    """Return what the page says but for its pictures."""
    return {
        "facts": _facts(runs),
        "accuracy": tables.accuracy_rows(folded, equal_bytes(curves, runs), equal_seconds(curves, runs)),
        "accuracy_note": tables.ACCURACY_NOTE,
        "targets": [(tables.target_title(t), tables.target_rows(folded, t)) for t in dict.fromkeys(targets)],
        "target_note": tables.TARGET_NOTE,
        "privacy": compared_privacy(claims, runs),
        "privacy_heads": HEADS,
        "privacy_meaning": MEANING,
        "failures": tables.failure_lines(runs),
        "warnings": tables.warning_lines(runs, curves),
    }


def _facts(runs: pa.Table) -> str:
    rows = runs.to_pylist()
    counts = {
        "method": len({r["label"] for r in rows if not r["control"]}),
        "control": len({r["label"] for r in rows if r["control"]}),
        "seed": len({r["seed"] for r in rows}),
        "run": len(rows),
    }
    said = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items()]
    failed = sum(r["outcome"] in FAILURES for r in rows)
    return ", ".join(said + ([f"{failed} of them FAILED"] if failed else []))


def _pictures(
    folded: pa.Table, runs: pa.Table, curves: pa.Table, targets: Sequence[float]
) -> dict[str, ReportFigure | None]:
    found = lines(runs, curves)
    return {
        "accuracy_over_epsilon": plots.accuracy_over_epsilon(found),
        "accuracy_over_updates": plots.accuracy_over_updates(found),
        "accuracy_over_bytes": plots.accuracy_over_bytes(found),
        "accuracy_over_vector_length": plots.accuracy_over_vector_length(found),
        "accuracy_over_seconds": plots.accuracy_over_seconds(found),
        "bytes_to_target": costs.bytes_to_target(folded, found, targets),
        "seconds_to_target": costs.seconds_to_target(folded, found, targets),
    }


def _png(picture: ReportFigure) -> bytes:
    """Return the picture; letters that its font lacks are boxes, which is no reason to warn: the page has the names."""
    assert picture.figure
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        return style.png(picture.figure)


def _write_table(path: Path, rows: pa.Table) -> None:
    """Write a table as parquet and as CSV; in CSV infinity is inf, NaN nan, and null empty."""
    packed, words = io.BytesIO(), io.BytesIO()
    pq.write_table(rows, packed)
    pcsv.write_csv(rows, words)
    write_atomically(path.with_name(f"{path.name}.parquet"), packed.getvalue())
    write_atomically(path.with_name(f"{path.name}.csv"), words.getvalue())
