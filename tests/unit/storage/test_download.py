"""A storage's folder on this machine: created, downloaded, found again; refused where noise would
be drawn twice.
"""

import hashlib
import shutil
import stat
from dataclasses import replace
from types import SimpleNamespace

import pyarrow.fs
import pytest
from filelock import FileLock

from raydpzv.errors import DataError, InputError, NotRecomputable
from raydpzv.storage import download
from raydpzv.storage.download import (
    Link,
    check_apart,
    check_not_midway,
    check_unused,
    created,
    fetch,
    link,
    link_of,
    resumed,
    stored,
    stored_kind,
)
from raydpzv.storage.filesystem import StorageFolder, open_storage
from raydpzv.storage.lease import Lease
from raydpzv.storage.manifest import Manifest, StoredFile, latest
from tests.helpers.storages import QUICK, RecordedStorage, leave_as_killed, left_after

FILES = {"scenario.toml": b"s", "operator.json": b"secret", "models.npz": b"m", "plots/a.png": b"p"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "TIMES", replace(QUICK, lease=0.04))


@pytest.fixture
def uri(tmp_path):
    return (tmp_path / "storage").as_uri()


@pytest.fixture
def first(tmp_path):
    return folder_with(tmp_path / "first", FILES)


def folder_with(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def content_of(path):
    files = {str(p.relative_to(path)): p for p in path.rglob("*") if p.is_file()}
    return {name: p.read_bytes() for name, p in files.items() if name != "storage.json"}


def end(uri, folder, *, fresh_noise=False):
    """Upload a folder whose run ends."""
    with created(uri, "run") as uploader:
        link(folder, uploader)
        with uploader.uploads(folder, fresh_noise=fresh_noise):
            pass


def lose(uri, folder, *, fresh_noise=False):
    """Upload a folder whose writer is lost."""
    with created(uri, "run") as uploader:
        link(folder, uploader)
        with uploader.uploads(folder, fresh_noise=fresh_noise):
            leave_as_killed(uploader)


def resume(uri, folder):
    """Resume in a folder, change nothing there, and return the folder's content while it is
    held.
    """
    with resumed(uri, folder) as uploader:
        found = content_of(folder)
        assert link_of(folder) == Link(uri, uploader.writer, "")
        with uploader.uploads(folder, fresh_noise=False):
            pass
    return found


def test_a_storage_says_what_it_holds(uri, first):
    assert stored_kind(uri) is None
    lose(uri, first)
    assert (stored_kind(uri), stored(uri).over) == ("run", False)
    waited: list[str] = []
    with (
        pytest.raises(InputError, match="holds a run already; choose another --storage"),
        created(uri, "run", waited.append),
    ):
        pytest.fail("it is not created twice")
    assert waited == [], "no lease is waited for"
    other = f"{uri}-2"
    end(other, first)
    assert stored(other).over


def test_a_storage_created_meanwhile_is_seen_once_the_lease_is_held(uri, first, monkeypatch):
    leased = download._leased

    def late(*given):
        monkeypatch.setattr(download, "_leased", leased)
        end(uri, first)
        return leased(*given)

    monkeypatch.setattr(download, "_leased", late)
    with pytest.raises(InputError, match="holds a run already"), created(uri, "run"):
        pytest.fail("it is not created twice")


@pytest.mark.parametrize(
    "ask",
    [
        stored_kind,
        lambda uri: fetch(uri, None),
        lambda uri: created(uri, "run").__enter__(),
        lambda uri: resumed(uri, None).__enter__(),
    ],
)
def test_a_storage_that_cannot_be_read_is_named(uri, monkeypatch, ask):
    def closed(self, folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(StorageFolder, "names", closed)
    with pytest.raises(
        InputError, match=r"file://.*: cannot be read or written \(Permission denied\); see to its"
    ):
        ask(uri)


@pytest.mark.parametrize("ask", [lambda uri, folder: resumed(uri, folder).__enter__(), fetch])
def test_an_empty_storage_cannot_be_resumed_and_stays_empty(uri, tmp_path, ask):
    with pytest.raises(InputError, match="holds no run and no search"):
        ask(uri, tmp_path / "here")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["", "[]", '{"uri": "file:///x"}', '{"uri": "u", "writer": "", "commit": "", "x": 1}']
)
def test_a_damaged_link_says_how_to_mend_it(first, text):
    assert link_of(first) is None
    (first / "storage.json").write_text(text)
    with pytest.raises(DataError, match=r"storage\.json: is damaged .*raydpzv fetch URI FOLDER"):
        link_of(first)


def test_storage_and_folder_lie_apart(tmp_path, monkeypatch):
    for out, storage in (("a", "a"), ("a", "a/b"), ("a/b", "a")):
        with pytest.raises(InputError, match="or has it in itself"):
            check_apart(tmp_path / out, (tmp_path / storage).as_uri())
    check_apart(tmp_path / "a", (tmp_path / "ab").as_uri())
    with (
        created((tmp_path / "a" / "storage").as_uri(), "search") as uploader,
        pytest.raises(InputError, match="or has it in itself"),
    ):
        link(tmp_path / "a", uploader)
    assert link_of(tmp_path / "a") is None
    monkeypatch.setattr(download, "open_storage", lambda uri: SimpleNamespace(on_this_disk=None))
    check_apart(tmp_path / "a", "s3://bucket/a")


def test_what_was_fetched_of_a_run_before_its_end_is_not_taken_for_a_run_that_was_killed(
    uri, first, tmp_path
):
    lose(uri, first)
    fetch(uri, tmp_path / "copy")
    check_not_midway(first)  # where it was made
    with pytest.raises(
        InputError, match=r"raydpzv fetch file://.* FOLDER; or, .*raydpzv resume file://.* --out"
    ):
        check_not_midway(tmp_path / "copy")
    (tmp_path / "copy" / "summary.json").touch()
    check_not_midway(tmp_path / "copy")
    for name in ("summary.json", "scenario.toml"):  # as of a search
        (tmp_path / "copy" / name).unlink()
    check_not_midway(tmp_path / "copy")
    check_not_midway(folder_with(tmp_path / "no copy", FILES))


@pytest.mark.parametrize("fresh_noise", [False, True])
def test_the_folder_of_the_last_writer_is_resumed_as_it_is(uri, first, fresh_noise):
    """It holds every release, so noise of the system is no obstacle."""
    lose(uri, first, fresh_noise=fresh_noise)
    (first / "models.npz").write_bytes(b"further than the storage")
    assert resume(uri, first) == FILES | {"models.npz": b"further than the storage"}
    fetch(uri, first.with_name("copy"))
    assert content_of(first.with_name("copy")) == content_of(first)


def test_the_last_writer_is_known_by_its_lease_before_its_first_upload(uri, first):
    lose(uri, first, fresh_noise=True)
    with resumed(uri, first) as uploader:
        uploader._lease.release = lambda: None  # as a kill leaves it
    assert resume(uri, first) == FILES


def test_another_machine_downloads_all_and_uploads_only_changes(uri, first, tmp_path):
    lose(uri, first)
    here = tmp_path / "here"
    assert resume(uri, here) == FILES
    assert (here / "rows").is_dir()
    assert open_storage(uri).below("by-00000002") == []
    for name in FILES:
        assert bool((here / name).stat().st_mode & 0o044) == (name != "operator.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with pytest.raises(
        InputError, match=r"an older copy of this storage.*raydpzv resume file://.* --out FOLDER"
    ):
        resumed(uri, first).__enter__()


@pytest.mark.parametrize("leases", ["there", "deleted"])
@pytest.mark.parametrize("where", ["here", "copy"])
def test_after_a_loss_fresh_noise_is_resumed_by_its_own_writer_alone(
    uri, first, tmp_path, where, leases
):
    """Neither in an empty folder nor in a downloaded copy, as often as one tries."""
    lose(uri, first, fresh_noise=True)
    fetch(uri, tmp_path / "copy")
    storage = open_storage(uri)
    if leases == "deleted":
        for name in storage.names("leases"):
            storage.delete(f"leases/{name}")
    before = storage.below("")
    for _ in range(2):
        with pytest.raises(
            NotRecomputable, match=r"drawn a second time and not charged; resume on the machine"
        ):
            resumed(uri, tmp_path / where).__enter__()
    assert not (tmp_path / "here").exists()
    assert storage.below("") == before, "no lease was taken"
    assert resume(uri, first) == FILES


def test_fresh_noise_that_another_writer_draws_meanwhile_is_refused(
    uri, first, tmp_path, monkeypatch
):
    """Between the first look and the lease another machine resumed, and was lost."""
    end(uri, first, fresh_noise=True)
    leased = download._leased

    def late(*given):
        monkeypatch.setattr(download, "_leased", leased)
        with (
            resumed(uri, tmp_path / "second") as uploader,
            uploader.uploads(tmp_path / "second", fresh_noise=True),
        ):
            leave_as_killed(uploader)
        return leased(*given)

    monkeypatch.setattr(download, "_leased", late)
    with pytest.raises(NotRecomputable):
        resumed(uri, tmp_path / "third").__enter__()
    assert not (tmp_path / "third").exists()


def test_after_a_clean_end_any_machine_resumes_fresh_noise(uri, first, tmp_path):
    end(uri, first, fresh_noise=True)
    assert resume(uri, tmp_path / "here") == FILES


def test_a_copy_of_the_newest_manifest_is_resumed_where_it_is(uri, first, tmp_path):
    lose(uri, first)
    copy = tmp_path / "copy"
    copy.mkdir()
    found = fetch(uri, copy)
    assert link_of(copy) == Link(uri, "", found.name)
    inode = (copy / "models.npz").stat().st_ino
    assert resume(uri, copy) == FILES
    assert (copy / "models.npz").stat().st_ino == inode


def test_epochs_grow_where_the_leases_were_deleted(uri, first, tmp_path):
    lose(uri, first)
    storage = open_storage(uri)
    for name in storage.names("leases"):
        storage.delete(f"leases/{name}")
    base = latest(storage)
    resume(uri, tmp_path / "here")
    assert latest(storage).epoch > base.epoch


def test_the_folder_of_a_storage_is_not_that_of_a_copy_of_it(uri, first, tmp_path):
    """Which may have been continued elsewhere: its writers bear the same names."""
    lose(uri, first)
    shutil.copytree(tmp_path / "storage", tmp_path / "backup")
    with pytest.raises(InputError, match="first: holds something else"):
        resumed((tmp_path / "backup").as_uri(), first).__enter__()


@pytest.mark.parametrize("holds", ["files", "another link", "file"])
def test_a_folder_with_something_else_is_left_alone(uri, first, tmp_path, holds):
    lose(uri, first)
    here = tmp_path / "here"
    if holds == "file":
        here.write_text("x")
    else:
        folder_with(here, {"x": b""})
    if holds == "another link":
        download._link(here, Link(f"{uri}-2", "", latest(open_storage(uri)).name))
    with pytest.raises(InputError, match="here: holds something else; choose another --out"):
        resumed(uri, here).__enter__()
    with pytest.raises(InputError, match="here: is there already"):
        fetch(uri, here)
    assert Lease.acquire(open_storage(uri), 1.0, sleep=lambda seconds: pytest.fail("waited"))


def commit_of(place, number, files, **facts):
    found = Manifest(1, number, "run", "w", files, **facts)
    place.write(found.name, found.encoded())
    return found


def test_of_a_commit_whose_objects_went_meanwhile_the_next_is_brought(uri, tmp_path, monkeypatch):
    place = open_storage(uri)
    sha = hashlib.sha256(b"data").hexdigest()
    gone = commit_of(place, 0, {"a": StoredFile(4, sha, (("by-00000001/a", 4),))})
    monkeypatch.setattr(download, "latest", lambda place: found.pop(0))
    place.write("by-00000001/a~1", b"data")
    second = commit_of(place, 1, {"a": StoredFile(4, sha, (("by-00000001/a~1", 4),))})
    found = [gone, second]
    assert fetch(uri, tmp_path / "here") == second
    assert content_of(tmp_path / "here") == {"a": b"data"}
    found = [gone, gone]
    with pytest.raises(DataError, match="objects of its newest commit are missing"):
        fetch(uri, tmp_path / "other")
    others = [Manifest(1, n, "run", "w", gone.files) for n in range(30)]
    found = others.copy()
    with pytest.raises(InputError, match="is written to faster than it can be downloaded"):
        fetch(uri, tmp_path / "other")
    assert not [path.name for path in tmp_path.iterdir() if "other" in path.name]


def test_a_commit_that_names_files_outside_of_its_folder_is_damaged(uri, tmp_path):
    place = open_storage(uri)
    commit_of(place, 0, {"../out": StoredFile(0, "x", ())})
    with pytest.raises(DataError, match=r"\.\./out lies outside of its folder"):
        fetch(uri, tmp_path / "here")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_is_named_and_nothing_is_left(uri, first, tmp_path, monkeypatch):
    lose(uri, first)

    def full(path, data, **how):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download, "write_atomically", full)
        with pytest.raises(
            InputError,
            match=r"here: cannot download file://.*No space left.*see to disk and storage",
        ):
            fetch(uri, tmp_path / "here")
    assert {path.name for path in tmp_path.iterdir()} == {"first", "storage"}
    fetch(uri, tmp_path / "here")
    assert stat.S_IMODE((tmp_path / "here" / "operator.json").stat().st_mode) == 0o600


def test_a_place_with_other_things_is_neither_begun_nor_continued_with(uri, tmp_path):
    there = folder_with(tmp_path / "storage", FILES)
    before = content_of(there)
    with pytest.raises(InputError, match="storage: holds other things"), created(uri, "run"):
        pytest.fail("it is not started")
    with (
        pytest.raises(InputError, match="storage: holds other things"),
        resumed(uri, tmp_path / "here"),
    ):
        pytest.fail("it is no storage")
    assert content_of(there) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["storage"]


@pytest.mark.parametrize(("file", "what"), [("scenario.toml", "run"), ("search.toml", "search")])
def test_a_folder_at_work_is_refused_before_its_lease_is_waited_for(uri, tmp_path, file, what):
    lose(uri, folder := folder_with(tmp_path / "first", {file: b"", "models.npz": b"m"}))
    waited = []
    with FileLock(folder / ".lock"):
        with (
            pytest.raises(
                InputError, match=f"first: another process is writing this {what}; wait for it, or"
            ),
            resumed(uri, folder, waits=waited.append),
        ):
            pytest.fail("somebody else writes it")
        assert not waited
    with resumed(uri, folder, waits=waited.append):
        assert len(waited) == 1, "its writer is gone"


def bucket():
    from pyarrow._fs import _MockFileSystem  # in memory; the one of pyarrow's own tests

    return _MockFileSystem()


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path):
    systems = {
        "disk": lambda: (pyarrow.fs.LocalFileSystem(), str(tmp_path / "place")),
        "bucket": lambda: (bucket(), "bucket/place"),
    }
    return StorageFolder(*systems[request.param](), "here")


def test_nothing_there_may_become_a_storage(place):
    check_unused(place)
    place._make(place._base)
    check_unused(place)


@pytest.mark.parametrize(
    "name", ["scenario.toml", "rows/part-0", "by-1/x", "commits.old/x", ".hidden", "leases2/x"]
)
def test_other_things_are_left_alone(place, name):
    place.write(name, b"")
    with pytest.raises(
        InputError, match=r"here: holds other things \(.*\) and no storage; give the URI of"
    ) as error:
        check_unused(place)
    assert name.partition("/")[0] in str(error.value)


def test_of_many_the_first_are_named_those_that_everybody_sees_before_the_others(place):
    for name in (".a", "b", "c", "d/x", "e/x"):
        place.write(name, b"")
    with pytest.raises(InputError, match=r"\(b, c, d and 2 more\)"):
        check_unused(place)


def test_a_folder_of_a_storages_name_makes_no_storage_of_other_things(place):
    place.write("commits/of-mine.txt", b"")
    place.write("notes.txt", b"")
    with pytest.raises(InputError, match=r"\(notes\.txt\)"):
        check_unused(place)


@pytest.mark.parametrize("which", ["lease", "commit"])
def test_a_storage_stays_one_beside_which_something_was_laid(place, which):
    if which == "lease":
        Lease.acquire(place, 1.0)
    else:  # whose leases somebody deleted
        commit = Manifest(1, 0, "run", "somebody", {})
        place.write(commit.name, commit.encoded())
    place.write("README.md", b"")
    check_unused(place)


def test_what_a_kill_in_the_midst_of_a_beginning_leaves_is_begun_anew(tmp_path):
    began = RecordedStorage(tmp_path / "began")
    began.write("leases/00000001-abc.json", b"{}")
    began.write("by-00000001/scenario.toml", b"x")
    began.write(Manifest(1, 0, "run", "somebody", {}).name, b"torn")
    assert len(began.acts) == 3
    for done in range(len(began.acts) + 1):
        folder = tmp_path / f"after {done}"
        torn = began.acts[done] if done < len(began.acts) else None
        check_unused(left_after(began.acts[:done], folder, torn=torn))
    for alone in ("leases", "commits", "by-00000001"):
        place = left_after([], tmp_path / f"only {alone}")
        place._make(place._path(alone))
        check_unused(place)
        (tmp_path / f"only {alone}" / alone / ".file.17").write_bytes(b"half")
        check_unused(place)
