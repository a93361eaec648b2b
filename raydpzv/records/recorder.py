"""Takes facts as they happen and hands them over as Arrow tables."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import Rows


class Recorder:
    """Columns of Python values per row type; safe to drain from another thread while facts come in.

    skip: row types that are not kept.
    """

    def __init__(self, skip: frozenset[str] = frozenset()) -> None:
        self._skip = skip
        self._lock = threading.Lock()
        self._columns = _empty()

    def emit(self, row_type: str, **values: Any) -> None:
        """Record one row; every column of the type's schema must be given."""
        if row_type in self._skip:
            return
        columns = self._columns[row_type]
        if values.keys() != columns.keys():
            raise KeyError(f"a {row_type} row has {sorted(columns)}, got {sorted(values)}")
        with self._lock:
            columns = self._columns[row_type]
            for name, value in values.items():
                columns[name].append(value)

    def drain(self) -> Rows:
        """Return the rows since the last drain, as tables, and forget them."""
        with self._lock:
            columns, self._columns = self._columns, _empty()
        return {
            name: pa.table({f.name: pa.array(columns[name][f.name], f.type) for f in schema}, schema=schema)
            for name, schema in SCHEMAS.items()
        }


def _empty() -> dict[str, dict[str, list[Any]]]:
    return {name: {field.name: [] for field in schema} for name, schema in SCHEMAS.items()}
