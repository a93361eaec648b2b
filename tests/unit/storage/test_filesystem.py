import os
import stat

import pyarrow as pa
import pyarrow.fs
import pytest

from raydpzv.errors import InputError
from raydpzv.storage.filesystem import StorageFolder, is_uri, open_storage, reason
from tests.helpers.loading import refusal


def mock():
    from pyarrow._fs import _MockFileSystem  # in memory; the one of pyarrow's own tests

    return _MockFileSystem()


@pytest.fixture(params=["local", "sub_tree", "mock"])
def place(request, tmp_path):
    systems = {
        "local": lambda: (pyarrow.fs.LocalFileSystem(), str(tmp_path / "a folder")),
        "sub_tree": lambda: (
            pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem()),
            "a/b",
        ),
        "mock": lambda: (mock(), "bucket/folder"),
    }
    return StorageFolder(*systems[request.param](), "here")


def test_files_are_written_read_listed_and_deleted(place, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert place.read("x") is None
    assert place.names("of") == place.names() == []
    place.write("of/x", b"1")
    place.write("of/z", b"22")
    place.write("of/x", b"333")
    assert (place.read("of/x"), place.read("of/z")) == (b"333", b"22")
    assert place.names("of") == ["x", "z"]
    assert place.names() == ["of"]
    for _ in range(2):
        place.delete("of/x")
    assert place.read("of/x") is None
    assert not list((tmp_path / "here").iterdir()), "what is elsewhere makes no folders here"


def test_where_on_this_disk_it_lies(tmp_path):
    assert (
        open_storage((tmp_path / "storage").as_uri()).on_this_disk
        == (tmp_path / "storage").resolve()
    )
    assert StorageFolder(mock(), "bucket/folder", "here").on_this_disk is None


def test_what_went_wrong_is_said_in_a_line():
    assert reason(OSError(28, "No space left on device", "x")) == "No space left on device"
    assert reason(ValueError("of\ntwo lines")) == "of two lines"
    assert reason(ValueError()) == "ValueError"


def test_a_folder_that_is_made_on_a_disk_is_its_owners_alone_and_files_keep_their_mode(tmp_path):
    place, folder = (
        open_storage((tmp_path / "new one" / "storage").as_uri()),
        tmp_path / "new one" / "storage",
    )
    place.write("a/b", b"")
    place.write("a/c", b"", 0o640)
    for path, mode in {".": 0o700, "a": 0o700, "a/b": 0o600, "a/c": 0o640}.items():
        assert stat.S_IMODE((folder / path).stat().st_mode) == mode


@pytest.mark.parametrize("name", ["a b", "ä", "plain"])
def test_uris_have_spaces_written_either_way(tmp_path, name):
    for uri in ((tmp_path / name).as_uri(), f"file://{tmp_path}/{name}/"):
        place = open_storage(uri)
        place.write("x/y", uri.encode())
        assert (tmp_path / name / "x" / "y").read_bytes() == uri.encode()
        assert place.uri == uri.rstrip("/")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("ftp://host/folder", 'pyarrow knows no "ftp"; known: file, s3, gs'),
        ("/a/path", "wanted the URI of a folder"),
        ("runs", "wanted the URI of a folder"),
        ("s3:bucket", "wanted the URI of a folder"),
        ("://bucket", "wanted the URI of a folder"),
        ("s3://bucket/a/../b", r"wanted the URI of a folder, without \.\."),
        ("file:///a/%2E%2E/b", r"wanted the URI of a folder, without \.\."),
        ("s3://key:secret@bucket/folder", "does not belong in a URI"),
        ("file:///%zz", "cannot be opened: (?!pyarrow knows no)"),
        ("file:///", "is the root of its file system"),
    ],
)
def test_what_names_no_storage_is_refused_in_one_line(uri, said):
    with refusal(InputError, said) as caught:
        open_storage(uri)
    assert "secret@" not in str(caught.value)


def test_errors_of_pyarrows_own_are_those_of_files(tmp_path):
    class Odd:
        type_name = "odd"

        def open_input_stream(self, path):
            raise pa.ArrowInvalid("no such endpoint")

    with pytest.raises(OSError, match="no such endpoint"):
        StorageFolder(Odd(), "a", "odd://a").read("x")


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_not_to_be_written_raises(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(OSError, match="ermission"):
        open_storage((tmp_path / "closed" / "storage").as_uri()).write("x/y", b"")


def test_paths_are_no_uris():
    assert is_uri("s3://a/b")
    assert not is_uri("runs/a")


def test_on_a_disk_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    place = open_storage((tmp_path / "storage").as_uri())
    place.write("commits/x", b"whole")

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        for name in ("commits/x", "commits/y"):
            with pytest.raises(KeyboardInterrupt):
                place.write(name, b"half")
    assert place.read("commits/x") == b"whole"
    assert place.read("commits/y") is None


def test_on_a_disk_a_file_is_synced_before_it_takes_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, n=name, r=real: (calls.append(n), r(*given)))
    open_storage(tmp_path.as_uri()).write("a/b", b"1")
    assert calls == ["fsync", "replace", "fsync"], "the file, its name, the folder"
