"""Facts of the columns of one's own table: the range of numbers, or a few values. For proposals,
not for runs.
"""

# D rows

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from raydpzv.data.spelling import in_order, shown, whole
from raydpzv.data.tabular import is_numeric, nameless, read_columns, written_cells

MOST_VALUES = 50
"""A column of texts with more different values names rows, rather than kinds of them."""
RARE = 5
"""A value in fewer rows may reveal them by being listed."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a table."""

    name: str
    """Its heading."""
    numeric: bool
    """Are its cells numbers?"""
    low: float
    """The least finite number."""
    high: float
    """The largest finite number."""
    values: tuple[str | int | bool, ...] | None
    """The different texts, whole numbers, or true and false, ascending; None if they are more than
    MOST_VALUES.
    """
    missing: int
    """Rows without a value."""
    unusable: str
    """Why no party can use the column, in words; "": one can."""
    rare: tuple[str | int | bool, ...] = ()
    """Values in fewer than RARE rows."""
    gap_word: str = ""
    """What a cell without a value says, such as NA; "": such cells are empty."""

    @property
    def gaps(self) -> str:
        """How many cells have no value, and what such a cell says, in words; "" for none."""
        such = f", such as {shown(self.gap_word)}" if self.gap_word else ""
        cells = "cell" if self.missing == 1 else "cells"
        return f"{self.missing} {cells} without a value{such}" if self.missing else ""


def column_facts(file: Path) -> dict[str, ColumnFacts]:
    """Return what each column of a CSV or Parquet file holds, by name. Raises DataError."""
    table, written = read_columns(file), written_cells(file)
    return {
        name: _facts(
            name,
            table.column(place).combine_chunks(),
            None if written is None else written.column(place).combine_chunks(),
        )
        for place, name in enumerate(table.column_names)
    }


def round_range(low: float, high: float) -> tuple[float, float]:
    """Return a range around this one whose ends have one digit at the width's scale: 18 to 89
    becomes 10 to 90.
    """
    if not low < high:
        return low - 1, low + 1
    digits = -math.floor(math.log10(high - low))
    step = 10.0**-digits
    return round(math.floor(low / step) * step, digits), round(
        math.ceil(high / step) * step, digits
    )


def _facts(name: str, column: pa.Array, written: pa.Array | None) -> ColumnFacts:
    """Return a column's facts. written: its cells as texts, None where the file has types."""
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind, low, high = column.type, math.nan, math.nan
    numeric = is_numeric(kind)
    text = types.is_string(kind) or types.is_large_string(kind)
    if numeric:
        numbers = column.drop_null().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):
            low, high = float(numbers.min()), float(numbers.max())
    values: tuple[str | int | bool, ...] | None = None
    rare: tuple[str | int | bool, ...] = ()
    if text or types.is_integer(kind) or types.is_boolean(kind):
        counts = _counts(_as_names(column, written))
        texts = [value for value in counts if isinstance(value, str)]
        order = in_order(texts) if len(texts) == len(counts) else sorted(counts)
        values = tuple(order) if len(counts) <= MOST_VALUES else None
        rare = tuple(value for value in values or () if counts[value] < RARE)
    unusable = _unusable(column, values, numeric=numeric, text=text)
    if nameless(name):
        unusable = "it has no name, as a frame's row numbers"
    word = _gap_word(column, written)
    return ColumnFacts(name, numeric, low, high, values, column.null_count, unusable, rare, word)


def _as_names(column: pa.Array, written: pa.Array | None) -> pa.Array:
    """Return whole numbers that are written as names, such as 007, as the texts that they are."""
    if written is None or not types.is_integer(column.type):
        return column
    texts = written.filter(column.is_valid())
    bare = pc.utf8_trim_whitespace(texts).unique().to_pylist()
    return column if whole(bare) else texts


def _counts(column: pa.Array) -> dict[str | int | bool, int]:
    found = pc.value_counts(column.drop_null())
    return {each["values"].as_py(): each["counts"].as_py() for each in found}


def _gap_word(column: pa.Array, written: pa.Array | None) -> str:
    words = [] if written is None else written.filter(column.is_null()).unique().to_pylist()
    return next(filter(None, words), "")


def _unusable(
    column: pa.Array, values: tuple[object, ...] | None, *, numeric: bool, text: bool
) -> str:
    if column.null_count == len(column):
        return "it is empty"
    if types.is_temporal(column.type):
        return "dates or times: write them as numbers"
    if not numeric and not text:
        return f"it has the type {column.type}: write it as numbers or texts"
    if text and values is None:
        return f"more than {MOST_VALUES} different texts: they name rows, not kinds of rows"
    if text and values is not None and len(values) < 2:
        return "it has one value"
    return ""
