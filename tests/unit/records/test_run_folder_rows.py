from pathlib import Path
from typing import Any

import pytest

from raydpzv.errors import DataError, InputError, RunError
from raydpzv.records import run_folder, store, write_ahead_log
from raydpzv.records.run_folder import RunFolder, column_rows
from tests.helpers.numbered_rows import after, beside, faults, numbers, releases
from tests.helpers.reopened import reopened


def check(folder: RunFolder, *wanted: int) -> None:
    """These are the rows of the run so far, and none is told of another type."""
    assert numbers(folder.so_far("fault")) == list(wanted)
    assert {name: count for name, count in folder.counts.items() if count} == (
        {"fault": len(wanted)} if wanted else {}
    )


def recorded(path: Path) -> list[int]:
    return numbers(RunFolder.open(path).rows()["fault"])


def test_rows_so_far_are_all_that_were_given_in_their_order(folder: RunFolder) -> None:
    check(folder)
    folder.append(faults(0, 1))
    check(folder, 0, 1)
    folder.hold(faults(2))
    check(folder, 0, 1, 2)
    folder.write_checkpoint(after(1))
    folder.hold(faults(3))
    folder.hold(faults())
    check(folder, 0, 1, 2, 3)
    folder.append(faults(4))
    check(folder, 0, 1, 2, 3, 4)
    assert recorded(folder.path) == [0, 1, 2, 3, 4]
    assert numbers(folder.so_far("release")) == []


def test_the_record_of_a_run_without_an_end_has_its_checkpoints_rows_each_once(
    folder: RunFolder,
) -> None:
    folder.append(faults(0))
    folder.hold(faults(1))
    assert recorded(folder.path) == [0]
    folder.write_checkpoint(after(1))
    assert recorded(folder.path) == [0, 1]
    folder.hold(faults(2))
    folder.write_checkpoint(after(2))
    folder.append(releases(0))
    assert recorded(folder.path) == [0, 1, 2]  # in parts, which the checkpoint does not know of yet
    folder.hold(faults(3))
    folder.write_checkpoint(after(3))
    assert recorded(folder.path) == [0, 1, 2, 3]
    folder.append(faults(4))
    folder.write_summary({"status": "stopped"})
    for name in ("checkpoint.state", "checkpoint.before.state"):
        (folder.path / name).write_bytes(b"damage")
    assert recorded(folder.path) == [0, 1, 2, 3, 4], (
        "all rows of a run that has a summary are in parts"
    )
    (folder.path / "summary.json").unlink()
    with pytest.raises(DataError, match=r"checkpoint\.state: cannot be read"):
        recorded(folder.path)


def test_rows_that_become_parts_while_they_are_read_are_those_of_one_moment(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.append(faults(0))
    folder.hold(faults(1))
    folder.write_checkpoint(after(1))
    steps = iter((1, 2))

    def between(read: Any) -> Any:
        def reading(*arguments: Any) -> Any:
            found = read(*arguments)
            if next(steps) == 1:  # after the first of two reads, in whichever order they come
                folder.append(faults(2))
                folder.hold(releases(0))
                folder.write_checkpoint(after(2))
            return found

        return reading

    for place, name in ((run_folder, "read_all"), (RunFolder, "found_checkpoint")):
        monkeypatch.setattr(place, name, between(getattr(place, name)))
    found = RunFolder.open(folder.path).rows()
    assert (numbers(found["fault"]), numbers(found["release"])) in (([0, 1], []), ([0, 1, 2], []))


def test_what_is_kept_of_the_last_rows_is_what_the_parts_hold(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written() -> list[int]:
        found = folder.written()
        for name, table in RunFolder.open(folder.path).rows().items():
            assert found[name].equals(table), name
        return numbers(found["fault"])

    folder.append(faults(0))
    assert written() == [0]
    folder.hold(faults(1))
    folder.write_checkpoint(after(1))
    folder.append(faults(2), keep=True)
    folder.append(releases(7), keep=True)
    folder.append(faults(3), keep=True)
    assert written() == [0, 1, 2, 3]
    kept = (folder.path / "rows" / "fault" / "part-00001.parquet").read_bytes()
    (folder.path / "rows" / "fault" / "part-00001.parquet").write_bytes(b"damage")
    assert numbers(folder.written()["fault"]) == [0, 1, 2, 3], "it is not read again"
    (folder.path / "rows" / "fault" / "part-00001.parquet").write_bytes(kept)
    with monkeypatch.context() as patch:
        patch.setattr(write_ahead_log, "append_rows", full)
        with pytest.raises(RunError, match="No space left"):
            folder.append(faults(4), keep=True)
    assert written() == [0, 1, 2, 3], "what could not be written is in no summary"
    folder.append(faults(5), keep=True)
    assert written() == [0, 1, 2, 3, 4, 5], "unless there was room later on"
    folder.append(faults(6))
    assert written() == [0, 1, 2, 3, 4, 5, 6]
    folder.append(faults(8), keep=True)
    folder.go_back()
    assert numbers(folder.written()["fault"]) == [0]


def full(*given: object) -> None:
    raise OSError(28, "No space left on device")


def test_types_that_a_full_disk_kept_from_their_parts_come_with_the_next_rows_and_no_row_twice(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.append(faults(0))
    folder.hold(beside(releases(1), faults(1)))
    folder.write_checkpoint(after(1))
    with monkeypatch.context() as patch:
        encoded = store._encoded
        patch.setattr(
            store,
            "_encoded",
            lambda table: full() if "message" in table.schema.names else encoded(table),
        )
        for number in (2, 3):
            with pytest.raises(RunError, match="No space left"):
                folder.append(beside(releases(number), faults(number)))
    assert folder.counts["fault"] == 4
    assert recorded(folder.path) == [0, 1], "as the checkpoint has it"
    folder.append(faults(4))
    assert recorded(folder.path) == [0, 1, 2, 3, 4]
    assert numbers(folder.so_far("fault")) == [0, 1, 2, 3, 4]
    assert folder.so_far("release")["round"].to_pylist() == [1, 2, 3]
    folder.go_back()
    assert numbers(folder.so_far("fault")) == [0, 1]
    assert folder.so_far("release")["round"].to_pylist() == [1]


def test_columns_are_those_of_parts_and_of_what_the_checkpoint_alone_has(folder: RunFolder) -> None:
    def columns() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = column_rows(
            RunFolder.open(folder.path), "fault", ["message"]
        ).to_pydict()
        return found

    folder.append(faults(2))
    assert columns() == {"message": ["number 2"]}
    folder.hold(faults(3))
    folder.write_checkpoint(after(1))
    assert {name: sorted(found) for name, found in columns().items()} == {
        "message": ["number 2", "number 3"]
    }


@pytest.mark.parametrize("again", [False, True], ids=["the writer", "another process"])
def test_going_back_drops_what_came_after_the_checkpoint_however_it_was_given(
    folder: RunFolder, *, again: bool
) -> None:
    def back(folder: RunFolder) -> RunFolder:
        if again:
            folder.__exit__()
            return reopened(folder.path)
        folder.go_back()
        return folder

    folder.append(faults(0))
    folder.hold(faults(1))
    folder.hold(faults(2))
    folder.write_checkpoint(after(1))
    check(back(folder), 0, 1, 2)
    folder = back(folder)
    folder.hold(faults(7))
    folder = back(folder)
    check(folder, 0, 1, 2)
    folder.append(faults(8))
    folder.append(faults(9))
    folder = back(folder)
    check(folder, 0, 1, 2)
    folder.hold(faults(3))
    folder.write_checkpoint(after(2))
    folder.append(faults(9))
    folder = back(folder)
    check(folder, 0, 1, 2, 3)
    folder.append(faults(4))
    check(folder, 0, 1, 2, 3, 4)
    assert recorded(folder.path) == [0, 1, 2, 3, 4]
    found = folder.checkpoint()
    assert found.round == 2
    folder.__exit__()


def test_checkpoints_after_going_back_hold_no_row_twice_and_none_that_was_dropped(
    folder: RunFolder,
) -> None:
    """However often, and where nothing became a part meanwhile."""
    for number in range(4):
        folder.hold(faults(number))
        folder.write_checkpoint(after(number + 1))
        folder.hold(faults(9))
        folder.go_back()
        check(folder, *range(number + 1))
    folder.__exit__()
    with reopened(folder.path) as opened:
        check(opened, 0, 1, 2, 3)
        assert numbers(column_rows(opened, "fault", ["time", "kind"])) == [0, 1, 2, 3]
        opened.append(faults())
        assert recorded(folder.path) == [0, 1, 2, 3]


def test_the_checkpoint_before_the_last_keeps_its_rows_also_where_a_run_went_back_between_them(
    folder: RunFolder,
) -> None:
    folder.hold(faults(0))
    folder.write_checkpoint(after(1))
    folder.go_back()
    folder.hold(faults(1))
    folder.write_checkpoint(after(2))
    folder.__exit__()
    (folder.path / "checkpoint.state").write_bytes(b"damaged")
    with reopened(folder.path) as opened:
        found = opened.checkpoint()
        assert found.round == 1
        check(opened, 0)


def test_going_back_without_a_checkpoint_drops_all(folder: RunFolder) -> None:
    folder.append(faults(0, 1))
    folder.hold(faults(2))
    folder.go_back()
    check(folder)
    folder.append(faults(5))
    assert recorded(folder.path) == [5]


@pytest.mark.parametrize(("made", "holds"), [(0, True), (3, True), (4, False)])
def test_a_run_that_went_back_has_as_many_releases_to_make_up_for_as_its_ledger_has(
    folder: RunFolder, made: int, *, holds: bool
) -> None:
    """One that did not has them all, whatever its rows say."""
    assert folder.holds(9)
    folder.append(releases(0, 1))
    folder.write_checkpoint(after(1))
    folder.append(releases(2, 3))
    folder.go_back()
    folder.append(releases(2))
    assert folder.holds(made) == holds
    assert numbers(RunFolder.open(folder.path).rows()["release"]) == [0, 1, 2], "none is dropped"


def test_a_folder_is_written_by_one_process_and_let_go_of_where_it_is_damaged(
    folder: RunFolder,
) -> None:
    with pytest.raises(InputError, match="another process is writing this run"):
        reopened(folder.path)
    folder.append(faults(0, 1))
    folder.write_checkpoint(after(1))
    folder.__exit__()
    (part,) = folder.path.glob("rows/fault/*")
    whole = part.read_bytes()
    part.unlink()
    with pytest.raises(DataError, match="is missing"):
        reopened(folder.path)
    part.write_bytes(whole)
    with reopened(folder.path) as opened:
        check(opened, 0, 1)
    with pytest.raises(DataError, match=r"no scenario\.toml in it"):
        reopened(folder.path / "rows")
    with reopened(folder.path, ["data.file=elsewhere.csv"]) as opened:
        assert opened.settings()["data"]["file"] == "elsewhere.csv"
