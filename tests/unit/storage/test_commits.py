"""Commits: the newest that is whole counts."""

from __future__ import annotations

import hashlib

import pytest

from raydpzv.errors import DataError
from raydpzv.storage.commits import Commit, StoredFile, content, latest
from tests.helpers.storages import KeptPlace


@pytest.fixture
def place(tmp_path):
    return KeptPlace(tmp_path / "storage")


def commit(epoch, number, **facts):
    files = {"a/b": StoredFile(2, "ab", (("by-00000001/a/b", 1), ("by-00000001/a/b~1", 1)))}
    return Commit(epoch, number, "run", "me", files, **facts)


def test_a_commit_is_read_as_it_was_written(place):
    assert latest(place) is None
    written = commit(1, 0, noise="announced", covered=3, announced=9, over=True)
    place.write(written.name, written.encoded())
    assert latest(place) == written
    assert written.objects == {"by-00000001/a/b", "by-00000001/a/b~1"}


def test_a_later_epoch_counts_before_more_commits_of_an_older_one(place):
    for each in (commit(2, 0), commit(1, 99), commit(1, 7)):
        place.write(each.name, each.encoded())
    assert latest(place) == commit(2, 0)


@pytest.mark.parametrize("left", [0, 1, 30, -1, -66])
def test_one_that_was_cut_off_does_not_count(place, left):
    whole, torn = commit(1, 0), commit(1, 1)
    place.write(whole.name, whole.encoded())
    place.write(torn.name, torn.encoded()[:left])
    assert latest(place) == (whole if left != -1 else torn)  # a line's end may be missing


def test_where_all_are_damaged_it_says_so(place):
    place.write(commit(1, 0).name, b"{}")
    with pytest.raises(DataError, match="all its commits are damaged"):
        latest(place)


def test_the_format_of_a_later_version_is_named(place):
    written = commit(1, 0)
    text = written.encoded().split(b"\n")[0].replace(b'"format":1', b'"format":2')
    place.write(written.name, text + b"\n" + hashlib.sha256(text).hexdigest().encode())
    with pytest.raises(DataError, match="has format 2, this program reads 1"):
        latest(place)


def test_content_is_checked_and_what_has_gone_is_told_from_damage(place):
    file = StoredFile(2, hashlib.sha256(b"xy").hexdigest(), (("by-1/f", 1), ("by-1/f~1", 1)))
    place.write("by-1/f", b"x")
    assert content(place, "f", file) is None
    place.write("by-1/f~1", b"y")
    assert content(place, "f", file) == b"xy"
    place.write("by-1/f~1", b"z")
    with pytest.raises(DataError, match="f is damaged there"):
        content(place, "f", file)


def test_commits_that_go_while_they_are_read_have_their_successors_looked_for(place):
    """A writer that commits meanwhile deletes what was listed."""
    first, second = commit(1, 0), commit(1, 1)
    place.write(first.name, first.encoded())
    read = place.read

    def overtaken(name):
        if name == first.name:
            place.write(second.name, second.encoded())
            place.delete(first.name)
        return read(name)

    place.read = overtaken
    assert latest(place) == second
