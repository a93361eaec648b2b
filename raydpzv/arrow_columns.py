"""Arrow arrays of rows to numpy and back. Arrow's own ways import pandas where it is installed: .4
CPU seconds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FORMULA = r"^[=+\-@\t\r]"
"""Texts that a spreadsheet would calculate."""


def as_csv(table: pa.Table) -> bytes:
    """Return a table as CSV: infinity is inf, NaN nan, null empty, and no text is a formula.

    Texts may be from a folder of somebody else. A quotation mark before one keeps it a text.
    """
    import pyarrow.csv as pcsv  # what reads columns does without

    columns = [_plain(column) if pa.types.is_string(column.type) else column for column in table]
    names = [f"'{name}" if re.match(_FORMULA, name) else name for name in table.column_names]
    found = io.BytesIO()
    pcsv.write_csv(pa.table(columns, names), found)
    return found.getvalue()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    marked = pc.binary_join_element_wise("'", column, "")
    return pc.if_else(pc.match_substring_regex(column, _FORMULA), marked, column)


def numbers(values: np.ndarray) -> pa.Array:
    """Return numbers or truth values [n] as an Arrow array of the same type."""
    kind, truths = pa.from_numpy_dtype(values.dtype), values.dtype == np.bool_
    data = np.packbits(values, bitorder="little") if truths else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


def strings(values: Sequence[str]) -> pa.Array:
    """Return strings as an Arrow array. Raises TypeError."""
    data = [str.encode(value) for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.string(), len(data), buffers)


def array(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers or truth values [n], none of them missing; it may be read-only."""
    if not len(column):
        return np.empty(0, column.type.to_pandas_dtype())
    whole: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(whole.type):
        return array(pc.cast(whole, pa.uint8())).astype(bool)
    kind = np.dtype(whole.type.to_pandas_dtype())
    return np.frombuffer(whole.buffers()[1], kind, len(whole), whole.offset * kind.itemsize)


def equal(column: pa.Array | pa.ChunkedArray, value: str) -> pa.Array | pa.ChunkedArray:
    """Tell of each string of a column whether it is this one."""
    return pc.equal(column, strings([value])[0])


def whole_numbers(rows: np.ndarray, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of rows int64 [n, numbers of a row], those of a list one by one."""
    columns, place = [], 0
    for field in schema:
        listed = pa.types.is_fixed_size_list(field.type)
        kind, size = (field.type.value_type, field.type.list_size) if listed else (field.type, 1)
        values = numbers(rows[:, place : place + size].reshape(-1).astype(kind.to_pandas_dtype()))
        columns.append(pa.FixedSizeListArray.from_arrays(values, size) if listed else values)
        place += size
    return columns


def rows_of(table: pa.Table) -> np.ndarray:
    """Return the rows that `whole_numbers` made columns of."""
    parts = [
        np.concatenate([array(chunk.flatten()).reshape(len(chunk), -1) for chunk in column.chunks])
        if pa.types.is_fixed_size_list(column.type)
        else array(column).reshape(-1, 1)
        for column in table.columns
    ]
    return np.concatenate([part.astype(np.int64, copy=False) for part in parts], axis=1)
