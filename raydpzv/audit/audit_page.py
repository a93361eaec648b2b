"""An audit in a folder of its own: audit.json, its pictures, and one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import jinja2

from raydpzv.audit.findings import NOT_FALSIFIED, Finding
from raydpzv.errors import InputError
from raydpzv.files import as_json, write_atomically
from raydpzv.report import style
from raydpzv.report.figure import ReportFigure


def write_audit(run: Path, finding: Finding, pictures: Sequence[ReportFigure], out: Path) -> Path:
    """Write `audit.json`, `plots/*.png` and `audit.html` into `out`; return the page. Raises InputError."""
    try:
        (out / "plots").mkdir(parents=True, exist_ok=True)
        write_atomically(out / "audit.json", as_json({"run": str(run)} | dict(finding.facts)).encode())
        drawn = [(picture, style.png(picture.figure)) for picture in pictures if picture.figure]
        for picture, image in drawn:
            write_atomically(out / "plots" / f"{picture.name}.png", image)
        page = _page(run, finding, [(picture.caption, image) for picture, image in drawn])
        write_atomically(out / "audit.html", page.encode())
    except OSError as error:
        raise InputError(
            f"{out}: cannot write the audit ({error.strerror or error}); choose another --out"
        ) from None
    return out / "audit.html"


def _page(run: Path, finding: Finding, pictures: Sequence[tuple[str, bytes]]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("raydpzv.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("audit.html.jinja").render(
        title=f"Audit of {run.name}",
        facts=f"by {finding.facts['by']}",
        finding=finding,
        holds=finding.verdict == NOT_FALSIFIED,
        pictures=[{"caption": c, "image": base64.b64encode(i).decode()} for c, i in pictures],
    )
