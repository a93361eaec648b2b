from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raydpzv.keys import Key
from raydpzv.records import store
from raydpzv.records.recorder import Recorder
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import (
    append_rows,
    joined,
    packed_rows,
    read_rows,
    summed_ages,
    unpacked_rows,
    whole_pieces,
)


def test_each_write_gives_back_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = 0

    class Pool:
        def release_unused(self) -> None:
            nonlocal given
            given += 1

    recorder, extents = Recorder(), {}
    recorder.emit("fault", time=0.0, party="run", kind="Lost", message="")
    rows = recorder.drain()
    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    append_rows(tmp_path, rows, extents=extents)
    append_rows(tmp_path, rows, extents=extents)
    assert given == 2
    assert extents["fault"].rows == 2


def test_a_part_that_is_kept_is_read_again_only_if_another_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extents, kept, read = {}, {}, []
    append_rows(tmp_path, drained(0, 3), extents)
    read_part = store._read
    monkeypatch.setattr(
        store, "_read", lambda part, *of: (read.append(part.name), read_part(part, *of))[1]
    )

    def rounds() -> list[int]:
        read.clear()
        return read_rows(tmp_path, "numbers", kept=kept)["round"].to_pylist()

    assert (rounds(), read) == ([0, 1, 2], ["part-00000.parquet"])
    append_rows(tmp_path, drained(3, 2), extents)
    assert (rounds(), read) == ([0, 1, 2, 3, 4], ["part-00001.parquet"])
    # as a run that resumed writes it
    append_rows(tmp_path, drained(7, 1), {"numbers": store.Extent(parts=1)})
    assert (rounds(), read) == ([0, 1, 2, 7], ["part-00001.parquet"])


def drained(first, count):
    recorder = Recorder()
    for number in range(first, first + count):
        recorder.emit("numbers", round=number, up=2 * number, down=3)
        recorder.writer("staleness")(np.arange(39, dtype=np.int64)[None] + number)
        recorder.emit("fault", time=float("nan"), party="é", kind="", message="x" * number)
    return recorder.drain()


def piece(rows):
    return b"".join(packed_rows(rows))


def test_rows_of_several_calls_come_back_in_their_order():
    pieces = [drained(0, 3), drained(3, 0), drained(3, 2)]
    found, wanted = unpacked_rows(b"".join(map(piece, pieces))), joined(pieces)
    assert set(found) == set(SCHEMAS)
    for name, table in wanted.items():
        assert piece({name: found[name].combine_chunks()}) == piece(
            {name: table.combine_chunks()}
        ), name
    assert found["numbers"]["round"].to_pylist() == [0, 1, 2, 3, 4]
    assert found["message"].num_rows == 0
    assert packed_rows(pieces[1]) == []


def test_other_bytes_are_an_error():
    packed = piece(drained(0, 3))
    with pytest.raises(ValueError, match="7 bytes of fault rows are missing"):
        unpacked_rows(packed[:-7])
    for other in (packed + bytes(7), packed[: len(packed) // 2], packed[:20], packed[1:]):
        with pytest.raises((ValueError, TypeError, KeyError, IndexError)):
            unpacked_rows(other)


def test_what_a_kill_cut_off_is_no_piece() -> None:
    one, two = piece(drained(0, 3)), piece(drained(3, 2))
    assert whole_pieces(one + two) == one + two
    for rest in (two[:-1], two[: two.index(b"\n")], b"[1]\n", b'"text"\n', b"\x00\n", b""):
        assert whole_pieces(one + rest) == one


@pytest.mark.parametrize("window", [1, 5, 20])
def test_summed_ages_are_those_of_a_loop(window: int) -> None:
    draws = Key(7).generator()
    rows = [
        np.array([round, client, *draws.integers(0, 99, 28)])
        for round in range(1, 38)
        for client in range(20)
        if client != round % 20
    ]
    expected: dict[tuple[int, int], np.ndarray] = {}
    for row in rows:
        place = ((row[0] - 1) // window * window + 1, row[1])
        before = expected.get(place, np.zeros(30, np.int64))
        sums = before + row
        sums[5] = max(before[5], row[5])
        expected[place] = sums
    found = summed_ages(np.stack(rows), window)
    assert [tuple(row[:2]) for row in found] == sorted(expected)
    assert all(np.array_equal(row[2:], expected[tuple(row[:2])][2:]) for row in found)
    assert summed_ages(np.zeros((0, 30), np.int64), window).shape == (0, 30)
