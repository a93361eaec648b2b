"""Rows of one type in memory as they happen: packed into one growing block, made into Arrow columns all at once.

A row is packed by one call, in the layout of a numpy record, so that a column is a view of the block and no value is
looked at twice. A text is a number in the block and stands once in a list beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_CODES = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d", pa.bool_(): "?", pa.string(): "i"}
_LEAST = 64
"""Rows that a batch has room for at first."""


class RowBatch:
    """Rows of one schema, in the order in which they were added."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        record, self._dtype = _layout(schema)
        self._pack, self._size = record.pack_into, record.size
        self._block = bytearray(_LEAST * record.size)
        self._end = 0
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        self._texts: dict[str, dict[str, int]] = {name: {} for name in texts}
        self._coded = [(_place(schema, name), codes) for name, codes in self._texts.items()]

    def __len__(self) -> int:
        return self._end // self._size

    def add(self, values: Sequence[Any]) -> None:
        """Add one row: a value per column, those of a list one by one. struct.error: too few, too many, no number."""
        if self._coded:
            values = list(values)
            for place, codes in self._coded:
                values[place] = codes.setdefault(values[place], len(codes))
        end = self._end
        if end == len(self._block):
            self._block.extend(bytes(end))
        self._pack(self._block, end, *values)
        self._end = end + self._size

    def table(self) -> pa.Table:
        """Return the rows as a table."""
        rows = np.frombuffer(self._block, self._dtype, len(self))
        columns = [self._column(field, np.ascontiguousarray(rows[field.name])) for field in self._schema]
        return pa.table(columns, schema=self._schema)

    def _column(self, field: pa.Field, values: np.ndarray) -> pa.Array:
        if field.name in self._texts:
            return pa.array(list(self._texts[field.name]), pa.string()).take(pa.array(values))
        if pa.types.is_fixed_size_list(field.type):
            return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), field.type.list_size)
        return pa.array(values)


def _layout(schema: pa.Schema) -> tuple[struct.Struct, np.dtype[Any]]:
    """Return how a row is packed, and the same as numpy reads it."""
    counts = [_count(field) for field in schema]
    codes = [_CODES[_element(field)] for field in schema]
    record = struct.Struct("<" + "".join(f"{n}{code}" for n, code in zip(counts, codes, strict=True)))
    fields = [
        (name, f"<{code}" if code != "?" else code, *([(n,)] if n > 1 else []))
        for name, code, n in zip(schema.names, codes, counts, strict=True)
    ]
    return record, np.dtype(fields)


def _count(field: pa.Field) -> int:
    """How many values of a row a column takes."""
    return int(field.type.list_size) if pa.types.is_fixed_size_list(field.type) else 1


def _element(field: pa.Field) -> pa.DataType:
    return field.type.value_type if pa.types.is_fixed_size_list(field.type) else field.type


def _place(schema: pa.Schema, name: str) -> int:
    """Which of a row's values is the first of a column."""
    return sum(_count(field) for field in list(schema)[: schema.get_field_index(name)])
