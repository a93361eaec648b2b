"""Facts of the columns of one's own table: the range of numbers, or a few values. For proposals,
not for runs.
"""

# D rows

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from raydpzv.data.files import one_line
from raydpzv.data.given_cells import days_since, is_date
from raydpzv.data.spelling import in_order, shown, whole
from raydpzv.data.table import MOST_WHOLE
from raydpzv.data.table_files import CsvForm, read_columns, written_cells
from raydpzv.data.tabular import is_numeric, nameless
from raydpzv.errors import DataError

MOST_VALUES = 50
"""A column of texts with more different values names rows, rather than kinds of them."""
EPOCH = "2000-01-01"
"""The public day since which proposals count days."""
RARE = 5
"""A value in fewer rows may reveal them by being listed."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a table."""

    name: str
    """Its heading."""
    numeric: bool
    """Are its cells numbers, or dates, as days since `EPOCH`?"""
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
    dates: bool = False
    """Are its cells dates?"""
    gap_word: str = ""
    """What a cell without a value says, such as NA; "": such cells are empty."""

    @property
    def gaps(self) -> str:
        """How many cells have no value, and what such a cell says, in words; "" for none."""
        such = f", such as {shown(self.gap_word)}" if self.gap_word else ""
        cells = "cell" if self.missing == 1 else "cells"
        return f"{self.missing} {cells} without a value{such}" if self.missing else ""


def column_facts(file: Path, form: CsvForm) -> dict[str, ColumnFacts]:
    """Return what each column of a CSV or Parquet file holds, by name. Raises DataError."""
    table, written = read_columns(file, form), written_cells(file, form)
    if not table.num_rows:
        raise DataError(f'"{one_line(file.name)}" has a heading and no rows: give it data')
    return {
        name: _facts(
            name,
            _plain(table.column(place)),
            None if written is None else written.column(place).combine_chunks(),
        )
        for place, name in enumerate(table.column_names)
    }


def _plain(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.dictionary_decode() if types.is_dictionary(found.type) else found


def _days(column: pa.Array) -> pa.Array | None:
    """Return the days since `EPOCH` of a column of dates, None of another."""
    texts = _is_text(column.type) and column.null_count < len(column)
    if not (types.is_date(column.type) or types.is_timestamp(column.type)) and not (
        texts and all(map(is_date, column.drop_null().unique().to_pylist()))
    ):
        return None
    return pa.array(days_since(EPOCH, pa.chunked_array([column]), "a date"), from_pandas=True)


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


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
    days = _days(column)
    column = column if days is None else days
    kind, low, high = column.type, math.nan, math.nan
    numeric, text = is_numeric(kind), _is_text(kind)
    if numeric:
        numbers = column.drop_null().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):
            low, high = float(numbers.min()), float(numbers.max())
    values: tuple[str | int | bool, ...] | None = None
    rare: tuple[str | int | bool, ...] = ()
    if text or types.is_integer(kind) or types.is_boolean(kind):
        names = _as_names(column, written)
        text, numeric = text or names is not column, numeric and names is column
        counts = _counts(names)
        texts = [value for value in counts if isinstance(value, str)]
        order = in_order(texts) if len(texts) == len(counts) else sorted(counts)
        values = tuple(order) if len(counts) <= MOST_VALUES else None
        rare = tuple(value for value in values or () if counts[value] < RARE)
    unusable = _unusable(column, values, low, high, numeric=numeric, text=text)
    if nameless(name):
        unusable = "it has no name, as a frame's row numbers"
    word = _gap_word(column, written)
    return ColumnFacts(
        name,
        numeric,
        low,
        high,
        values,
        column.null_count,
        unusable,
        rare,
        days is not None,
        word,
    )


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
    column: pa.Array,
    values: tuple[object, ...] | None,
    low: float,
    high: float,
    *,
    numeric: bool,
    text: bool,
) -> str:
    if column.null_count == len(column):
        return "it is empty"
    if types.is_temporal(column.type):
        return "times of day: write them as numbers"
    if numeric and max(abs(low), abs(high)) > MOST_WHOLE:
        return "numbers beyond 2^53, which floats round, as ids are"
    if not numeric and not text:
        return f"it has the type {column.type}: write it as numbers or texts"
    if text and values is None:
        texts = column.cast(pa.string()).drop_null().unique().to_pylist()
        others = [each for each in texts if not is_date(each)]
        if len(others) < len(texts) / 2:
            return f"most cells are dates, but not {json.dumps(others[0], ensure_ascii=False)}"
        return f"more than {MOST_VALUES} different texts: they name rows, not kinds of rows"
    if text and values is not None and len(values) < 2:
        return "it has one value"
    return ""
