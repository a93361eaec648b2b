"""Manifests: the newest complete one counts, and says whether another machine may resume from it."""

from __future__ import annotations

import hashlib
import json

import pytest

from raydpzv.errors import DataError, NotRecomputable
from raydpzv.storage.manifest import (
    FRESH_NOISE,
    NO_NOISE,
    Manifest,
    StoredFile,
    content,
    latest,
    require_repeatable,
)
from tests.helpers.storages import RecordedStorage


@pytest.fixture
def storage(tmp_path):
    return RecordedStorage(tmp_path / "storage")


def manifest(epoch, number, **facts):
    files = {"a/b": StoredFile(2, "ab", (("by-00000001/a/b", 1), ("by-00000001/a/b~1", 1)))}
    return Manifest(epoch, number, "run", "me", files, **facts)


def signed(facts):
    text = json.dumps(facts).encode()
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode()


def test_a_manifest_is_read_as_it_was_written(storage):
    assert latest(storage) is None
    written = manifest(1, 0, noise=FRESH_NOISE, over=True)
    storage.write(written.name, written.encoded())
    assert latest(storage) == written
    assert written.objects == {"by-00000001/a/b", "by-00000001/a/b~1"}


def test_a_later_epoch_counts_before_more_manifests_of_an_older_one(storage):
    for each in (manifest(2, 0), manifest(1, 99), manifest(1, 7)):
        storage.write(each.name, each.encoded())
    assert latest(storage) == manifest(2, 0)


@pytest.mark.parametrize("left", [0, 1, 30, -1, -66])
def test_a_torn_manifest_does_not_count(storage, left):
    whole, torn = manifest(1, 0), manifest(1, 1)
    storage.write(whole.name, whole.encoded())
    storage.write(torn.name, torn.encoded()[:left])
    assert latest(storage) == (whole if left != -1 else torn)  # the line's end may be missing


def test_a_storage_whose_manifests_are_all_damaged_says_so(storage):
    storage.write(manifest(1, 0).name, b"{}")
    with pytest.raises(DataError, match="all its manifests are damaged"):
        latest(storage)


def test_another_format_is_named(storage):
    written = manifest(1, 0)
    facts = json.loads(written.encoded().split(b"\n")[0])
    storage.write(written.name, signed(facts | {"format": 2}))
    with pytest.raises(DataError, match="has format 2, this program reads 1"):
        latest(storage)


def test_content_is_checked_and_a_missing_object_is_told_from_damage(storage):
    file = StoredFile(2, hashlib.sha256(b"xy").hexdigest(), (("by-1/f", 1), ("by-1/f~1", 1)))
    storage.write("by-1/f", b"x")
    assert content(storage, "f", file) is None
    storage.write("by-1/f~1", b"y")
    assert content(storage, "f", file) == b"xy"
    storage.write("by-1/f~1", b"z")
    with pytest.raises(DataError, match="f is damaged"):
        content(storage, "f", file)


def test_manifests_deleted_while_they_are_read_have_their_successors_looked_for(storage):
    first, second = manifest(1, 0), manifest(1, 1)
    storage.write(first.name, first.encoded())
    read = storage.read

    def overtaken(name):
        if name == first.name:
            storage.write(second.name, second.encoded())
            storage.delete(first.name)
        return read(name)

    storage.read = overtaken
    assert latest(storage) == second


@pytest.mark.parametrize(
    ("noise", "over", "newer", "refused"),
    [
        (NO_NOISE, False, False, False),
        (NO_NOISE, False, True, False),
        (FRESH_NOISE, True, False, False),
        (FRESH_NOISE, False, False, True),
        (FRESH_NOISE, True, True, True),  # a damaged manifest: its writer went on
        ("announced", False, False, True),  # words of older versions
        ("unbounded", False, False, True),
        ("trials", False, False, True),
    ],
)
def test_fresh_noise_of_a_lost_writer_is_not_drawn_twice(storage, noise, over, newer, refused):
    base = manifest(1, 3, noise=noise, over=over)
    facts = json.loads(base.encoded().split(b"\n")[0])
    storage.write(base.name, signed(facts | {"covered": 3, "announced": 9}))  # as older versions wrote
    if newer:
        storage.write(manifest(1, 4).name, b"torn")
    found = latest(storage)
    assert found == base
    if refused:
        with pytest.raises(
            NotRecomputable, match=r"drawn a second time and not charged; resume on the machine"
        ):
            require_repeatable(storage, found)
    else:
        require_repeatable(storage, found)
