"""Takes facts as they happen and hands them over as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from raydpzv.records.columns import Row, RowBatch
from raydpzv.records.schema import MU_COLUMNS, SCHEMAS
from raydpzv.records.store import Rows

_NONE = {name: pa.Table.from_batches([], schema) for name, schema in SCHEMAS.items()}  # without pandas


class Recorder:
    """A batch of rows per row type; safe to drain from another thread while facts come in.

    skip: row types that are not kept. epsilons: makes ε of the μ that release rows are given (`MU_COLUMNS`), of all
    rows of a drain at once; None: the values are kept as they come.
    """

    def __init__(
        self,
        skip: frozenset[str] = frozenset(),
        epsilons: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._skip, self._epsilons = skip, epsilons
        if epsilons:  # it imports scipy, 20 MB: the first drain would stop the run
            epsilons(np.ones(1))
        self._batches = {name: RowBatch(schema) for name, schema in SCHEMAS.items()}

    def emit(self, row_type: str, **values: Any) -> None:
        """Record one row; every column of the type's schema must be given."""
        names = SCHEMAS[row_type].names
        if values.keys() != set(names):
            raise KeyError(f"a {row_type} row has {sorted(names)}, got {sorted(values)}")
        self.writer(row_type)(tuple(values[name] for name in names))

    def writer(self, row_type: str) -> Callable[[Row], None]:
        """Return what records one row of a type, its values in the schema's order, or an array of rows (see `Row`)."""
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
        return _NONE[name]
    table = pa.Table.from_batches(batches, SCHEMAS[name])
    return table if len(batches) == 1 else table.combine_chunks()


def _forget(row: Row) -> None:
    """Keep nothing."""


def _with_epsilons(table: pa.Table, epsilons: Callable[[np.ndarray], np.ndarray]) -> pa.Table:
    mus = np.stack([table.column(name).to_numpy() for name in MU_COLUMNS])
    for name, values in zip(MU_COLUMNS, epsilons(mus), strict=True):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    return table
