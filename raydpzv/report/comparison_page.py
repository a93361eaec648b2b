"""The report of a comparison: rows and table as files, pictures, and one self-contained HTML page.

Equal tables give equal files. The page asks nothing of a network and runs no script.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from raydpzv.files import write_atomically
from raydpzv.report import comparison_plots as plots
from raydpzv.report import comparison_text as words
from raydpzv.report.comparison_lines import FAILURES, lines
from raydpzv.report.comparison_privacy import MEANING, compared_privacy
from raydpzv.report.comparison_table import Compared, equal_bytes, equal_seconds, measures_of, table
from raydpzv.report.page import rendered, write_pictures
from raydpzv.report.plots import ReportFigure

_NOT_DRAWN = {
    "accuracy_over_epsilon": "no noise is calibrated to an ε",
    "accuracy_over_updates": "no run was evaluated after its first update",
    "accuracy_over_bytes": "nothing travels",
    "accuracy_over_vector_length": "no horizontal run has sent a number",
    "accuracy_over_seconds": "no time passes: no delays are simulated",
    "bytes_to_target": "no line that sends anything reached a target with half of its runs",
    "seconds_to_target": "no line in which time passes reached a target with half of its runs",
}
"""The pictures in the page's order, and why one of that name can be missing."""


@dataclass(frozen=True)
class About:
    """What a comparison's page says of its plan.

    plan: comparison.toml's text; targets: test accuracies, shares of 1; heads: why the methods' heads learn
    differently, "" if they do not.
    """

    title: str
    plan: str
    targets: Sequence[float]
    heads: str = ""


def write_comparison(folder: Path, compared: Compared, about: About) -> Path:
    """Write `rows/*`, `table.*`, `plots/*.png` and `comparison.html` into `folder`; return the page.

    A picture that an earlier call left and this one has not is deleted.
    """
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    (folder / "rows").mkdir(exist_ok=True)
    folded = table(compared.runs, compared.curves, about.targets)
    for name, rows in compared._asdict().items():
        _write_table(folder / "rows" / name, rows)
    _write_table(folder / "table", folded)
    found = _pictures(folded, compared, about.targets)
    pictures = write_pictures(folder / "plots", [p for p in found.values() if p], set(found))
    missing = [
        (name.replace("_", " "), why if len(compared.curves) else "no run has come to its end")
        for name, why in _NOT_DRAWN.items()
        if found[name] is None
    ]
    page = rendered("comparison", pictures=pictures, missing=missing, **_words(folded, compared, about))
    write_atomically(folder / "comparison.html", page.encode())
    return folder / "comparison.html"


def _words(folded: pa.Table, compared: Compared, about: About) -> dict[str, Any]:
    """Return what the page says but for its pictures."""
    runs, curves, claims = compared
    targets = dict.fromkeys(about.targets)
    return {
        "title": about.title,
        "plan": about.plan,
        "heads": words.heads_line(about.heads),
        "facts": _facts(runs),
        "accuracy": words.accuracy_grid(
            folded, equal_bytes(curves, runs), equal_seconds(curves, runs), measures_of(runs)
        ),
        "accuracy_note": words.ACCURACY_NOTE,
        "targets": [(words.target_title(t), words.target_grid(folded, t)) for t in targets],
        "target_note": words.TARGET_NOTE,
        "privacy": compared_privacy(claims, runs),
        "privacy_meaning": MEANING,
        "failures": words.failure_lines(runs),
        "warnings": words.warning_lines(runs, curves),
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
    folded: pa.Table, compared: Compared, targets: Sequence[float]
) -> dict[str, ReportFigure | None]:
    found = lines(compared.runs, compared.curves)
    costs = {"bytes_to_target", "seconds_to_target"}
    return {
        name: getattr(plots, name)(folded, found, targets) if name in costs else getattr(plots, name)(found)
        for name in _NOT_DRAWN
    }


def _write_table(path: Path, rows: pa.Table) -> None:
    """Write a table as parquet and as CSV; in CSV infinity is inf, NaN nan, and null empty."""
    packed, plain = io.BytesIO(), io.BytesIO()
    pq.write_table(rows, packed)
    pcsv.write_csv(rows, plain)
    write_atomically(path.with_name(f"{path.name}.parquet"), packed.getvalue())
    write_atomically(path.with_name(f"{path.name}.csv"), plain.getvalue())
