import hashlib
import json
import os

import pytest

from raydpzv.errors import DataError, NotRecomputable, RunError
from raydpzv.storage import manifest_writer
from raydpzv.storage.lease import Fenced, Lease
from raydpzv.storage.manifest import (
    FRESH_NOISE,
    NO_NOISE,
    Manifest,
    StoredFile,
    content,
    latest,
    require_repeatable,
)
from raydpzv.storage.manifest_writer import ManifestWriter
from raydpzv.storage.snapshot import Moving
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
    storage.write(
        base.name, signed(facts | {"covered": 3, "announced": 9})
    )  # as older versions wrote
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


# Uploads of a folder: only changes, counted, complete whatever is written or deleted meanwhile.


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_bytes(b"first")
    (tmp_path / "run" / "b").write_bytes(b"deleted later")
    return tmp_path / "run"


@pytest.fixture
def writer(storage, folder):
    return ManifestWriter(storage, Lease.acquire(storage, 30.0), folder, "run")


def upload(writer, **how):
    """Write a manifest; return the objects that this uploaded, with their content."""
    before = len(writer.storage.acts)
    writer.write(fresh_noise=False, **how)
    acts = writer.storage.acts[before:]
    return {
        act.name: act.data for act in acts if act.data is not None and act.name.startswith("by-")
    }


def test_only_changes_are_uploaded_and_of_a_grown_file_its_end(writer, folder):
    assert sorted(upload(writer)) == ["by-00000001/a", "by-00000001/b"]
    (folder / "a").write_bytes(b"first and more")
    assert upload(writer) == {"by-00000001/a~1": b" and more"}
    (folder / "a").write_bytes(b"another")
    assert upload(writer) == {"by-00000001/a~2": b"another"}
    assert upload(writer) == {}


def test_a_change_within_the_same_tick_of_the_clock_is_seen(writer, folder):
    stat = (folder / "a").stat()
    upload(writer)
    with open(folder / "a", "r+b") as file:
        file.write(b"other")
    os.utime(folder / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert upload(writer) == {"by-00000001/a~1": b"other"}


def test_objects_of_kept_manifests_stay_and_all_others_are_deleted(writer, storage, folder):
    def still_named(act):
        if act.data is None and storage.names("commits"):
            assert act.name not in latest(storage).objects

    storage.before = still_named
    for n in range(6):
        (folder / "a").write_bytes(b"%d" % n)
        upload(writer)
    assert len(storage.names("commits")) == 2
    assert storage.below("by-00000001") == ["a~4", "a~5", "b"]


def test_uploads_are_counted(writer, storage, folder):
    before = len(storage.acts)
    for text in (b"first", b"first and more"):
        (folder / "a").write_bytes(text)
        upload(writer)
    written = [act.data for act in storage.acts[before:] if act.data is not None]
    facts = writer.traffic.facts(storage.uri)
    assert facts["commits"] == sum(act.name.startswith("commits/") for act in storage.acts) == 2
    assert (facts["objects"], facts["bytes"]) == (len(written), sum(map(len, written)))


def test_a_file_that_is_deleted_and_written_again_is_uploaded_again(writer, storage, folder):
    upload(writer)
    (folder / "b").unlink()
    for _ in range(3):
        upload(writer)
    assert "by-00000001/b" not in storage.below("")
    (folder / "b").write_bytes(b"deleted later")
    upload(writer)
    stored = latest(storage).files
    assert [content(storage, name, stored[name]) for name in ("a", "b")] == [
        b"first",
        b"deleted later",
    ]


def test_a_folder_that_never_rests_is_named(writer, monkeypatch):
    def moving(root, unchanged):
        raise Moving("ledger")
        yield

    monkeypatch.setattr(manifest_writer, "snapshot", moving)
    with pytest.raises(
        RunError, match=r"run: cannot be uploaded to file://.*: ledger changes all the time"
    ):
        upload(writer)


def test_a_file_that_grew_often_becomes_one_object_again(writer, storage, folder, monkeypatch):
    monkeypatch.setattr(manifest_writer, "_MOST_PIECES", 3)
    pieces = []
    for n in range(5):
        (folder / "a").write_bytes(b"first" + b"+" * n)
        upload(writer)
        pieces.append(len(latest(storage).files["a"].pieces))
    assert pieces == [1, 2, 3, 1, 2]
    assert content(storage, "a", latest(storage).files["a"]) == b"first++++"


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_writer_that_lost_its_lease_fails(writer, storage, when):
    """The new writer reads the manifest, or is seen by the old one: never neither."""
    second = Lease(storage, 2, 1.0)

    def acquire(act):
        if act.name.startswith("commits/") and when == "during":
            storage.before = lambda act: None
            second.renew()

    storage.before = acquire
    if when == "before":
        second.renew()
    with pytest.raises(Fenced, match="has taken this storage over"):
        upload(writer)
    assert len(storage.names("commits")) == (when == "during")


def test_files_of_an_interrupted_writer_are_deleted_by_the_next(writer, storage, folder):
    storage.write("by-00000001/half", b"")
    storage.write("commits/00000001-00000009.json", b"torn")
    storage.write("commits/.00000001-00000001.json.4711", b"half")
    upload(writer)
    writer.lease.release()
    lease = Lease.acquire(storage, 30.0)
    second = ManifestWriter(storage, lease, folder, "run", base=latest(storage))
    (folder / "a").write_bytes(b"second")
    for _ in range(2):
        upload(second, over=True)
    assert storage.below("by-00000001") == ["b"]
    assert storage.below("commits") == ["00000002-00000000.json", "00000002-00000001.json"]
    assert latest(storage).files["a"].pieces == (("by-00000002/a", 6),)
    assert latest(storage).over
