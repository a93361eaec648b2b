import os
from pathlib import Path

import pytest
from filelock import FileLock

from raydpzv.errors import InputError
from raydpzv.files import (
    LOCK,
    PRIVATE,
    appended,
    inner_folder,
    is_written,
    private_folder,
    refuse_links,
    write_atomically,
)


def test_a_folder_is_written_as_long_as_somebody_has_its_lock(tmp_path: Path) -> None:
    assert is_written(tmp_path) is False
    assert not (tmp_path / LOCK).exists(), "who asks leaves nothing"
    with FileLock(tmp_path / LOCK):
        assert is_written(tmp_path) is True
    assert is_written(tmp_path) is False


def test_of_a_folder_that_cannot_be_locked_nobody_can_tell(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    assert is_written(tmp_path) is None


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    victim, name = tmp_path / "victim", tmp_path / "folder" / "report.html"
    name.parent.mkdir()
    victim.write_text("mine")
    for place in (name, name.with_name(f".{name.name}.{os.getpid()}")):
        place.symlink_to(victim)
    write_atomically(name, b"theirs")
    assert (victim.read_text(), name.read_text()) == ("mine", "theirs")
    assert not name.is_symlink()
    assert [path.name for path in name.parent.iterdir()] == ["report.html"]


def test_a_scratch_file_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f".page.{os.getpid()}").write_text("half a page")
    write_atomically(tmp_path / "page", b"whole", mode=PRIVATE)
    assert (tmp_path / "page").read_bytes() == b"whole"
    assert (tmp_path / "page").stat().st_mode & 0o777 == 0o600


def test_a_log_is_appended_to_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        appended(tmp_path / "log")
    with appended(tmp_path / "other") as file:
        file.write("a line")
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o600


def test_a_lock_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "victim")
    assert is_written(tmp_path) is None
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("name", ["rows", "rows/model", "rows/model/part-00000.parquet", "gone"])
def test_a_folder_with_a_link_in_it_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "folder"
    refuse_links(folder)  # there is none
    (folder / name).parent.mkdir(parents=True)
    refuse_links(folder)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{name}: is a symbolic link"):
        refuse_links(folder)
    with pytest.raises(InputError, match=f"{name}: is a symbolic link"):
        inner_folder(folder / name)
    (tmp_path / "shortcut").symlink_to(folder)
    with pytest.raises(InputError, match="is a symbolic link"):
        refuse_links(tmp_path / "shortcut")
    (folder / name).unlink()
    refuse_links(tmp_path / "shortcut")  # a link to the folder is the user's own


def test_a_folder_of_runs_is_its_owners(tmp_path: Path) -> None:
    for name in ("new/run", "empty"):
        path = tmp_path / name
        if name == "empty":
            path.mkdir(mode=0o755)
        private_folder(path)
        assert path.stat().st_mode & 0o777 == 0o700
    (tmp_path / "full").mkdir(mode=0o755)
    (tmp_path / "full" / "file").touch()
    private_folder(tmp_path / "full")
    assert (tmp_path / "full").stat().st_mode & 0o777 == 0o755, "others may work in it"
