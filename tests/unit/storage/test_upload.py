"""What is brought of a folder: counted, and there whatever comes and goes in it."""

from __future__ import annotations

import pytest

from raydpzv.errors import RunError
from raydpzv.storage import upload
from raydpzv.storage.commits import NO_NOISE, content, latest
from raydpzv.storage.lease import Lease
from raydpzv.storage.snapshot import Moving
from raydpzv.storage.upload import Announced, Uploader, facts
from tests.helpers.storages import KeptPlace


@pytest.fixture
def place(tmp_path):
    return KeptPlace(tmp_path / "storage")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_bytes(b"first")
    (tmp_path / "run" / "b").write_bytes(b"of one that goes")
    return tmp_path / "run"


def uploader(place, folder):
    return Uploader(place, Lease.take(place, 30.0), folder, "run")


def test_what_was_brought_is_counted(place, folder):
    found = uploader(place, folder)
    before = len(place.acts)
    for text in (b"first", b"first and more"):
        (folder / "a").write_bytes(text)
        found.commit(Announced(NO_NOISE))
    written = [act.data for act in place.acts[before:] if act.data is not None]
    told = facts(found.traffic, place.uri)
    assert told["commits"] == sum(act.name.startswith("commits/") for act in place.acts) == 2
    assert (told["objects"], told["bytes"]) == (len(written), sum(map(len, written)))


def test_a_file_that_goes_and_comes_again_is_brought_again(place, folder):
    """What was brought of it first is deleted, once no commit that is kept names it."""
    found = uploader(place, folder)
    found.commit(Announced(NO_NOISE))
    (folder / "b").unlink()
    for _ in range(3):
        found.commit(Announced(NO_NOISE))
    assert "by-00000001/b" not in place.below("")
    (folder / "b").write_bytes(b"of one that goes")
    found.commit(Announced(NO_NOISE))
    stored = latest(place).files
    assert [content(place, name, stored[name]) for name in ("a", "b")] == [b"first", b"of one that goes"]


def test_a_folder_that_changes_all_the_time_is_named(place, folder, monkeypatch):
    def moving(root, unchanged):
        raise Moving("ledger")
        yield

    monkeypatch.setattr(upload, "snapshot", moving)
    with pytest.raises(RunError, match=r"run: cannot be brought to file://.*: ledger changes all the time"):
        uploader(place, folder).commit(Announced(NO_NOISE))


def test_what_has_grown_often_is_brought_in_one_piece_again(place, folder, monkeypatch):
    monkeypatch.setattr(upload, "_MOST_PIECES", 3)
    found, pieces = uploader(place, folder), []
    for n in range(5):
        (folder / "a").write_bytes(b"first" + b"+" * n)
        found.commit(Announced(NO_NOISE))
        pieces.append(len(latest(place).files["a"].pieces))
    assert pieces == [1, 2, 3, 1, 2]
    assert content(place, "a", latest(place).files["a"]) == b"first++++"
