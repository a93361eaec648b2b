"""Rows as bytes: what a checkpoint holds of them comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest

from raydpzv.records.packed_rows import PackedRows
from raydpzv.records.recorder import Recorder
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import joined


def drained(first, count):
    recorder = Recorder()
    for number in range(first, first + count):
        recorder.emit("numbers", round=number, up=2 * number, down=3)
        recorder.writer("staleness")(np.arange(39, dtype=np.int64)[None] + number)
        recorder.emit("fault", time=float("nan"), party="é", kind="", message="x" * number)
    return recorder.drain()


def test_rows_of_several_calls_come_back_in_their_order():
    pieces = [drained(0, 3), drained(3, 0), drained(3, 2)]
    packed = PackedRows([], b"")
    for piece in pieces:
        packed += PackedRows.of(piece)
    found, wanted = packed.rows(), joined(pieces)
    assert set(found) == set(SCHEMAS)
    for name, table in wanted.items():
        assert PackedRows.of({name: found[name].combine_chunks()}) == PackedRows.of({name: table}), name
    assert found["numbers"]["round"].to_pylist() == [0, 1, 2, 3, 4]
    assert found["message"].num_rows == 0


def test_other_bytes_are_an_error():
    packed = PackedRows.of(drained(0, 3))
    with pytest.raises(ValueError, match="7 bytes of rows too many"):
        PackedRows(packed.sizes, packed.data + bytes(7)).rows()
    with pytest.raises((ValueError, IndexError)):
        PackedRows(packed.sizes, packed.data[: len(packed.data) // 2]).rows()
