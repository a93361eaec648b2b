"""Arrow arrays of rows to numpy and back. Arrow's own ways import pandas where it is installed: .4 CPU seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


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
