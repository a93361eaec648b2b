"""Tables: columns read rows as text, for a console or a page. Console tables keep their heads whole
at any width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from operator import itemgetter
from textwrap import wrap
from typing import Any, Generic, Literal, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column as RichColumn
from rich.table import Table
from rich.text import Text

from raydpzv.report.text import NONE

R = TypeVar("R")
Align = Literal["left", "right"]
Mark = Literal["", "good", "bad"]

_STYLES = {"": "", "good": "green", "bad": "bold red"}
_WIDE = 10_000
"""Letters of a line on which any table fits."""
_TEXT = 10
"""Letters that a column of text has at least, before columns of figures keep theirs whole."""


def _no_mark(row: Any) -> Mark:
    return ""


@dataclass(frozen=True)
class Column(Generic[R]):
    """A title, the value that a column gets of a row, how it shows that, and whether the cell is
    good or bad news.

    value: the number by which a page sorts the column; None: by its text. optional: the column is
    left out where it shows a dash in every row.
    """

    title: str
    get: Callable[[R], Any]
    show: Callable[[Any], str] = str
    align: Align = "right"
    mark: Callable[[R], Mark] = _no_mark
    value: Callable[[R], float] | None = None
    optional: bool = False


@dataclass(frozen=True)
class Grid:
    """A table as text: its heads, where they are aligned, its rows, and marks and values of their
    cells.
    """

    heads: tuple[str, ...]
    aligns: tuple[Align, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[tuple[Mark, ...], ...]
    values: tuple[tuple[float | None, ...], ...]

    def console(
        self, title: str = "", caption: str = "", *, gap: int = 1, once: bool = False
    ) -> HeadTable:
        """Return the table for a console; gap: spaces between columns beside the usual one.

        once: a first cell that repeats the one above is empty.
        """
        table = HeadTable(
            title=Text(title, "bold") if title else None, title_justify="left", caption=caption or None,
            box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False,
        )  # fmt: skip
        for head, align in zip(self.heads, self.aligns, strict=True):
            table.add_column(head, overflow="fold", justify=align)
        above = None
        for row, marks in zip(self.rows, self.marks, strict=True):
            cells = [Text(cell, _STYLES[mark]) for cell, mark in zip(row, marks, strict=True)]
            if once and row[0] == above:
                cells[0] = Text()
            above = row[0]
            table.add_row(*cells)
        return table


def grid(columns: Sequence[Column[R]], rows: Iterable[R]) -> Grid:
    """Return the rows as text under the columns."""
    items = list(rows)
    cells = {c.title: tuple(c.show(c.get(row)) for row in items) for c in columns}
    kept = [c for c in columns if not (c.optional and all(cell == NONE for cell in cells[c.title]))]
    return Grid(
        tuple(c.title for c in kept),
        tuple(c.align for c in kept),
        tuple(tuple(cells[c.title][i] for c in kept) for i in range(len(items))),
        tuple(tuple(c.mark(row) for c in kept) for row in items),
        tuple(tuple(c.value(row) if c.value else None for c in kept) for row in items),
    )


def text_grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Return rows that are text already under their heads, all of them figures."""
    return grid([Column(head, itemgetter(i)) for i, head in enumerate(heads)], rows)


class HeadTable(Table):
    """A table of rich that breaks heads at spaces only. Where the heads do not fit, it is a list of
    its rows.

    Heads and cells are text. Columns of figures, at the right, keep these whole; columns of text
    get two lines a cell, if there is room, and share what is left. A list names each cell by its
    head, and leaves out empty cells.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the list."""
        fitted, original = self._fitted(console, options), self.columns
        if fitted is None:
            yield from self._rows()
            return
        self.columns = fitted
        try:
            drawn = list(super().__rich_console__(console, options))
        finally:
            self.columns = original
        yield from drawn

    def _fitted(self, console: Console, options: ConsoleOptions) -> list[RichColumn] | None:
        """Return the columns with widths that fit; None if heads do not fit."""
        if not self.columns:
            return []
        bare = copy(self)
        bare.title = bare.caption = None
        bare.columns = [replace(column, header="", width=1, _cells=[]) for column in self.columns]
        rules = Measurement.get(console, options.update(width=_WIDE), bare).maximum - len(
            self.columns
        )
        widths = _fitting(self.columns, options.max_width - rules)
        if widths is None:
            return None
        return [
            replace(column, width=width) for column, width in zip(self.columns, widths, strict=True)
        ]

    def _rows(self) -> Iterator[RenderableType]:
        if self.title:
            yield self.title
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            yield ""
            for column, cell in zip(self.columns, cells, strict=True):
                if text := _text(cell):
                    yield Text.assemble(
                        (_text(column.header).plain.replace("\n", " "), "bold"), ": ", text
                    )
        if self.caption:
            yield self.caption


def _fitting(columns: Sequence[RichColumn], room: int) -> list[int] | None:
    """Return widths that together fit the room, as even as can be; None if the words of the heads
    do not fit.
    """
    least, whole, most = map(list, zip(*map(_widths, columns), strict=True))
    if sum(least) > room:
        return None
    texts = [
        i for i, column in enumerate(columns) if column.justify != "right" and column.width is None
    ]
    few, short = list(whole), list(whole)
    for i in texts:
        few[i], short[i] = max(least[i], _two_lines(columns[i])), max(least[i], min(most[i], _TEXT))
    widths = next(ideal for ideal in (few, short, least) if sum(ideal) <= room)
    if widths is not least:
        _grow(widths, most, texts, room)
    _grow(widths, most, range(len(columns)), room)
    return widths


def _two_lines(column: RichColumn) -> int:
    """Return the least width at which no cell takes more than two lines or breaks a word."""
    cells = [_text(cell).plain for cell in column.cells]
    least = max((cell_len(word) for cell in cells for word in cell.split()), default=1)
    fits = (
        w
        for w in range(least, max([least, *map(len, cells)]) + 1)
        if all(len(wrap(c, w)) <= 2 for c in cells)
    )
    return next(fits, least)


def _grow(widths: list[int], most: Sequence[int], chosen: Iterable[int], room: int) -> None:
    """Widen the chosen columns, the narrowest first, until all are as wide as they need or the room
    is filled.
    """
    for _ in range(room - sum(widths)):
        growing = [i for i in chosen if widths[i] < most[i]]
        if not growing:
            return
        widths[min(growing, key=widths.__getitem__)] += 1


def _widths(column: RichColumn) -> tuple[int, int, int]:
    """Return how many letters wide the words of a column's head, its cells unbroken, and both
    unbroken are.

    They are the same if nothing in it may break, or its width is given.
    """
    if column.width is not None:
        return (column.width,) * 3
    head = _text(column.header).plain
    words = max(map(cell_len, head.split()), default=1)
    cells = max(
        (cell_len(line) for cell in column.cells for line in _text(cell).plain.split("\n")),
        default=1,
    )
    most = max(words, cells, *map(cell_len, head.split("\n")))
    return (most,) * 3 if column.no_wrap else (words, max(words, cells), most)


def _text(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))
