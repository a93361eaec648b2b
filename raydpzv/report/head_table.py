"""Console tables whose heads stay whole, however narrow the console is."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_WIDE = 10_000
"""Letters of a line on which any table fits."""


class HeadTable(Table):
    """A table of rich that breaks heads at spaces only. Where the heads do not fit, it is a list of its rows.

    Heads and cells are text. A list names each cell by its head, and leaves out empty cells.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the list."""
        fitted, wanted = self._fitted(console, options), self.columns
        if fitted is None:
            yield from self._rows()
            return
        self.columns = fitted
        try:
            drawn = list(super().__rich_console__(console, options))
        finally:
            self.columns = wanted
        yield from drawn

    def _fitted(self, console: Console, options: ConsoleOptions) -> list[Column] | None:
        """Return the columns with widths that fit, as even as can be; None if heads do not fit."""
        if not self.columns:
            return []
        least, most = zip(*map(_widths, self.columns), strict=True)
        bare = copy(self)
        bare.title = bare.caption = None
        bare.columns = [replace(column, header="", width=1, _cells=[]) for column in self.columns]
        rules = Measurement.get(console, options.update(width=_WIDE), bare).maximum - len(self.columns)
        left, widths = options.max_width - rules - sum(least), list(least)
        if left < 0:
            return None
        for _ in range(left):
            growing = [i for i, width in enumerate(widths) if width < most[i]]
            if not growing:
                break
            widths[min(growing, key=widths.__getitem__)] += 1
        return [replace(column, width=width) for column, width in zip(self.columns, widths, strict=True)]

    def _rows(self) -> Iterator[RenderableType]:
        if self.title:
            yield self.title
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            yield ""
            for column, cell in zip(self.columns, cells, strict=True):
                if text := _text(cell):
                    yield Text.assemble((_text(column.header).plain.replace("\n", " "), "bold"), ": ", text)
        if self.caption:
            yield self.caption


def _widths(column: Column) -> tuple[int, int]:
    """Return the least and the most letters of a column: of the words of its head, and of its longest line.

    They are the same if nothing in it may break, or its width is given.
    """
    if column.width is not None:
        return column.width, column.width
    head = _text(column.header).plain
    lines = [*head.split("\n"), *(line for cell in column.cells for line in _text(cell).plain.split("\n"))]
    most = max(*map(cell_len, lines), column.min_width or 0, 1)
    least = max(*map(cell_len, head.split() or [""]), column.min_width or 0, 1)
    return (most if column.no_wrap else least), most


def _text(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))
