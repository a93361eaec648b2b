"""What is kept of a data section is of the bytes that its files have, whatever path, size and time
they have.
"""

import os
from pathlib import Path

import pytest

from raydpzv.data.read_once import ReadOnce
from raydpzv.settings.sections_data import DataSection

PATHS = {"csv": "file", "mnist": "folder"}


def section(source: str, path: Path) -> DataSection:
    target = {"target": "label"} if source == "csv" else {}
    return DataSection(source=source, **{PATHS[source]: str(path)}, **target)


def rewritten(path: Path) -> None:
    """Other content of the same size, in the same file, with the same times."""
    before = path.stat()
    path.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )


def replaced(path: Path) -> None:
    (path.parent.parent / "new").write_bytes(bytes(reversed(path.read_bytes())))
    os.replace(path.parent.parent / "new", path)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def linked(path: Path) -> None:
    (path.parent.parent / "other").write_bytes(bytes(reversed(path.read_bytes())))
    path.unlink()
    path.symlink_to(path.parent.parent / "other")


@pytest.mark.parametrize("change", [rewritten, replaced, longer, linked])
@pytest.mark.parametrize("source", PATHS)
def test_a_file_with_other_bytes_is_read_again(tmp_path, source, change):
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    file = folder / ("below/own.csv" if source == "mnist" else "own.csv")
    file.write_bytes(b"first")
    data = section(source, folder if source == "mnist" else file)
    once, read = ReadOnce(2), list[bytes]()

    def content(*given: object) -> bytes:
        read.append(file.read_bytes())
        return read[-1]

    assert [once.of(data, content, 1) for _ in range(3)] == [b"first"] * 3
    assert len(read) == 1, "a control: it is kept"
    change(file)
    assert once.of(data, content, 1) == file.read_bytes() != b"first"


def test_links_to_folders_are_followed(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows").write_text(name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "one")
    once, data = ReadOnce(2), section("mnist", tmp_path / "data")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")

    def content() -> str:
        return (tmp_path / "data" / "train" / "rows").read_text()

    assert once.of(data, content) == "one"
    (tmp_path / "data" / "train").unlink()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "two")
    assert once.of(data, content) == "two"


def test_a_relative_path_is_of_the_folder_that_one_is_in(tmp_path, monkeypatch):
    once, data = ReadOnce(2), DataSection(source="csv", file="own.csv", target="label")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.csv").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert once.of(data, Path("own.csv").read_text) == name


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("one")
    once, data = ReadOnce(2), section("csv", file)

    def content(*given: object) -> str:
        found = file.read_text()
        file.write_text("two")
        return found

    assert once.of(data, content, 1) == "one"
    file.write_text("one")
    assert once.of(data, lambda *given: "read again", 1) == "read again"


def test_a_users_own_source_is_called_each_time():
    once, data = ReadOnce(2), DataSection(source="mine:rows")
    answers = iter([1, 2])
    assert [once.of(data, lambda: next(answers)) for _ in range(2)] == [1, 2]


def test_only_the_last_few_are_kept(tmp_path):
    once, data = ReadOnce(2), DataSection(source="digits")
    read = []
    for given in (1, 2, 3, 3, 1):
        once.of(data, read.append, given)
    assert read == [1, 2, 3, 1]
