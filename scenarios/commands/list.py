"""`raydpzv list`: scenarios, comparisons, spaces, methods and data sets, one line each, at most 100
columns wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raydpzv.config.catalog import COMPARISONS, SPACES, Entry, entries, is_horizontal, names
from raydpzv.registry import DATA_SOURCES, METHODS
from scenarios import screen
from scenarios.command_options import ListCommand

WIDTH = 100
FOOT = (
    "vertical: features are shared out among the clients; horizontal: rows are.",
    "needs: files of your own (docs/data.md says which); everything else runs as it is.",
)

Row = tuple[str, str, str]
"""Name, what it needs, one line about it."""


def list_command(options: ListCommand) -> None:
    """Print all there is to run, or a page of Markdown."""
    if options.settings:
        from raydpzv.config.settings_reference import settings_page

        print(settings_page())
        return
    if options.papers:
        from raydpzv.compare.printed import comparison_lines
        from raydpzv.config.papers import scenarios_page

        print(scenarios_page(comparison_lines))
        return
    console = screen.console()
    for line in list_lines(min(WIDTH, console.width) if console.is_terminal else WIDTH):
        print(line)


def list_lines(width: int) -> Iterator[str]:
    """Yield the lines, each with at most `width` characters; what is longer is cut."""
    parts = list(listed())
    name, needs = (max(len(row[place]) for _, rows in parts for row in rows) for place in (0, 1))
    name = max(name, *(len(title) - 2 for title, _ in parts))
    for title, rows in parts:
        yield _cut(
            f"{title:<{name + 2}}  {'needs':<{needs}}" if any(row[1] for row in rows) else title,
            width,
        )
        yield from (
            _cut(f"  {method:<{name}}  {need:<{needs}}  {said}", width)
            for method, need, said in rows
        )
        yield ""
    yield from (_cut(line, width) for line in FOOT)


def listed() -> Iterable[tuple[str, Sequence[Row]]]:
    """Yield the parts of the list: a heading and its rows."""
    found = entries()
    for horizontal in (False, True):
        rows = [_row(entry) for entry in found if entry.horizontal is horizontal]
        yield f"Scenarios, {_kind(horizontal)}", rows
    yield "Comparisons", [_row(entry) for entry in entries(COMPARISONS)]
    yield "Spaces (raydpzv tune)", [(name, "", "") for name in names(SPACES)]
    for horizontal in (False, True):
        methods = [name for name in METHODS if is_horizontal(name) is horizontal]
        rows = [(name, "", METHODS.summary(name).removesuffix(".")) for name in methods]
        yield f"Methods, {_kind(horizontal)}", rows
    yield "Data sets", [(name, _needs(name), source.about) for name, source in DATA_SOURCES.items()]


def _kind(horizontal: bool) -> str:
    return "horizontal" if horizontal else "vertical"


def _row(entry: Entry) -> Row:
    return entry.name, _needs(entry.source), entry.title


def _needs(source: str) -> str:
    """Return which files a data set needs; that a table of one's own has a target column goes
    without saying.
    """
    wanted = [need for need in DATA_SOURCES[source].needs if need not in ("target", "time")]
    return " and ".join(wanted)


def _cut(line: str, width: int) -> str:
    line = line.rstrip()
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"
