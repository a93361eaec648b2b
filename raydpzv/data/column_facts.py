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

from raydpzv.data.tabular import is_numeric, read_columns

MOST_VALUES = 50
"""A column of texts with more different values names rows, rather than kinds of them."""
RARE = 5
"""A value in fewer rows may reveal them by being listed."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column. numeric: its cells are numbers, of which `low` and `high` are the least and the
    largest finite ones.

    values: the different values, ascending, of texts, whole numbers and true or false, None if they
    are more than MOST_VALUES; rare: those of them in fewer than RARE rows. unusable: why no party
    can use the column, in words; ""
    if one can. missing: rows without a value.
    """

    name: str
    numeric: bool
    low: float
    high: float
    values: tuple[str | int | bool, ...] | None
    missing: int
    unusable: str
    rare: tuple[str | int | bool, ...] = ()


def column_facts(file: Path) -> dict[str, ColumnFacts]:
    """Return what each column of a CSV or Parquet file holds, by name. Raises DataError."""
    table = read_columns(file)
    return {
        name: _facts(name, column.combine_chunks())
        for name, column in zip(table.column_names, table.columns, strict=True)
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


def _facts(name: str, column: pa.Array) -> ColumnFacts:
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
    values, rare = None, ()
    if text or types.is_integer(kind) or types.is_boolean(kind):
        counts = {
            c["values"].as_py(): c["counts"].as_py() for c in pc.value_counts(column.drop_null())
        }
        values = tuple(sorted(counts)) if len(counts) <= MOST_VALUES else None
        rare = tuple(value for value in values or () if counts[value] < RARE)
    unusable = _unusable(column, values, numeric=numeric, text=text)
    return ColumnFacts(name, numeric, low, high, values, column.null_count, unusable, rare)


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
