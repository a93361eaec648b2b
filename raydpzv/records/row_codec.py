"""Rows as bytes: a tenth of the cost of writing a part.

A piece is a line of JSON, which has the row type and the bytes of each record batch, and these in Arrow's IPC form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from mmap import mmap

import pyarrow as pa

from raydpzv.records.schema import SCHEMAS

Packed = bytes | mmap
"""Pieces, one after the other."""


def packed_rows(rows: Mapping[str, pa.Table]) -> list[memoryview]:
    """Return what a piece of rows consists of: nothing without rows; types that have none have no part in it."""
    packed = [
        (name, batch.serialize())
        for name, table in rows.items()
        for batch in table.to_batches()
        if batch.num_rows
    ]
    if not packed:
        return []
    head = json.dumps([(name, data.size) for name, data in packed])
    return [memoryview(f"{head}\n".encode()), *(memoryview(data) for _, data in packed)]


def whole_pieces(data: bytes) -> bytes:
    """Return the pieces with which the data begin, up to one that is cut off or none."""
    place = 0
    while place < len(data):
        try:
            end = data.index(b"\n", place)
            after = end + 1 + sum(size for _, size in json.loads(data[place:end]))
        except (ValueError, TypeError):
            break
        if after > len(data):
            break
        place = after
    return data[:place]


def unpacked_rows(data: Packed) -> dict[str, pa.Table]:
    """Return the rows of every type that pieces hold, one after the other.

    Raises ValueError, TypeError, KeyError or IndexError for other bytes.
    """
    batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in SCHEMAS}
    place, buffer = 0, pa.py_buffer(data)
    while place < len(data):
        end = data.find(b"\n", place)
        head, place = json.loads(data[place : max(end, place)]), end + 1
        for name, size in head:
            if place + size > len(data):
                raise ValueError(f"{place + size - len(data)} bytes of {name} rows are missing")
            batch = pa.ipc.read_record_batch(buffer.slice(place, size), SCHEMAS[name])
            batch.validate(full=True)
            batches[name].append(batch)
            place += size
    return {name: pa.Table.from_batches(found, SCHEMAS[name]) for name, found in batches.items()}
