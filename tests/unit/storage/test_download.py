"""A storage's folder on this machine: begun, brought, found again, charged with what a lost writer may have made."""

from __future__ import annotations

import hashlib
import shutil
import stat
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from filelock import FileLock

from raydpzv.errors import DataError, InputError, NotRecomputable
from raydpzv.storage import download
from raydpzv.storage.commits import ANNOUNCED, NO_NOISE, UNBOUNDED, Commit, StoredFile, latest
from raydpzv.storage.download import (
    Link,
    begun,
    begun_at,
    check_apart,
    check_not_midway,
    continued,
    fetch,
    is_over,
    link,
    link_of,
)
from raydpzv.storage.filesystem import StorageFolder, open_place
from raydpzv.storage.lease import Lease
from raydpzv.storage.lost_updates import missing_updates
from raydpzv.storage.uploader import FreshNoise
from tests.helpers.storages import QUICK, leave_as_killed

AHEAD = FreshNoise(ANNOUNCED, 10)
FILES = {"scenario.toml": b"s", "operator.json": b"secret", "models.npz": b"m", "plots/a.png": b"p"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "PACE", replace(QUICK, lease=0.04))


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


def begin(uri, folder, noise=AHEAD):
    """Bring a folder there whose run comes to its end."""
    with begun(uri, "run") as mirror:
        link(folder, mirror)
        with mirror.of(folder, noise):
            pass


def lose(uri, folder, noise=AHEAD, made=3):
    """Bring a folder there whose writer is lost after so many updates were noted."""
    with begun(uri, "run") as mirror:
        link(folder, mirror)
        with mirror.of(folder, noise):
            mirror.note(made)
            mirror.flush()
            leave_as_killed(mirror)


@contextmanager
def charging(uri, folder):
    """Go on in a folder; yield the mirror, what is missing, and what was charged."""
    charged = []
    with continued(uri, folder, charge=lambda path, found: charged.append((path, found.name))) as (
        mirror,
        missing,
    ):
        yield mirror, missing, charged


def test_what_a_storage_holds_is_known_before_anything_is_brought(uri, first):
    assert (begun_at(uri), is_over(uri)) == (None, False)
    lose(uri, first)
    assert (begun_at(uri), is_over(uri)) == ("run", False)
    waited: list[str] = []
    with (
        pytest.raises(InputError, match="holds a run already; choose another --storage"),
        begun(uri, "run", waited.append),
    ):
        pytest.fail("it is not begun twice")
    assert waited == [], "for the lease of who was lost"
    other = f"{uri}-of-a-whole-one"
    begin(other, first)
    assert is_over(other)


def test_what_another_began_meanwhile_is_seen_once_the_lease_is_held(uri, first, monkeypatch):
    taken = download._taken

    def late(*given):
        monkeypatch.setattr(download, "_taken", taken)
        begin(uri, first)
        return taken(*given)

    monkeypatch.setattr(download, "_taken", late)
    with pytest.raises(InputError, match="holds a run already"), begun(uri, "run"):
        pytest.fail("it is not begun twice")


@pytest.mark.parametrize(
    "ask",
    [
        begun_at,
        is_over,
        lambda uri: fetch(uri, None),
        lambda uri: begun(uri, "run").__enter__(),
        lambda uri: continued(uri, None).__enter__(),
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


@pytest.mark.parametrize("go_on", [lambda uri, folder: continued(uri, folder).__enter__(), fetch])
def test_of_an_empty_storage_there_is_nothing_to_go_on_with(uri, tmp_path, go_on):
    with pytest.raises(InputError, match="holds no run and no search"):
        go_on(uri, tmp_path / "here")
    assert not (tmp_path / "here").exists()
    begin(uri, folder_with(tmp_path / "first", FILES))  # its lease was given back


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
        begun((tmp_path / "a" / "storage").as_uri(), "search") as mirror,
        pytest.raises(InputError, match="or has it in itself"),
    ):
        link(tmp_path / "a", mirror)
    assert link_of(tmp_path / "a") is None
    monkeypatch.setattr(download, "open_place", lambda uri: SimpleNamespace(on_this_disk=None))
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


def test_its_own_writer_goes_on_in_its_folder_as_it_is_and_is_charged_nothing(uri, first):
    lose(uri, first)
    (first / "models.npz").write_bytes(b"further than the storage")
    with charging(uri, first) as (mirror, missing, charged):
        assert (missing, charged) == (0, [])
        assert link_of(first) == Link(uri, mirror.writer, "")
        with mirror.of(first, AHEAD):
            pass
    assert content_of(first) == FILES | {"models.npz": b"further than the storage"}
    assert missing_updates(first) == 0
    fetch(uri, first.with_name("copy"))
    assert content_of(first.with_name("copy")) == content_of(first)


def test_its_own_writer_is_known_before_its_first_commit_too(uri, first):
    """Who was killed between its lease and that has all there is."""
    lose(uri, first)
    with continued(uri, first) as (mirror, _):
        mirror._lease.release = lambda: None
    with charging(uri, first) as (_, missing, charged):
        assert (missing, charged) == (0, [])


def test_another_machine_gets_all_of_it_and_is_charged_what_was_announced(uri, first, tmp_path):
    lose(uri, first)
    here = tmp_path / "here"
    with charging(uri, here) as (mirror, missing, charged):
        assert missing == 10
        ((made, commit),) = charged
        assert commit == latest(open_place(uri)).name
        assert not made.exists(), "it was charged before it was there for anybody"
        assert content_of(here).keys() == FILES.keys() | {"missing.json"}
        assert link_of(here) == Link(uri, mirror.writer, "")
        assert (here / "rows").is_dir()
        before = set(open_place(uri).below("by-00000002"))
        with mirror.of(here, AHEAD):
            pass
    assert missing_updates(here) == 10
    brought = set(open_place(uri).below("by-00000002")) - before
    assert brought == {"missing.json"}, "only what has changed since travels"
    for name, data in FILES.items():
        assert (here / name).read_bytes() == data
        assert bool((here / name).stat().st_mode & 0o044) == (name != "operator.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with pytest.raises(
        InputError, match=r"an older copy of this storage.*raydpzv resume file://.* --out FOLDER"
    ):
        continued(uri, first).__enter__()


def test_a_fetched_copy_of_the_newest_commit_is_gone_on_with_where_it_is(uri, first, tmp_path):
    lose(uri, first)
    copy = tmp_path / "copy"
    copy.mkdir()
    found = fetch(uri, copy)
    assert link_of(copy) == Link(uri, "", found.name)
    assert missing_updates(copy) == 0, "a copy to look at is charged nothing"
    inode = (copy / "models.npz").stat().st_ino
    with charging(uri, copy) as (_, missing, charged):
        assert missing == missing_updates(copy) == 10
        assert charged == [(copy, found.name)]
    assert (copy / "models.npz").stat().st_ino == inode


def test_a_fetched_copy_is_charged_too_where_nobody_knows_who_wrote_last(uri, first, tmp_path):
    """As where its leases were deleted by hand."""
    lose(uri, first)
    fetch(uri, tmp_path / "copy")
    for name in open_place(uri).names("leases"):
        open_place(uri).delete(f"leases/{name}")
    base = latest(open_place(uri))
    with charging(uri, tmp_path / "copy") as (mirror, missing, charged):
        assert (missing, len(charged)) == (10, 1)
        with mirror.of(tmp_path / "copy", AHEAD):
            assert latest(open_place(uri)).writer == mirror.writer, "what is brought now is the newest"
    assert latest(open_place(uri)).epoch > base.epoch


def test_the_folder_of_a_storage_is_not_that_of_a_copy_of_it(uri, first, tmp_path):
    """Which may have been gone on with elsewhere: its writers bear the same names."""
    lose(uri, first)
    shutil.copytree(tmp_path / "storage", tmp_path / "backup")
    with pytest.raises(InputError, match="first: holds something else"):
        continued((tmp_path / "backup").as_uri(), first).__enter__()


@pytest.mark.parametrize("holds", ["files", "another link", "file"])
def test_a_folder_with_something_else_is_left_alone(uri, first, tmp_path, holds):
    lose(uri, first)
    here = tmp_path / "here"
    if holds == "file":
        here.write_text("x")
    else:
        folder_with(here, {"x": b""})
    if holds == "another link":
        download._link(here, Link(f"{uri}-2", "", latest(open_place(uri)).name))
    with pytest.raises(InputError, match="here: holds something else; choose another --out"):
        continued(uri, here).__enter__()
    with pytest.raises(InputError, match="here: is there already"):
        fetch(uri, here)
    assert Lease.take(open_place(uri), 1.0, sleep=lambda seconds: pytest.fail("its lease was given back"))


@pytest.mark.parametrize(("noise", "kind"), [(FreshNoise(), NO_NOISE), (FreshNoise(UNBOUNDED), UNBOUNDED)])
def test_what_nobody_can_bound_is_refused_and_what_has_no_noise_is_charged_nothing(
    uri, first, tmp_path, noise, kind
):
    lose(uri, first, noise)
    assert latest(open_place(uri)).noise == kind
    if kind == NO_NOISE:
        with charging(uri, tmp_path / "here") as (_, missing, charged):
            assert missing == missing_updates(tmp_path / "here") == 0
            assert len(charged) == 1
        return
    with pytest.raises(NotRecomputable, match="a wall-clock run stands still for no storage"):
        continued(uri, tmp_path / "here").__enter__()
    assert not (tmp_path / "here").exists()
    with pytest.raises(NotRecomputable), continued(uri, tmp_path / "here"):
        pytest.fail("nor the second time")


def test_each_damaged_commit_after_the_one_that_counts_may_have_announced_as_much(uri, first, tmp_path):
    place = open_place(uri)
    lose(uri, first)
    base = latest(place)
    for number in (1, 2):
        place.write(base.name.replace(f"{base.number:08d}.json", f"{base.number + number:08d}.json"), b"torn")
    with charging(uri, tmp_path / "here") as (_, missing, _):
        assert missing == 3 * 10
    assert missing_updates(tmp_path / "here") == 30


def test_a_damaged_commit_after_one_that_announced_nothing_may_have_announced_anything(uri, first, tmp_path):
    place = open_place(uri)
    begin(uri, first)
    base = latest(place)
    assert (base.noise, base.over, base.announced) == (ANNOUNCED, True, base.covered)
    place.write(base.name.replace(f"{base.number:08d}.json", f"{base.number + 1:08d}.json"), b"torn")
    with pytest.raises(DataError, match="its newest commit is damaged, so that nobody knows"):
        continued(uri, tmp_path / "here").__enter__()


def test_where_nothing_is_drawn_twice_a_damaged_commit_charges_nothing(uri, first, tmp_path):
    place = open_place(uri)
    lose(uri, first, FreshNoise())
    base = latest(place)
    place.write(base.name.replace(f"{base.number:08d}.json", f"{base.number + 1:08d}.json"), b"torn")
    with charging(uri, tmp_path / "here") as (_, missing, _):
        assert missing == 0


def commit_of(place, number, files, **facts):
    found = Commit(1, number, "run", "w", files, **facts)
    place.write(found.name, found.encoded())
    return found


def test_of_a_commit_whose_objects_went_meanwhile_the_next_is_brought(uri, tmp_path, monkeypatch):
    place = open_place(uri)
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
    others = [Commit(1, n, "run", "w", gone.files) for n in range(30)]
    found = others.copy()
    with pytest.raises(InputError, match="is written to faster than it can be brought"):
        fetch(uri, tmp_path / "other")
    assert not [path.name for path in tmp_path.iterdir() if "other" in path.name]


def test_a_commit_that_names_files_outside_of_its_folder_is_damaged(uri, tmp_path):
    place = open_place(uri)
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
            InputError, match=r"here: cannot bring file://.*No space left.*see to disk and storage"
        ):
            fetch(uri, tmp_path / "here")
    assert {path.name for path in tmp_path.iterdir()} == {"first", "storage"}
    fetch(uri, tmp_path / "here")
    assert stat.S_IMODE((tmp_path / "here" / "operator.json").stat().st_mode) == 0o600


def test_a_place_with_other_things_is_neither_begun_nor_gone_on_with(uri, tmp_path):
    there = folder_with(tmp_path / "storage", FILES)
    before = content_of(there)
    with pytest.raises(InputError, match="storage: holds other things"), begun(uri, "run"):
        pytest.fail("it is not begun")
    with pytest.raises(InputError, match="storage: holds other things"), continued(uri, tmp_path / "here"):
        pytest.fail("it is no storage")
    assert content_of(there) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["storage"]


def test_to_ask_an_empty_place_for_its_run_leaves_nothing_there(uri, tmp_path):
    with pytest.raises(InputError, match="holds no run"), continued(uri, tmp_path / "here"):
        pytest.fail("there is none")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("file", "what"), [("scenario.toml", "run"), ("search.toml", "search")])
def test_a_folder_at_work_is_refused_before_its_lease_is_waited_for(uri, tmp_path, file, what):
    lose(uri, folder := folder_with(tmp_path / "first", {file: b"", "models.npz": b"m"}))
    waited = []
    with FileLock(folder / ".lock"):
        with (
            pytest.raises(
                InputError, match=f"first: another process is writing this {what}; wait for it, or"
            ),
            continued(uri, folder, waits=waited.append),
        ):
            pytest.fail("somebody else writes it")
        assert not waited
    with continued(uri, folder, waits=waited.append):
        assert len(waited) == 1, "its writer is gone"
