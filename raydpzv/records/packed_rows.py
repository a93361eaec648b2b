"""Rows as bytes, in which a checkpoint holds those that are in no part yet: a tenth of the cost of writing a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from raydpzv.records.schema import SCHEMAS


@dataclass(frozen=True)
class PackedRows:
    """Record batches in Arrow's IPC form, one after the other; sizes: row type and bytes of each."""

    sizes: Sequence[tuple[str, int]]
    data: bytes

    @classmethod
    def of(cls, rows: Mapping[str, pa.Table]) -> PackedRows:
        """Pack rows; types without any have no part in it."""
        packed = [
            (name, batch.serialize())
            for name, table in rows.items()
            for batch in table.to_batches()
            if batch.num_rows
        ]
        return cls([(name, data.size) for name, data in packed], b"".join(data for _, data in packed))

    def __add__(self, other: PackedRows) -> PackedRows:
        return PackedRows([*self.sizes, *other.sizes], self.data + other.data)

    def rows(self) -> dict[str, pa.Table]:
        """Return the rows of every type. Raises ValueError or IndexError for other bytes."""
        batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in SCHEMAS}
        place, buffer = 0, pa.py_buffer(self.data)
        for name, size in self.sizes:
            batch = pa.ipc.read_record_batch(buffer.slice(place, size), SCHEMAS[name])
            batch.validate(full=True)
            batches[name].append(batch)
            place += size
        if place != len(self.data):
            raise ValueError(f"{len(self.data) - place} bytes of rows too many")
        return {name: pa.Table.from_batches(found, SCHEMAS[name]) for name, found in batches.items()}
