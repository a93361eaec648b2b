"""Runs as a report sees them, and what a reader finds in its pictures, tables and pages."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from raydpzv.records.store import read_all
from raydpzv.report.plots import ReportFigure
from raydpzv.report.run_tables import RunView
from tests.helpers.synthetic_run import build_run


def view(folder: Path, label: str, **settings: Any) -> RunView:
    run = build_run(folder / label, **settings)
    return RunView(label, json.loads((run / "summary.json").read_text()), read_all(run))


def figure(picture: ReportFigure | None) -> Figure:
    assert picture.figure is not None
    return picture.figure


def legend_text(shown: Figure) -> str:
    return "\n".join(t.get_text() for legend in shown.legends for t in legend.get_texts())


def printed(shown: Any, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Page(HTMLParser):
    """Collects the text that a reader sees, the addresses a browser would ask for, the tags, and
    the charts' data.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.words, self.sources, self.tags = "", [], []
        self.data: dict[str, Any] = {}
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        asked = [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        self.sources += [source for source in asked if not source.startswith("#")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["script"], ["style"]) or not data.strip():
            self.words += data
        elif data.startswith("{"):
            self.data = json.loads(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self.tags.append("")  # what follows is text


def asks_a_network(source: str) -> bool:
    """Return whether a page has an address that a browser would ask for, or may run a script that
    is not its own.
    """
    page = Page(source)
    elsewhere = [
        address for address in page.sources if not address.startswith("data:image/png;base64,")
    ]
    allowed = re.search(r"script-src ([^\"]*)\"", source)
    own = allowed is not None and re.fullmatch(r"('sha256-\S+' ?){2}|'none'", allowed[1])
    return bool(
        elsewhere
        or {"link", "iframe"} & set(page.tags)
        or re.search(r"url\(|@import", source)
        or not own
    )


def without_pixels(patch: pytest.MonkeyPatch) -> None:
    """Let pictures be made and not turned into pixels, which is most of the time of a page."""
    patch.setattr(FigureCanvasAgg, "print_png", lambda self, file, **how: file.write(b"png"))


def names(folder: Path) -> set[str]:
    return {p.stem for p in folder.glob("plots/*.png")}
