"""The file of rows that grows with each checkpoint: what one stands for stays readable until two
others followed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydpzv.errors import DataError
from raydpzv.records import write_ahead_log
from raydpzv.records.checkpoint import CHECKPOINT, Checkpoint, before
from raydpzv.records.recorder import Recorder
from raydpzv.records.run_folder import RunFolder, drop_checkpoints
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.store import Rows, unpacked_rows
from raydpzv.records.write_ahead_log import TAIL, LogExtent, WriteAheadLog, read_log


def drained(first: int, count: int) -> Rows:
    recorder = Recorder()
    for number in range(first, first + count):
        recorder.emit("numbers", round=number, up=2 * number, down=3)
    return recorder.drain()


def rounds(run: Path, extent: LogExtent | None) -> list[int]:
    assert extent is not None
    found: list[int] = unpacked_rows(read_log(run, extent))["numbers"]["round"].to_pylist()
    return found


def checkpointed(log: WriteAheadLog) -> LogExtent | None:
    found = log.write()
    log.checkpointed()
    return found


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / TAIL).iterdir())


def test_what_a_checkpoint_stands_for_stays_while_the_file_grows(tmp_path: Path) -> None:
    log, extents = WriteAheadLog(tmp_path), []
    assert log.write() is None
    assert not (tmp_path / TAIL).exists()
    for first in (0, 3, 6):
        log.add(drained(first, 1))
        log.add(drained(first + 1, 2))
        extents.append(checkpointed(log))
    assert checkpointed(log) == extents[2], "no rows were added"
    assert [rounds(tmp_path, each) for each in extents] == [
        list(range(3)),
        list(range(6)),
        list(range(9)),
    ]
    assert files(tmp_path) == ["00000.rows"]


def test_files_go_when_neither_of_the_last_two_checkpoints_needs_them_and_no_number_comes_twice(
    tmp_path: Path,
) -> None:
    log = WriteAheadLog(tmp_path)
    found = []
    for _ in range(2):
        log.add(drained(0, 2))
        checkpointed(log)
        found.append(files(tmp_path))
        log.clear()
        checkpointed(log)
        found.append(files(tmp_path))
        checkpointed(log)
        found.append(files(tmp_path))
    assert found == [["00000.rows"], ["00000.rows"], [], ["00001.rows"], ["00001.rows"], []]


def test_who_continues_begins_a_new_file_and_leaves_the_one_that_it_continues_from_for_one_checkpoint(
    tmp_path: Path,
) -> None:
    first = WriteAheadLog(tmp_path)
    first.add(drained(0, 2))
    last = checkpointed(first)
    first.add(drained(2, 1))
    first.write()  # and killed before the checkpoint
    (tmp_path / TAIL / "notes.rows").write_text("of somebody else")
    again = WriteAheadLog(tmp_path, last)
    again.add(drained(0, 5))
    assert rounds(tmp_path, checkpointed(again)) == list(range(5))
    assert rounds(tmp_path, last) == [0, 1]
    checkpointed(again)
    assert files(tmp_path) == ["00001.rows", "notes.rows"]


def test_a_write_that_fails_midway_is_made_again_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, plain = WriteAheadLog(tmp_path), open
    log.add(drained(0, 2))
    whole = log.write()
    log.add(drained(2, 2))

    class Full:
        def __init__(self, file: Any) -> None:
            self._file, self._calls = file, 0

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *details: object) -> None:
            self._file.close()

        def seek(self, place: int) -> None:
            self._file.seek(place)

        def write(self, data: memoryview) -> int:
            self._calls += 1
            if self._calls > 1:
                raise OSError(28, "No space left on device")
            written: int = self._file.write(data[:9])
            return written

    with monkeypatch.context() as patch:
        patch.setattr(
            write_ahead_log,
            "open",
            lambda *given, **named: Full(plain(*given, **named)),
            raising=False,
        )
        with pytest.raises(OSError, match="No space left"):
            log.write()
    assert rounds(tmp_path, whole) == [0, 1]
    assert rounds(tmp_path, log.write()) == [0, 1, 2, 3]


def test_all_rows_come_back_until_they_are_cleared_written_or_not(tmp_path: Path) -> None:
    def numbers() -> list[int]:
        found: list[int] = log.rows()["numbers"]["round"].to_pylist()
        return found

    log = WriteAheadLog(tmp_path)
    assert log.rows() == {}
    log.add(drained(0, 2))
    assert (numbers(), log.size) == ([0, 1], 0)
    last = checkpointed(log)
    assert (numbers(), log.size) == ([0, 1], last.size)
    log.add(drained(2, 2))
    assert numbers() == [0, 1, 2, 3]
    data = read_log(tmp_path, last)
    log = WriteAheadLog(tmp_path, last, data)
    assert (numbers(), log.size) == ([0, 1], last.size)
    log.add(drained(5, 1))
    assert numbers() == [0, 1, 5]
    extent = checkpointed(log)
    assert rounds(tmp_path, extent) == numbers() == [0, 1, 5]
    log.add(drained(6, 1))
    assert rounds(tmp_path, checkpointed(log)) == numbers() == [0, 1, 5, 6], (
        "what was taken over is there once"
    )
    (tmp_path / TAIL / "00001.rows").unlink()
    with pytest.raises(DataError, match=r"00001\.rows: cannot be read"):
        log.rows()
    log.clear()
    assert (log.rows(), log.size, log.write()) == ({}, 0, None)
    log = WriteAheadLog(tmp_path, last, data)
    log.clear()
    assert (log.rows(), log.write()) == ({}, None), "nor does what was taken over come back"


@pytest.mark.parametrize("harm", ["gone", "short", "changed"])
def test_other_bytes_are_refused_by_the_files_name(tmp_path: Path, harm: str) -> None:
    log = WriteAheadLog(tmp_path)
    log.add(drained(0, 3))
    extent = log.write()
    path = tmp_path / extent.path
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if harm == "short" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DataError, match=rf"{path.name}: .*cannot continue"):
        read_log(tmp_path, extent)


def folder_with_two_checkpoints(path: Path) -> tuple[Path, RunFolder]:
    """Of four rows and of seven, the last three of which are in the log alone, as all others."""
    (path / "run").mkdir()
    folder = RunWriter(path / "run")
    for number, rows in enumerate((drained(0, 4), drained(4, 3))):
        folder.hold(rows)
        folder.write_checkpoint(Checkpoint(number, {}))
    return path / "run", folder


def test_rows_beyond_the_last_checkpoint_are_nobodys(tmp_path: Path) -> None:
    run, folder = folder_with_two_checkpoints(tmp_path)
    with open(run / TAIL / "00000.rows", "ab") as file:
        file.write(b"[of a kill")
    again = RunWriter(run)
    again.go_back()
    assert again.so_far("numbers")["round"].to_pylist() == list(range(7))
    assert again.counts["numbers"] == 7 == folder.counts["numbers"]


def test_where_the_last_rows_are_damaged_the_checkpoint_before_is_gone_back_to(
    tmp_path: Path,
) -> None:
    run, _ = folder_with_two_checkpoints(tmp_path)
    path = run / TAIL / "00000.rows"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    again = RunWriter(run)
    again.go_back()
    assert again.so_far("numbers")["round"].to_pylist() == list(range(4))
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(DataError, match="are not the rows that the checkpoint counts"):
        RunWriter(run).go_back()


def test_many_rows_become_parts_and_the_log_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "_LONGEST_LOG", 1 << 20)
    (tmp_path / "run").mkdir()
    folder = RunWriter(tmp_path / "run")
    big = Recorder()
    big.writer("numbers")(np.ones((60_000, 3), np.int64))
    for rows, parts in ((drained(0, 2), 0), (big.drain(), 1), (drained(2, 2), 1)):
        folder.hold(rows)
        folder.write_checkpoint(Checkpoint(0, {}))
        assert len(list((tmp_path / "run" / "rows").rglob("part-*.parquet"))) == parts
    assert folder.counts["numbers"] == 60_004
    again = RunWriter(tmp_path / "run")
    again.go_back()
    assert again.so_far("numbers").num_rows == 60_004
    assert files(tmp_path / "run") == ["00001.rows"]


def test_a_run_that_has_ended_leaves_none(tmp_path: Path) -> None:
    run, folder = folder_with_two_checkpoints(tmp_path)
    folder.append({})
    drop_checkpoints(folder.path)
    assert [path.name for path in run.iterdir()] == ["rows"]
    assert not before(run / "checkpoint.state").exists()


def test_whoever_reads_sees_the_checkpoint_that_another_wrote_meanwhile(tmp_path: Path) -> None:
    run, folder = folder_with_two_checkpoints(tmp_path)
    reader = RunFolder(run)
    seen = []
    for number in (1, 2, 3):
        found = reader.checkpoint()
        seen.append(found.round)
        folder.write_checkpoint(Checkpoint(number + 1, {}))
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "facts", [b"[]", b"{}", b'{"round": 1, "state": [1], "extents": {}, "log": null}', b"\xff"]
)
def test_a_whole_checkpoint_that_says_other_things_is_named(tmp_path: Path, facts: bytes) -> None:
    """As one of a later version may."""
    run, _ = folder_with_two_checkpoints(tmp_path)
    before(run / CHECKPOINT).unlink()
    (run / CHECKPOINT).write_bytes(
        hashlib.sha256(facts + b"\n").hexdigest().encode() + b"\n" + facts + b"\n"
    )
    with pytest.raises(DataError, match=r"checkpoint\.state: cannot be read"):
        RunFolder(run).checkpoint()
