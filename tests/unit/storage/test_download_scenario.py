"""The scenario of a storage's run, read where it is."""

from __future__ import annotations

import pytest

import scenarios
from raydpzv.config.toml import as_toml
from raydpzv.errors import DataError, InputError
from raydpzv.storage.commits import Commit, StoredFile
from raydpzv.storage.download import begun, stored_scenario
from raydpzv.storage.filesystem import open_place
from raydpzv.storage.uploader import FreshNoise


@pytest.fixture
def uri(tmp_path):
    return (tmp_path / "storage").as_uri()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text('{"note": "of old"}')
    return tmp_path / "run"


def bring(uri, folder, kind="run"):
    with begun(uri, kind) as mirror, mirror.of(folder, FreshNoise()):
        pass


def test_it_is_what_the_run_was_begun_with(uri, folder, tmp_path):
    assert stored_scenario(uri) is None
    spec = scenarios.load("digits_dpzv", ["method.lr=0.125"])
    (folder / "scenario.toml").write_text(as_toml(spec))
    bring(uri, folder)
    found = stored_scenario(uri)
    assert (found.method.lr, found.note) == (0.125, "of old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "storage"]


def test_of_a_search_there_is_none(uri, folder):
    bring(uri, folder, "search")
    with pytest.raises(InputError, match="storage: holds a search; choose another --storage"):
        stored_scenario(uri)


def test_what_cannot_be_read_is_named_by_its_place_in_the_storage(uri, folder):
    (folder / "scenario.toml").write_text("[method")
    bring(uri, folder)
    with pytest.raises(DataError, match=r"^file://.*/storage/scenario\.toml: is damaged"):
        stored_scenario(uri)


def test_an_object_that_somebody_deleted_is_said(uri):
    place = open_place(uri)
    gone = {
        name: StoredFile(1, "00", ((f"by-00000001/{name}", 1),))
        for name in ("scenario.toml", "environment.json")
    }
    commit = Commit(1, 0, "run", "somebody", gone)
    place.write(commit.name, commit.encoded())
    with pytest.raises(DataError, match=r"storage: objects of scenario\.toml are missing; bring them back"):
        stored_scenario(uri)
