import os
import stat
import threading

import pytest

from raydpzv.errors import InputError, RunError
from raydpzv.storage.download import local_copy
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import OBJECTS, latest
from raydpzv.storage.run_copy import RunCopy, copied
from tests.helpers.storages import before_each_change, copy_at_once, full_disk


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "run"
    (found / "rows").mkdir(parents=True)
    (found / "scenario.toml").write_text("a = 1\n")
    (found / "scenario.toml").chmod(0o644)
    (found / "operator.json").write_text("secret")
    (found / "operator.json").chmod(0o600)
    (found / "rows" / "1").write_bytes(b"1")
    (found / ".lock").write_text("")
    (found / "checkpoint.before.state").write_text("older")
    return found


@pytest.fixture
def place(tmp_path):
    return open_storage((tmp_path / "storage").as_uri())


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "storage.json"
    }


def test_a_copy_comes_down_as_it_was_without_locks_and_older_checkpoints(folder, place, tmp_path):
    with copied(folder, place, fresh_noise=False):
        assert not latest(place).over
        (folder / "rows" / "2").write_bytes(b"2")
    assert latest(place).over
    down = local_copy(place.uri, tmp_path / "down")
    assert contents(down).keys() == {"scenario.toml", "operator.json", "rows/1", "rows/2"}
    assert contents(down).items() < contents(folder).items()
    for name, mode in {"operator.json": 0o600, "scenario.toml": 0o644}.items():
        assert stat.S_IMODE((down / name).stat().st_mode) == mode
    secret = latest(place).files["operator.json"].sha256
    assert stat.S_IMODE((tmp_path / "storage" / OBJECTS / secret).stat().st_mode) == 0o600


def test_only_what_changed_is_written_and_what_nothing_names_goes(folder, place, monkeypatch):
    copy_at_once(monkeypatch)
    changes = []
    before_each_change(monkeypatch, lambda name: changes.append(name.partition("/")[0]))
    with copied(folder, place, fresh_noise=False) as copy:
        assert changes.count(OBJECTS) == 3
        changes.clear()
        (folder / "rows" / "1").write_bytes(b"11")
        copy.checkpointed()
        # the content, the index, the index before it, and what only that one named
        assert changes == ["objects", "index", "index", "objects"]
        assert set(place.names(OBJECTS)) == latest(place).objects
    assert set(place.names(OBJECTS)) == latest(place).objects


def test_what_a_killed_copy_left_goes_with_the_next(folder, place):
    place.write(f"{OBJECTS}/{'0' * 64}", b"left over")
    place.write(f"{OBJECTS}/.{'1' * 64}.77", b"half")
    with copied(folder, place, fresh_noise=False):
        assert set(place.names(OBJECTS)) == latest(place).objects


def test_a_content_that_a_kill_cut_off_is_not_taken_for_whole(folder, place, tmp_path):
    """File systems without a rename leave a part of a file."""
    with copied(folder, place, fresh_noise=False):
        pass
    (folder / "rows" / "2").write_bytes(b"22")
    copy = RunCopy(folder, place, fresh_noise=False)
    ((sha256, _),) = copy._read()[1].items()
    place.write(f"{OBJECTS}/{sha256}", b"2")
    with copied(folder, place, fresh_noise=False):
        pass
    assert contents(local_copy(place.uri, tmp_path / "down"))["rows/2"] == b"22"


def test_a_file_that_changes_within_a_clock_tick_is_copied_again(folder, place, monkeypatch):
    copy_at_once(monkeypatch)
    path = folder / "rows" / "1"
    with copied(folder, place, fresh_noise=False) as copy:
        before = path.stat()
        path.write_bytes(b"2")  # of the same size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        copy.checkpointed()
        data = place.read(f"{OBJECTS}/{latest(place).files['rows/1'].sha256}")
    assert data == b"2"


def test_a_link_is_refused(folder, place, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("x")
    (folder / "rows" / "more").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(InputError, match="rows/more: is a link, which no copy follows"),
        copied(folder, place, fresh_noise=False),
    ):
        raise AssertionError
    assert latest(place) is None


def test_files_that_come_while_others_are_read_are_in_the_copy(folder, place, monkeypatch):
    """A ledger begins its next segment and only then seals the one before."""
    read = RunCopy._file

    def grown(copy, name, found):
        if name == "rows/1" and not (folder / "rows" / "2").exists():
            (folder / "rows" / "2").write_bytes(b"open")
            (folder / "rows" / "1").write_bytes(b"sealed")
        return read(copy, name, found)

    monkeypatch.setattr(RunCopy, "_file", grown)
    with copied(folder, place, fresh_noise=False):
        assert "rows/2" in latest(place).files


def test_a_folder_that_changes_all_the_time_is_given_up(folder, place, monkeypatch):
    read, names = RunCopy._file, iter(range(1000))

    def grown(copy, name, found):
        if name == "scenario.toml":
            (folder / "rows" / f"more{next(names)}").write_bytes(b"")
        return read(copy, name, found)

    monkeypatch.setattr(RunCopy, "_file", grown)
    with pytest.raises(InputError, match="its files change all the time"):
        RunCopy(folder, place, fresh_noise=False).begin()


def test_a_copy_that_fails_is_a_warning_and_the_next_brings_all(folder, place, monkeypatch):
    copy_at_once(monkeypatch)
    with copied(folder, place, fresh_noise=False) as copy:
        (folder / "rows" / "2").write_bytes(b"2")
        with monkeypatch.context() as patch:
            before_each_change(patch, full_disk("index/"))
            copy.checkpointed()
        with pytest.warns(
            RuntimeWarning, match="No space left on device.; it is tried again after"
        ):
            copy.checkpointed()
        assert "rows/2" not in latest(place).files
        copy.checkpointed()
        assert "rows/2" in latest(place).files


def test_a_first_copy_that_fails_starts_nothing(folder, place, monkeypatch):
    before_each_change(monkeypatch, full_disk("objects/"))
    with (
        pytest.raises(InputError, match=r"cannot be written \(No space left"),
        copied(folder, place, fresh_noise=False),
    ):
        raise AssertionError


def test_a_last_copy_that_fails_says_what_to_do(folder, place, monkeypatch):
    copy_at_once(monkeypatch)
    with (
        pytest.raises(
            RunError, match=f"then copy {folder}, which has all of the run, with: raydpzv"
        ),
        copied(folder, place, fresh_noise=False),
    ):
        before_each_change(monkeypatch, full_disk("index/"))


def test_the_error_of_the_run_is_not_hidden_by_that_of_its_copy(folder, place, monkeypatch):
    copy_at_once(monkeypatch)

    def fail():
        with copied(folder, place, fresh_noise=False):
            before_each_change(monkeypatch, full_disk("index/"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match="No space left"):
        fail()


def test_a_run_does_not_wait_for_a_copy(folder, place, monkeypatch):
    gate, under_way = threading.Event(), threading.Event()

    def wait(name):
        under_way.set()
        assert gate.wait(60)

    with copied(folder, place, fresh_noise=False) as copy, monkeypatch.context() as patch:
        before_each_change(patch, wait)
        (folder / "rows" / "2").write_bytes(b"2")
        copy.checkpointed()
        assert under_way.wait(60)
        (folder / "rows" / "2").write_bytes(b"later")
        copy.checkpointed()  # left out: the one before is under way
        assert not (set(latest(place).files) & {"rows/2"})
        gate.set()
    data = place.read(f"{OBJECTS}/{latest(place).files['rows/2'].sha256}")
    assert (data, latest(place).over) == (b"later", True)


def test_two_writers_are_seen(folder, place, tmp_path, monkeypatch):
    copy_at_once(monkeypatch)
    other = tmp_path / "other"
    with copied(folder, place, fresh_noise=False) as copy:
        local_copy(place.uri, other)
        RunCopy(other, place, fresh_noise=False).begin()
        copy.checkpointed()
        with pytest.raises(RunError, match="another process writes to this storage"):
            copy.checkpointed()
        monkeypatch.setattr(RunCopy, "end", lambda copy: None)
    assert latest(place).number == 2
