import hashlib

import pytest

from raydpzv.errors import DataError, InputError
from raydpzv.storage.download import copy_folder, find_copy, local_copy, unused_storage
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import OBJECTS, latest
from raydpzv.storage.link import link_of
from raydpzv.storage.run_copy import copied


@pytest.fixture
def uri(tmp_path):
    """A storage with a folder."""
    found = (tmp_path / "storage").as_uri()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "scenario.toml").write_text("a = 1\n")
    with copied(tmp_path / "run", open_storage(found), fresh_noise=False):
        pass
    return found


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("s3://bucket/runs/digits", "runs/digits"),
        ("s3://bucket/runs/digits/", "runs/digits"),
        ("file:///a%20b/c d", "runs/c d"),
        ("s3://bucket", "runs/bucket"),
    ],
)
def test_a_copy_lies_below_runs_under_its_name(uri, folder):
    assert str(copy_folder(uri)) == folder


def test_a_copy_is_downloaded_once(uri, tmp_path):
    down = local_copy(uri, tmp_path / "down")
    (down / "mine").write_text("")
    assert find_copy(f"{uri}/", down)
    assert (down / "mine").exists()
    assert (down / "rows").is_dir()
    assert link_of(down).writer == ""
    (tmp_path / "empty").mkdir()
    assert local_copy(uri, tmp_path / "empty") == tmp_path / "empty"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_wrote_the_storage_is_taken_as_it_is(uri, tmp_path):
    assert local_copy(uri, tmp_path / "run") == tmp_path / "run"


def test_no_file_is_replaced(uri, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(InputError, match="full: holds something else than a copy of file:"):
        local_copy(uri, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["x"]


def test_an_empty_storage_holds_no_run(tmp_path):
    uri = (tmp_path / "nothing").as_uri()
    assert not find_copy(uri, tmp_path / "down")
    with pytest.raises(InputError, match="holds no run; start one with: raydpzv run SCENARIO"):
        local_copy(uri, tmp_path / "down")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "scenario.toml").write_text("")
    with pytest.raises(InputError, match="other: holds something else than a copy"):
        find_copy(uri, tmp_path / "other")


@pytest.mark.parametrize("content", [None, b"other"])
def test_a_content_that_is_gone_or_damaged_leaves_no_folder(uri, tmp_path, content):
    place = open_storage(uri)
    name = f"{OBJECTS}/{latest(place).files['scenario.toml'].sha256}"
    place.write(name, content) if content else place.delete(name)
    with pytest.raises(DataError, match=r"scenario\.toml is missing or damaged"):
        local_copy(uri, tmp_path / "down")
    assert not list(tmp_path.glob("*down*"))


def test_a_disk_that_is_full_leaves_no_folder(uri, tmp_path, monkeypatch):
    def full(*given, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("raydpzv.storage.download.write_atomically", full)
    with pytest.raises(InputError, match=r"cannot download file:.*No space left"):
        local_copy(uri, tmp_path / "down")
    assert not list(tmp_path.glob("*down*"))


@pytest.mark.parametrize(("out", "there"), [("run", "run"), ("run", "run/s"), ("run/here", "run")])
def test_a_storage_and_its_folder_lie_apart(tmp_path, out, there):
    with pytest.raises(InputError, match="or has it in itself; choose another"):
        unused_storage((tmp_path / there).as_uri(), tmp_path / out)
    assert unused_storage((tmp_path / "runs").as_uri(), tmp_path / "run")


def test_a_place_that_holds_anything_is_not_unused(uri, tmp_path):
    with pytest.raises(InputError, match="holds a run already; choose another --storage, or"):
        unused_storage(uri, tmp_path / "other")
    (tmp_path / "mine").mkdir()
    for name in ("a", "b", "c", "d"):
        (tmp_path / "mine" / name).write_text("")
    with pytest.raises(InputError, match=r"holds other things \(a, b, c and 1 more\)"):
        unused_storage((tmp_path / "mine").as_uri(), tmp_path / "other")
    left = open_storage((tmp_path / "left").as_uri())
    left.write(f"{OBJECTS}/{hashlib.sha256(b'').hexdigest()}", b"")  # of a kill
    assert unused_storage(left.uri, tmp_path / "other")
