"""Collect facts as they happen and return them as Arrow tables."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.arrow_columns import array, numbers, strings, whole_numbers
from raydpzv.records.schema import EMPTY, MU_COLUMNS, SCHEMAS
from raydpzv.records.store import Rows, summed_ages

_CODES = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d", pa.bool_(): "?"}
_TOGETHER = 512
"""Rows, or arrays of rows, that wait to become columns: single rows would take thirty times as
long.
"""
Row = tuple[Any, ...] | np.ndarray
"""One row, a value per column; or rows of whole numbers, int64 [n, columns], those of a list one by
one.
"""


class Recorder:
    """A batch of rows per row type. Another thread may drain it while facts come in.

    skip: row types that are dropped. epsilons: converts the μ of release rows (`MU_COLUMNS`) to ε,
    for all rows of a drain at once; None: the values stay as they are. age_window: rounds over
    which a client's ages are summed.
    """

    def __init__(
        self,
        skip: frozenset[str] = frozenset(),
        epsilons: Callable[[np.ndarray], np.ndarray] | None = None,
        age_window: int = 1,
    ) -> None:
        self._skip, self._epsilons = skip, epsilons
        if epsilons:  # it imports scipy, 20 MB: the first drain would stop the run
            epsilons(np.ones(1))
        self._batches = {name: RowBatch(schema) for name, schema in SCHEMAS.items()}
        if age_window > 1:
            self._batches["staleness"] = RowBatch(
                SCHEMAS["staleness"], lambda rows: summed_ages(rows, age_window)
            )

    def emit(self, row_type: str, **values: Any) -> None:
        """Record one row; every column of the type's schema must be given."""
        names = SCHEMAS[row_type].names
        if values.keys() != set(names):
            raise KeyError(f"a {row_type} row has {sorted(names)}, got {sorted(values)}")
        self.writer(row_type)(tuple(values[name] for name in names))

    def writer(self, row_type: str) -> Callable[[Row], None]:
        """Return a function that records one row of a type, in the schema's order, or an array of
        rows (see `Row`).
        """
        return _forget if row_type in self._skip else self._batches[row_type].add

    def drain(self) -> Rows:
        """Return the rows since the last drain, as tables, and forget them."""
        taken = {name: batch.take() for name, batch in self._batches.items()}
        tables = {name: _joined(batches, name) for name, batches in taken.items()}
        if self._epsilons and tables["release"].num_rows:
            tables["release"] = _with_epsilons(tables["release"], self._epsilons)
        return tables


def _joined(batches: list[pa.RecordBatch], name: str) -> pa.Table:
    if not batches:
        return EMPTY[name]
    table = pa.Table.from_batches(batches, SCHEMAS[name])
    return table if len(batches) == 1 else table.combine_chunks()


def _forget(row: Row) -> None:
    """Drop a row."""


def _with_epsilons(table: pa.Table, epsilons: Callable[[np.ndarray], np.ndarray]) -> pa.Table:
    mus = np.stack([array(table.column(name)) for name in MU_COLUMNS])
    for name, values in zip(MU_COLUMNS, epsilons(mus), strict=True):
        table = table.set_column(table.schema.get_field_index(name), name, numbers(values))
    return table


class RowBatch:
    """Rows of one schema, in the order in which they were added; any thread may add or take.

    A value that does not fit raises an error when it, or a later row, is added, or when the rows
    are taken.
    fold: turns arrays of rows into fewer, given some hundred at a time.
    """

    def __init__(
        self, schema: pa.Schema, fold: Callable[[np.ndarray], np.ndarray] = lambda rows: rows
    ) -> None:
        self._schema, self._fold, self._packing = schema, fold, Lock()
        self._waiting: list[Row] = []
        self._packed: list[pa.RecordBatch] = []

    def add(self, row: Row) -> None:
        """Add one row, or rows; an array is kept."""
        waiting = self._waiting
        waiting.append(row)  # the list stays the same one, so that this needs no lock
        if len(waiting) >= _TOGETHER:
            self._pack()

    def take(self) -> list[pa.RecordBatch]:
        """Return the rows and forget them. ValueError, struct.error: too few values, too many, or
        no such numbers.
        """
        self._pack()
        with self._packing:
            packed, self._packed = self._packed, []
        return packed

    def _pack(self) -> None:
        """Turn waiting rows into columns."""
        with self._packing:
            count = len(self._waiting)
            taken = self._waiting[:count]
            del self._waiting[:count]
            for kind, same in groupby(taken, type):
                if kind is np.ndarray:
                    columns = whole_numbers(self._fold(np.concatenate(list(same))), self._schema)
                else:
                    columns = _from_rows(same, self._schema)
                self._packed.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def _from_rows(rows: Iterable[Any], schema: pa.Schema) -> list[pa.Array]:
    columns = zip(*rows, strict=True)
    return [_column(values, field.type) for values, field in zip(columns, schema, strict=True)]


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        elements = _column(tuple(chain.from_iterable(values)), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(elements, kind.list_size)
    if pa.types.is_string(kind):
        return strings(values)
    # a third of what Arrow or numpy takes to look at each value
    data = struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
    if pa.types.is_boolean(kind):  # bits, of which these are bytes
        return numbers(np.frombuffer(data, np.bool_))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])
