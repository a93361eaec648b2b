import hashlib
import json
import re

import pyarrow.fs
import pytest

from raydpzv.errors import DataError
from raydpzv.storage.filesystem import StorageFolder, open_storage
from raydpzv.storage.index import INDEXES, Index, StoredFile, latest

SHA = "a" * 64


def index(number=1, writer="me", **files):
    named = {path: StoredFile(SHA, 0o600) for path in files or {"x": 0}}
    return Index(number, writer, named, fresh_noise=False, over=False)


@pytest.fixture
def place(tmp_path):
    return open_storage((tmp_path / "storage").as_uri())


def test_an_index_is_read_as_it_was_written(place):
    assert latest(place) is None
    written = Index(7, "me", {"rows/a b": StoredFile(SHA, 0o640)}, fresh_noise=True, over=True)
    place.write(written.name, written.encoded())
    assert latest(place) == written


def test_the_newest_complete_one_counts(place):
    for number in (9, 10):
        place.write(index(number).name, index(number).encoded())
    torn = index(11)
    place.write(torn.name, torn.encoded()[:-30])
    place.write(f"{INDEXES}/.00000012-me.json.77", index(12).encoded())
    assert latest(place) == index(10)


def test_an_index_that_is_damaged_or_of_another_version_is_no_empty_storage(place):
    place.write(index().name, b"torn")
    with pytest.raises(DataError, match="its index is damaged; restore it"):
        latest(place)
    signed(place, {"format": 3})
    with pytest.raises(DataError, match="its index is of another version"):
        latest(place)


def signed(place, facts):
    text = json.dumps(facts).encode()
    place.write(index().name, text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n")


def facts(path="x", **changed):
    file = {"sha256": SHA, "mode": 0o600} | changed
    return {"number": 1, "writer": "me", "files": {path: file}, "fresh_noise": False, "over": True}


PATHS = ["../x", "/etc/x", "a/../../x", "a/./x", "a//x", "", ".", "..", "a/", "x\0y", "a\n"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leaves_the_folder_is_refused(place, path):
    signed(place, facts(path))
    with pytest.raises(
        DataError, match=f"names {re.escape(repr(path))}, which is no file of a run"
    ):
        latest(place)


@pytest.mark.parametrize("changed", [{"sha256": "../../x"}, {"sha256": "A" * 64}, {"mode": 0o4755}])
def test_an_object_or_a_mode_that_no_copy_writes_is_refused(place, changed):
    signed(place, facts(**changed))
    with pytest.raises(DataError, match="which is no file of a run's folder"):
        latest(place)


def test_ordinary_paths_are_taken(place):
    for path in ("x", "rows/release/part-00001.parquet", "a b/ä..", ".hidden/..x"):
        signed(place, facts(path))
        assert set(latest(place).files) == {path}


def test_a_reader_that_lists_an_index_deleted_meanwhile_reads_the_next(tmp_path):
    class Moving(StorageFolder):
        def read(self, name):
            if name == index(1).name:
                self.write(index(2).name, index(2).encoded())
                self.delete(name)
            return super().read(name)

    place = Moving(pyarrow.fs.LocalFileSystem(), str(tmp_path), tmp_path.as_uri())
    place.write(index(1).name, index(1).encoded())
    assert latest(place) == index(2)
